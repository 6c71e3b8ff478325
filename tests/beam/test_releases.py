"""Releases of logs are those of arrays in memory: the same sums, noise and charge."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.noise import NoiseSource

beam = pytest.importorskip("apache_beam")
pytest.importorskip("tfdp.beam")

PERSONS, ITEMS, LENGTH, MOST = 40, 9, 6, 3
GENERATOR = np.random.default_rng(0)
IDS = GENERATOR.integers(0, ITEMS + 1, (90, LENGTH))
OWNERS = np.repeat(np.arange(PERSONS), np.resize([1, 2, 3, 3], PERSONS))[:90]
OWNERS = np.concatenate([OWNERS, np.full(90 - len(OWNERS), 0)])
OWNERS = OWNERS[np.lexsort((np.arange(90), OWNERS))]
KEPT = np.concatenate([np.flatnonzero(OWNERS == p)[:MOST] for p in range(PERSONS)])
IDS, OWNERS = IDS[KEPT], OWNERS[KEPT]  # nobody has more than MOST records


def log_of(tmp_path, records, most=MOST):
    from tfdp.beam import Log

    records = list(records)
    return Log(lambda: beam.Create(records), tmp_path, most)


def sequences():
    for i in GENERATOR.permutation(len(IDS)):
        yield f"p{OWNERS[i]}", IDS[i][IDS[i] > 0].tolist()


def in_memory(**more):
    # A record is its inputs and its last label.
    y = np.roll(IDS, -1, axis=1)
    y[:, -1] = IDS[:, -1]
    return (IDS[:, :-1], y[:, 1:]), {"privacy_ids": OWNERS, "max_records_per_unit": MOST, **more}


def same_but_for_names(one, other):
    one, other = dict(one), dict(other)
    assert one.pop("release") != other.pop("release")
    assert one == other


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_frequencies_of_a_log_are_those_in_memory(tmp_path, monkeypatch, mechanism):
    monkeypatch.setattr("tfdp.data.releases.frequency.NoiseSource", lambda: NoiseSource(3))
    train, given = in_memory(num_items=ITEMS)
    wanted = tfdp.data.private_frequency(train, 1.0, mechanism=mechanism, **given)
    found = tfdp.beam.private_frequency(
        log_of(tmp_path, sequences()), 1.0, mechanism=mechanism, num_items=ITEMS, length=LENGTH
    )
    np.testing.assert_array_equal(found.probabilities, wanted.probabilities)
    assert found.event == wanted.event and found.num_examples == wanted.num_examples == PERSONS
    same_but_for_names(found.details, wanted.details)
    assert not list(tmp_path.iterdir())  # of the sums without noise nothing is left


@pytest.mark.parametrize("symmetric", [False, True])
def test_transitions_of_a_log_are_those_in_memory(tmp_path, symmetric):
    train, given = in_memory(num_items=ITEMS)
    settings = {"noise_multiplier": 0.3, "window": 2, "symmetric": symmetric}
    wanted = tfdp.data.private_transitions(train, source=NoiseSource(5), **settings, **given)
    found = tfdp.beam.private_transitions(
        log_of(tmp_path, sequences()), num_items=ITEMS, length=LENGTH, source=NoiseSource(5),
        **settings,
    )  # fmt: skip
    assert len(found.indices) > 5
    for name in ("indices", "values", "popularity"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert found.event == wanted.event and found.num_examples == wanted.num_examples
    same_but_for_names(found.details, wanted.details)
    assert any("pipeline" in text for text in found.privacy_assumptions)
    assert not list(tmp_path.iterdir())


def test_the_most_frequent_values_of_a_log_are_those_in_memory(tmp_path):
    words, shop = IDS - 1, IDS[:, 0]
    records = [
        (int(o), {"words": w.tolist(), "shop": int(s)})
        for o, w, s in zip(OWNERS, words, shop, strict=True)
    ]
    sizes = {"shop": ITEMS + 1, "words": ITEMS}
    given = {"max_values": {"words": 4}, "k": {"words": 3, "shop": 2}, "epsilon": 5.0}
    wanted = tfdp.selection.private_top_k(
        {"shop": shop, "words": words}, sizes, source=NoiseSource(7), privacy_ids=OWNERS,
        max_records_per_unit=MOST, **given,
    )  # fmt: skip
    found = tfdp.beam.private_top_k(
        log_of(tmp_path, records), sizes, widths={"words": LENGTH, "shop": 1},
        source=NoiseSource(7), **given,
    )  # fmt: skip
    for name in sizes:
        np.testing.assert_array_equal(found.rows[name], wanted.rows[name])
    assert found.event == wanted.event
    same_but_for_names(found.details, wanted.details)


def test_of_a_person_with_many_records_few_count(tmp_path):
    records = [("one", [i % ITEMS + 1]) for i in range(500)] + [("other", [1])]
    log, sums = log_of(tmp_path, records, most=2), []

    def noiseless(self, tensors, *args):
        sums.append(np.concatenate([t.numpy().ravel() for t in tensors]))
        return [tf.cast(t, tf.float64) for t in tensors]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseSource, "release", noiseless)
        found = tfdp.beam.private_frequency(log, 1.0, num_items=ITEMS, length=1)
    assert found.num_examples == 2 and sums[0].sum() in (2, 3)
    assert found.details["sensitivity"] == 2**0.5  # k·L counts of a person may change


def in_windows(records):
    """A source that puts every record into a window of its own, as logs by the hour do."""
    stamped = [beam.window.TimestampedValue(one, 100 * i) for i, one in enumerate(records)]
    windows = beam.WindowInto(beam.window.FixedWindows(60))

    class Source(beam.PTransform):
        def expand(self, begin):
            return begin | beam.Create(stamped) | beam.Map(lambda one: one) | windows

    return Source


def test_a_person_is_one_in_all_windows(tmp_path):
    from tfdp.beam import Log

    records, sums = [("one", [i % ITEMS + 1]) for i in range(30)] + [("other", [1])], []

    def noiseless(self, tensors, *args):
        sums.append(np.concatenate([t.numpy().ravel() for t in tensors]))
        return [tf.cast(t, tf.float64) for t in tensors]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseSource, "release", noiseless)
        found = tfdp.beam.private_frequency(
            Log(in_windows(records), tmp_path, 2), 1.0, num_items=ITEMS, length=1
        )
    assert found.num_examples == 2 and sums[0].sum() in (2, 3)


def test_wrong_records_and_arguments_are_refused(tmp_path):
    frequency = tfdp.beam.private_frequency
    with pytest.raises(Exception, match=f"ids from 0 .padding. to num_items={ITEMS}"):
        frequency(log_of(tmp_path, [(1, [ITEMS + 1])]), 1.0, num_items=ITEMS, length=2)
    with pytest.raises(Exception, match="must be lists or arrays of integer ids"):
        frequency(log_of(tmp_path, [(1, [0.5])]), 1.0, num_items=ITEMS, length=2)
    with pytest.raises(Exception, match="at most widths"):
        tfdp.beam.private_top_k(log_of(tmp_path, [(1, {"f": [1, 2]})]), {"f": 4}, 1, 1.0,
                                widths={"f": 1})  # fmt: skip
    with pytest.raises(ValueError, match="`max_records_per_unit` must be"):
        log_of(tmp_path, [], most=0)
    with pytest.raises(ValueError, match="must be a function that returns a PTransform"):
        tfdp.beam.Log(beam.Create([]), tmp_path)
    assert not list(tmp_path.iterdir())
