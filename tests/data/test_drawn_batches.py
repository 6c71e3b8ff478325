"""Batches drawn ahead: drawn as accounted, whole, and trained on once.

Distributions are tested with a false-alarm rate of 1e-6 each.
"""

import json
import secrets
import shutil

import numpy as np
import processes
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp._compat.tensorflow import may_reorder
from tfdp.data.provenance.dataset_tags import walk
from tfdp.data.samplers import drawn_batches
from tfdp.data.sampling.keyed_membership import Membership, encoded_key
from tfdp.errors import PrivacyError

FALSE_ALARM = 1e-6
N, STEPS = 40, 6


def write_draw(directory, small, capacity=N, steps=STEPS):
    """A draw of the small data, as a pipeline would leave it."""
    x, y = small.data()
    signature = (
        tf.TensorSpec((3,), tf.float32), tf.TensorSpec((), tf.int32), tf.TensorSpec((), tf.float32),
    )  # fmt: skip
    membership = Membership(secrets.token_bytes(32), 10 / N, steps)
    members = [dict(membership.of(i)) for i in range(N)]
    (directory / "parts").mkdir(parents=True)
    names = []
    for step in range(steps):
        names.append(f"parts/{step}.tfrecord")
        drawn = [[x[i], y[i], np.float32(1)] for i in range(N) if step in members[i]]
        leaves = drawn_batches.padded_batch(drawn[:capacity], signature, capacity)
        with tf.io.TFRecordWriter(f"{directory}/{names[-1]}") as writer:
            writer.write(drawn_batches.encode_batch(leaves))
    sizes = [(directory / name).stat().st_size for name in names]
    drawn_batches.Manifest(
        secrets.token_hex(16), N, 10, steps, capacity,
        drawn_batches.encode_signature(signature), tuple(zip(names, sizes, strict=True)),
    ).write(directory)  # fmt: skip
    return directory, members


@pytest.fixture
def draw(tmp_path, small):
    return write_draw(tmp_path / "draw", small)


def in_another_process():
    """As if this process had not loaded anything yet."""
    drawn_batches._draws.clear()


@pytest.fixture(scope="module")
def memberships():
    """(3000, 20) whether each record is in each step, at q = 0.15."""
    membership = Membership(secrets.token_bytes(32), 0.15, 20)
    found = np.zeros((3000, 20), int)
    for key, row in enumerate(found):
        steps = [step for step, _ in membership.of(key)]
        assert len(set(steps)) == len(steps)
        row[steps] = 1
    return found


def test_each_record_takes_part_with_the_sampling_probability(memberships):
    records, steps = memberships.shape
    sizes = memberships.sum(0)  # of steps: Binomial(records, q)
    statistic = ((sizes - records * 0.15) ** 2).sum() / (records * 0.15 * 0.85)
    assert FALSE_ALARM / 2 < stats.chi2.sf(statistic, steps) < 1 - FALSE_ALARM / 2
    counts = np.bincount(memberships.sum(1), minlength=9)
    expected = stats.binom.pmf(np.arange(8), steps, 0.15) * records
    expected = np.append(expected, records - expected.sum())
    observed = np.append(counts[:8], counts[8:].sum())
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def test_steps_and_neighbouring_records_are_independent(memberships):
    records, steps = memberships.shape
    for lag in (1, 7):
        both = int((memberships[:, lag:] & memberships[:, :-lag]).sum())
        trials = records * (steps - lag)
        assert stats.binomtest(both, trials, 0.15**2).pvalue > FALSE_ALARM
        both = int((memberships[lag:] & memberships[:-lag]).sum())
        assert stats.binomtest(both, (records - lag) * steps, 0.15**2).pvalue > FALSE_ALARM


def test_of_a_person_any_k_records_take_part_and_others_in_other_steps():
    membership = Membership(b"a" * 32, 0.5, 64)  # a fixed secret: nothing is random here
    drawn = [tuple(membership.records("user 1", step, 5, 2)) for step in range(100)]
    assert len(set(drawn)) == 10  # all pairs below 5, sorted
    assert all(0 <= first < second < 5 for first, second in drawn)
    assert drawn[3] == tuple(membership.records("user 1", 3, 5, 2))
    # Of another person others, in the same steps.
    assert drawn != [tuple(membership.records("user 2", step, 5, 2)) for step in range(100)]
    assert membership.records("user 1", 3, 2, 2) == [0, 1]


def test_a_draw_is_a_function_of_secret_and_key_alone():
    one, again, other = (
        Membership(secret, 0.5, 64) for secret in (b"a" * 32, b"a" * 32, b"b" * 32)
    )
    assert one.of("user 1") == again.of("user 1")
    assert one.of("user 1") != other.of("user 1")
    assert one.of(1) != one.of("1") != one.of(b"1")
    assert encoded_key(np.int64(7)) == encoded_key(7)
    with pytest.raises(ValueError, match="Keys of records must be"):
        one.of(1.5)


