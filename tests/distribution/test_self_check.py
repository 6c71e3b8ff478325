"""What the self-check finds on devices that do not do what ε stands on."""

import contextlib

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf

import tfdp
from tfdp import noise
from tfdp.distribution import self_check
from tfdp.errors import PrivacyError
from tfdp.optimizers import logical_step
from tfdp.optimizers.charging import Charging
from tfdp.runtime import replicas as between_replicas


@pytest.mark.parametrize("count", slow.cases([1, 2, 4], slow=[1, 4]))
def test_it_finds_nothing_where_nothing_is_wrong(tpus, count):
    self_check.check_devices(tpus.strategy(count))


def test_it_finds_nothing_under_a_strategy_that_traces_every_replica(replicas):
    self_check.check_devices(replicas.strategy(2))


def replica():
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def short_tails(patch):
    true = noise.gaussian.standard_normal_from_bits

    def cut(bits):
        z = true(bits)
        return tf.clip_by_value(z, -5.678, 5.678) if tf.inside_function() else z

    patch.setattr(noise.gaussian, "standard_normal_from_bits", cut)


def short_tails_of_pairs(patch):
    true = noise.gaussian.normal_pair

    def cut(first, second):
        z = true(first, second)
        return [tf.clip_by_value(one, -5.678, 5.678) for one in z] if tf.inside_function() else z

    patch.setattr(noise.gaussian, "normal_pair", cut)


def noise_of_each_replica(patch):
    true = noise.NoiseSource.normal
    differs = lambda *args: true(*args) + tf.cast(replica(), tf.float32) * 1e-3  # noqa: E731
    patch.setattr(noise.NoiseSource, "normal", differs)


def counter_twice(patch):
    true = noise.NoiseSource._advance

    def advance(self, size):
        found = true(self, size)
        true(self, size)
        return found

    patch.setattr(noise.NoiseSource, "_advance", advance)


def counter_of_first_replica_only(patch):
    advance = noise.NoiseSource._advance

    def once(self, size):
        before = self._counter.read_value()
        found = advance(self, size)
        self._counter.assign(tf.where(replica() == 0, self._counter.read_value(), before))
        return found

    patch.setattr(noise.NoiseSource, "_advance", once)


def carry_lost(patch):
    def advance(self, size):
        counter = self._counter.read_value()
        self._counter.assign(counter + [size + 1, 0])
        return tf.bitcast(self._key.read_value(), tf.uint64), tf.bitcast(counter, tf.uint64)

    patch.setattr(noise.NoiseSource, "_advance", advance)


def total_doubled(patch):
    true = between_replicas.all_reduce_sum
    patch.setattr(
        between_replicas, "all_reduce_sum", lambda tensors: [2 * t for t in true(tensors)]
    )


def total_of_own_part(patch):
    patch.setattr(between_replicas, "all_reduce_sum", list)


def parts_in_another_order(patch):
    true = between_replicas._gathered
    patch.setattr(between_replicas, "_gathered", lambda *args: tf.reverse(true(*args), axis=[0]))


def ids_cut_to_32_bits(patch):
    true = between_replicas._gathered

    def gathered(context, part):
        return tf.cast(tf.cast(true(context, part), tf.int32), part.dtype)

    patch.setattr(between_replicas, "_gathered", gathered)


def flags_lost(patch):
    true = between_replicas._gathered

    def gathered(context, part):
        whole = true(context, part)
        return tf.ones_like(whole) if part.dtype.is_bool else whole

    patch.setattr(between_replicas, "_gathered", gathered)


def called_twice(patch):
    def twice(true):
        def called(*args):
            true(*args)
            return true(*args)

        return called

    for name in ("run_once_per_step", "run_once_on_sums"):
        patch.setattr(self_check.replicas, name, twice(getattr(between_replicas, name)))


def totals_summed_again(patch):
    patch.setattr(between_replicas, "already_summed", lambda _: contextlib.nullcontext())


def charged_twice(patch):
    true = Charging.charge_step

    def charge(self):
        true(self)
        return true(self)

    patch.setattr(Charging, "charge_step", charge)


def step_without_noise(patch):
    def charged_only(self, sums, *_):
        self.charging.charge_step()
        return sums

    patch.setattr(logical_step, "charged_and_noised", charged_only)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "faults, found",
    [
        pytest.param(
            [short_tails, counter_twice, total_doubled, parts_in_another_order, charged_twice],
            ["tails", "counter", "total", "ids", "flags", "charged", "stepped"],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            [noise_of_each_replica, carry_lost, total_of_own_part, ids_cut_to_32_bits],
            ["drawn", "counter", "total", "ids", "stepped"],
            marks=pytest.mark.thorough,
        ),
        (
            [counter_of_first_replica_only, flags_lost, step_without_noise, short_tails_of_pairs],
            ["tails", "counter", "flags", "stepped"],
        ),
        pytest.param([totals_summed_again], ["applied", "stepped"], marks=pytest.mark.thorough),
        (
            [short_tails, total_doubled, parts_in_another_order, called_twice],
            ["tails", "drawn", "counter", "total", "ids", "flags", "calls", "charged", "stepped"],
        ),
    ],
)
def test_every_fault_is_found_and_named(tpus, monkeypatch, faults, found):
    # Each fault changes what is listed, alone or with one other.
    for fault in faults:
        fault(monkeypatch)
    with pytest.raises(PrivacyError, match="Nothing was trained") as error:
        self_check.check_devices(tpus.strategy(2))
    named = [name for name, what in self_check._WHAT.items() if what in str(error.value)]
    assert sorted(named) == sorted(found)


def test_fit_makes_it_once_and_trains_nothing_if_it_fails(tpus, monkeypatch):
    made = []
    monkeypatch.setattr(self_check, "check_devices", made.append)
    model = tpus.model(
        1, lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]),
        noise_multiplier=0.0, num_examples=8, expected_batch_size=8,
    )  # fmt: skip
    data = np.ones((8, 3), "float32"), np.full((8, 1), 9.0, "float32")  # of no gradient of 0
    batches = tfdp.data.poisson_batches(data, 8, steps_per_epoch=1)
    model.fit(batches, verbose=0)
    model.fit(batches, verbose=0)
    assert made == [model.distribute_strategy] and model.optimizer.steps_taken == 2

    def fails(strategy):
        raise PrivacyError("The self-check failed")

    monkeypatch.setattr(self_check, "check_devices", fails)
    model.compile(model.optimizer, loss="mse")
    before = model.get_weights()
    with pytest.raises(PrivacyError, match="self-check failed"):
        model.fit(batches, verbose=0)
    with pytest.raises(PrivacyError, match="self-check failed"):
        model.train_on_batch(*data)
    run = model.distribute_strategy.run
    step = tf.function(lambda: run(model.train_step, args=(data,)), autograph=False)
    with pytest.raises(PrivacyError, match="have not been checked"):
        step()
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.optimizer.steps_taken == 2
