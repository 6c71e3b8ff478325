"""Descriptions of how batches were drawn contradict neither themselves nor JSON."""

import json

import numpy as np
import pytest

from tfdp.accounting import Sampling
from tfdp.accounting.losses.truncation import overflow_probability


def _sampling(**changes):
    fields = {"kind": "poisson", "num_examples": 100, "expected_batch_size": 12.5}
    return Sampling(**{**fields, **changes})


def test_json_round_trip():
    sampling = _sampling(max_batch_size=40, seeded=True, steps_per_epoch=8)
    assert Sampling.from_dict(json.loads(json.dumps(sampling.to_dict()))) == sampling


def test_numbers_of_numpy_become_plain():
    numbers = {
        "num_examples": np.int64(100), "expected_batch_size": np.float32(12.5),
        "max_batch_size": np.int32(40), "steps_per_epoch": np.int64(8),
        "max_records_per_unit": np.uint8(3), "num_records": np.int64(200), "workers": np.int64(1),
    }  # fmt: skip
    found = _sampling(**numbers)
    assert Sampling.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert type(found.expected_batch_size) is float
    size = _sampling(expected_batch_size=np.int64(12)).expected_batch_size
    assert size == 12 and type(size) is int


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "bernoulli"}, "kind"),
        ({"num_examples": 0}, "num_examples"),
        ({"num_examples": 10.0}, "num_examples"),
        ({"expected_batch_size": 101}, "expected_batch_size"),
        ({"expected_batch_size": 0}, "expected_batch_size"),
        ({"kind": "full_batch"}, "expected_batch_size"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
    ],
)
def test_contradictions_are_named(changes, named):
    with pytest.raises(ValueError, match=f"Argument `{named}` must"):
        _sampling(**changes)


def test_a_shuffled_record_appears_once_per_epoch_begun():
    four = _sampling(kind="shuffled", expected_batch_size=30, steps_per_epoch=4)
    assert [four.appearances(t) for t in (1, 4, 5, 8, 10)] == [1, 1, 2, 2, 3]


def test_where_the_batches_of_a_pass_are_unknown_each_step_may_begin_one():
    unknown = _sampling(kind="shuffled", expected_batch_size=30)
    assert unknown.appearances(10) == 10
    bounded = _sampling(kind="shuffled", expected_batch_size=30, passes=4)
    assert [bounded.appearances(t) for t in (1, 3, 10)] == [1, 3, 4]


def test_a_person_of_a_stream_is_in_as_many_steps_of_a_pass_as_was_declared():
    fields = {"kind": "stream", "max_records_per_unit": 1, "max_participations": 3}
    known = _sampling(**fields, min_separation=2, steps_per_epoch=8)
    assert [known.appearances(t) for t in (1, 2, 3, 8)] == [1, 2, 3, 3]
    unknown = _sampling(**fields, min_separation=2, passes=1)
    assert [unknown.appearances(t) for t in (1, 2, 3, 8)] == [1, 2, 3, 3]


@pytest.mark.parametrize("changes", [
    {"max_participations": None}, {"min_separation": None}, {"passes": 2},
    {"max_records_per_unit": 2}, {"kind": "poisson"}, {"kind": "shuffled"},
    {"kind": "allocated", "expected_batch_size": 10},
    {"kind": "cyclic_poisson", "bands": 2, "expected_batch_size": 10},
])  # fmt: skip
def test_participations_are_those_of_one_pass_over_a_stream_of_persons(changes):
    fields = {
        "kind": "stream", "steps_per_epoch": 8, "max_records_per_unit": 1, "max_participations": 3,
        "min_separation": 2,
    }  # fmt: skip
    assert _sampling(**fields).participations == (3, 2)
    with pytest.raises(ValueError, match="Arguments `max_participations` and `min_separation`"):
        _sampling(**{**fields, **changes})


def test_every_worker_may_overflow_by_itself():
    one = Sampling("poisson", 250, 25.0, 40).overflow_probability
    four = Sampling("poisson", 1000, 100.0, 160, workers=4).overflow_probability
    assert one > 0 and four == pytest.approx(4 * one)


def test_a_record_may_appear_in_every_microbatch():
    assert Sampling("microbatches", 100, 10.0, microbatches=3).appearances(5) == 15


def test_overflow_is_that_of_the_draws_that_were_made():
    """Of the larger neighbour's: of each worker from its share, rounded up; of micro-batches."""
    one = Sampling("poisson", 1001, 100, max_batch_size=130)
    assert one.overflow_probability == overflow_probability(1002, 100 / 1001, 130)
    shared = Sampling("poisson", 1001, 100, max_batch_size=130, workers=2)
    assert shared.overflow_probability == 2 * overflow_probability(501, 100 / 1001, 65)
    several = Sampling("microbatches", 1000, 100, max_batch_size=130, microbatches=4)
    assert several.draw_probability == 100 / 4000
    assert several.overflow_probability == overflow_probability(4004, 100 / 4000, 130)


def _of_records(**changes):
    return _sampling(**{"max_records_per_unit": 3, "num_records": 250, **changes})


def test_single_records_of_persons():
    sampling = _of_records(expected_batch_size=125, max_batch_size=160)
    assert sampling.sampling_probability == 0.5 and sampling.num_examples == 100
    assert sampling.rows == 160 and sampling.draws_per_unit == 3
    assert sampling.overflow_probability == overflow_probability(253, 0.5, 160)
    assert Sampling.from_dict(json.loads(json.dumps(sampling.to_dict()))) == sampling
    persons = _sampling(max_records_per_unit=3, max_batch_size=40)
    assert persons.rows == 120 and persons.rows_per_unit == 3 and persons.draws_per_unit == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"max_records_per_unit": None},
        {"num_records": 301},
        {"num_records": 12},
        {"num_records": 0},
        {"num_records": 250.0},
        {"kind": "shuffled"},
        {"kind": "allocated", "expected_batch_size": 10},
        {"kind": "declared_poisson"},
        {"kind": "microbatches", "microbatches": 2},
        {"kind": "full_batch", "expected_batch_size": 100},
        {"workers": 2},
        {"draw": "a"},
    ],
)
def test_records_of_persons_are_poisson_samples_by_one_worker_and_nothing_else(changes):
    with pytest.raises(ValueError, match="Argument `num_records`"):
        _of_records(**changes)