def test_batches_are_read_as_they_were_written(draw, small):
    directory, members = draw
    batches = tfdp.data.load_batches(directory)
    sampling = tfdp.data.sampling_of(batches)
    assert (sampling.kind, sampling.num_examples, sampling.expected_batch_size) == (
        "poisson",
        N,
        10,
    )
    x, y = small.data()
    read = list(batches.as_numpy_iterator())
    assert len(read) == STEPS == batches.cardinality()
    assert not any(map(may_reorder, walk(batches)))
    for step, (xs, ys, weights) in enumerate(read):
        drawn = [i for i in range(N) if step in members[i]]
        np.testing.assert_array_equal(xs[: len(drawn)], x[drawn])
        np.testing.assert_array_equal(ys[: len(drawn)], y[drawn])
        assert xs.shape == (N, 3) and not xs[len(drawn) :].any()
        np.testing.assert_array_equal(weights, np.arange(N) < len(drawn))


def test_what_is_not_finished_or_damaged_is_refused(draw, tmp_path):
    directory, _ = draw
    with pytest.raises(ValueError, match="interrupted run of .* leaves no manifest"):
        tfdp.data.load_batches(tmp_path)
    path = directory / "parts" / "3.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged: parts/3.tfrecord"):
        tfdp.data.load_batches(directory)
    path.unlink()
    with pytest.raises(ValueError, match="Found: None bytes"):
        tfdp.data.load_batches(directory)


def test_a_draw_of_another_version_is_refused(draw):
    path = draw[0] / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 1}))
    with pytest.raises(ValueError, match="must be a manifest of version 2.*Received: version 1"):
        tfdp.data.load_batches(draw[0])


def test_a_draw_that_this_process_has_not_loaded_is_refused(draw, small):
    sampling = tfdp.data.sampling_of(tfdp.data.load_batches(draw[0]))
    in_another_process()
    with pytest.raises(PrivacyError, match="has not loaded the draw"):
        drawn_batches.refuse_used_draw(sampling, small.model().charge_history)


def test_a_manifest_says_nothing_about_who_was_drawn(small, tmp_path):
    fields = []
    for name in ("one", "two"):
        directory, _ = write_draw(tmp_path / name, small)
        one = json.loads((directory / "manifest.json").read_text())
        one.pop("identity")
        fields.append(one)
    assert fields[0] == fields[1]


def test_a_draw_trains_once(draw, small):
    directory, _ = draw
    batches = tfdp.data.load_batches(directory)
    model = small.model(noise_multiplier=2.0)
    model.fit(batches, epochs=2, steps_per_epoch=STEPS // 2, verbose=0)
    statement = model.privacy_statement(delta=0.01)
    event = tfdp.accounting.events.composition.compose(
        [(tfdp.accounting.events.composition.training_event(2.0, 10 / N), STEPS)]
    )
    assert statement.steps == STEPS
    assert any("the files of the draw" in text for text in statement.assumptions)
    assert statement.epsilon == tfdp.accounting.epsilon(event, 0.01)
    with pytest.raises(PrivacyError, match="You may train on a draw only once"):
        model.fit(batches, verbose=0)
    with pytest.raises(PrivacyError, match="You may train on a draw only once"):
        small.model().fit(tfdp.data.load_batches(directory), verbose=0)
    in_another_process()
    with pytest.raises(PrivacyError, match="You may train on a draw only once"):
        small.model().fit(tfdp.data.load_batches(directory), verbose=0)
    (directory / "TRAINED").unlink()  # or a copy of the directory: these weights know better
    in_another_process()
    with pytest.raises(PrivacyError, match="You may train on a draw only once"):
        model.fit(tfdp.data.load_batches(directory), verbose=0)
    assert model.privacy_statement(delta=0.01).epsilon == statement.epsilon


def test_neither_a_copy_of_a_draw_nor_one_without_its_mark_trains_again(draw, small, tmp_path):
    directory, _ = draw
    copy = shutil.copytree(directory, tmp_path / "copy")
    history = small.model().charge_history
    drawn_batches.mark_as_trained(tfdp.data.sampling_of(tfdp.data.load_batches(directory)))
    for again in (copy, directory):
        sampling = tfdp.data.sampling_of(tfdp.data.load_batches(again))
        with pytest.raises(PrivacyError, match="You may train on a draw only once"):
            drawn_batches.refuse_used_draw(sampling, history)
        (directory / "TRAINED").unlink(missing_ok=True)


def test_a_draw_in_an_object_store_trains_once(draw, small):
    directory, _ = draw
    store = f"ram://{secrets.token_hex(8)}"
    tf.io.gfile.makedirs(f"{store}/parts")
    for name in ("manifest.json", *(f"parts/{step}.tfrecord" for step in range(STEPS))):
        tf.io.gfile.copy(f"{directory}/{name}", f"{store}/{name}")
    sampling = tfdp.data.sampling_of(tfdp.data.load_batches(store))
    history = small.model().charge_history
    drawn_batches.refuse_used_draw(sampling, history)
    drawn_batches.mark_as_trained(sampling)
    in_another_process()
    tfdp.data.load_batches(store)
    with pytest.raises(PrivacyError, match="You may train on a draw only once"):
        drawn_batches.refuse_used_draw(sampling, history)


@pytest.mark.thorough
def test_a_map_of_a_draw_of_persons_keeps_to_the_rows_of_each(tmp_path):
    spec = tf.TensorSpec((), tf.float32)
    rows = np.arange(1, 7, dtype=np.float32)
    with tf.io.TFRecordWriter(f"{tmp_path}/0") as writer:
        writer.write(drawn_batches.encode_batch([rows, rows, np.ones(6, np.float32)]))
    signature = drawn_batches.encode_signature((spec, spec, spec))
    drawn_batches.Manifest(
        secrets.token_hex(16), 9, 2, 1, 3, signature, (("0", None),), max_records_per_unit=2
    ).write(tmp_path)
    batches = tfdp.data.load_batches(tmp_path)
    sampling = tfdp.data.sampling_of(batches)
    assert (sampling.max_records_per_unit, sampling.rows) == (2, 6)
    ((x, _, _),) = batches.map(lambda x, y, w: (x[::-1], y, w))
    np.testing.assert_array_equal(x, [2, 1, 4, 3, 6, 5])


def test_two_processes_that_begin_together_train_once(draw, small):
    directory, _ = draw
    sampling = tfdp.data.sampling_of(tfdp.data.load_batches(directory))
    drawn_batches.refuse_used_draw(sampling, small.model().charge_history)
    (directory / "TRAINED").write_text("the other process")
    with pytest.raises(PrivacyError, match="You may train on a draw only once"):
        drawn_batches.mark_as_trained(sampling)


def test_a_second_pass_in_one_fit_is_refused_before_the_first_step(draw, small):
    directory, _ = draw
    batches, model = tfdp.data.load_batches(directory), small.model(noise_multiplier=2.0)
    with pytest.raises(PrivacyError, match=r"epochs=2, steps_per_epoch=3\) uses the draw once"):
        model.fit(batches, epochs=2, verbose=0)
    with pytest.raises(PrivacyError, match=r"epochs=2, steps_per_epoch=4, for a draw of 6 steps"):
        model.fit(batches, epochs=2, steps_per_epoch=4, verbose=0)
    model.fit(batches, epochs=4, initial_epoch=3, verbose=0)  # nothing was lost by that
    assert model.privacy_statement(delta=0.01).steps == STEPS


def test_a_second_pass_gets_no_batch(draw, small):
    directory, _ = draw
    batches = tfdp.data.load_batches(directory)
    list(batches)  # whoever looks before training may
    small.model().fit(batches, steps_per_epoch=2, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="You may train on a draw only once"):
        list(batches)


@pytest.mark.thorough
def test_single_batches_are_taken_from_a_draw_once(draw, small):
    directory, _ = draw
    batches = tfdp.data.load_batches(directory)
    model = small.model(noise_multiplier=2.0)
    for batch in model.training_batches(batches):
        model.train_on_batch(*batch)
    assert model.privacy_statement(delta=0.01).steps == STEPS
    with pytest.raises(PrivacyError, match="You may train on a draw only once"):
        next(model.training_batches(batches))


def test_runs_on_one_draw_have_no_epsilon_together(draw):
    directory, _ = draw
    sampling = tfdp.data.sampling_of(tfdp.data.load_batches(directory))
    mechanism = tfdp.accounting.charges.mechanisms.PrivateTraining(2.0, 1.0, sampling, N)
    ledger = tfdp.accounting.Ledger(mechanism.entries(3, "one"))
    assert 0 < ledger.epsilon(0.01) < 1
    ledger.merge(tfdp.accounting.Ledger(mechanism.entries(3, "two")))
    assert ledger.epsilon(0.01) == float("inf")
    statement = tfdp.accounting.privacy_statement(ledger, delta=0.01)
    assert "trained on the same draw made ahead" in str(statement).replace("\n    ", " ")


def test_forward_noise_takes_no_draw(draw):
    directory, _ = draw
    sampling = tfdp.data.sampling_of(tfdp.data.load_batches(directory))
    with pytest.raises(ValueError, match="drawn ahead .* accounted for only with a DPOptimizer"):
        tfdp.accounting.charges.mechanisms.ForwardNoise(2.0, "zero_out", sampling, N)


@pytest.mark.thorough
def test_nothing_but_its_own_room_imports_beam():
    code = (
        "import sys, tfdp, tfdp.data, tfdp.models;"
        "print([m for m in sys.modules if 'beam' in m.lower()])"
    )
    assert processes.run(code).strip() == "[]"
