"""Tables in a TPU embedding train as those of one device.

TensorFlow's own TPUEmbeddingV0 runs here on the CPU; only its check for a TPU is replaced.
"""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_embedding_v1

import tfdp
from tfdp.clipping import PrivacyError
from tfdp.distribution.tpu_optimizers import tpu_optimizer
from tfdp.distribution.tpu_tables import TPUTables, embedding_class
from tfdp.layers import SparseEmbedding
from tfdp.optimizers import LazyAdam, RowAdagrad, RowSGD
from tfdp.selection import NO_ROW, AdaFEST

B, T, V, D, CAPACITY = 8, 3, 40, 2, 20
KERNEL = np.array([[3.0], [-2.0]], "float32")
KINDS = tf.tpu.experimental.HardwareFeature.EmbeddingFeature


def optimizer(rows, capacity=CAPACITY):
    selection = AdaFEST(1.2, noise_ratio=1.0, capacity=capacity)
    return tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.0), noise_multiplier=0.6, num_examples=100,
        expected_batch_size=B, clip_norm=0.5, selection=selection, embedding_optimizer=rows, seed=3,
    )  # fmt: skip


def layers():
    return [
        SparseEmbedding(
            V, D, embeddings_initializer=keras.initializers.RandomNormal(seed=s), name=n
        )
        for s, n in enumerate(("one", "two"))
    ]


def tables(rows, **kwargs):
    with mock.patch.object(tpu_embedding_v1.tpu_strategy, "TPUStrategyV2", tf.distribute.Strategy):
        made = TPUTables(optimizer(rows, **kwargs), layers(), embedding_class(KINDS.UNSUPPORTED))
    made.optimizer.charging.begin(None)
    made.optimizer.refresh_entropy()
    return made


def values(found):
    return [t.numpy() for t in found.trainable_variables]


def batch(step):
    generator = np.random.default_rng(step)
    # Rows 0 to 4 are met by many examples, and by some twice; ids outside are padding.
    one = np.where(generator.random((B, T)) < 0.7, generator.integers(0, 5, (B, T)), 30 + step)
    two = generator.integers(-2, V + 2, (B, T))
    y = generator.normal(size=(B, 1)).astype("float32")
    return {"one": one, "two": two}, y


def loss_of(y):
    def losses(activations):
        summed = tf.add_n([tf.reduce_sum(a, 1) for a in activations.values()])
        return tf.reduce_sum(tf.square(y - tf.matmul(summed, KERNEL)), 1)

    return losses


def one_device(rows):
    """The same training by `make_private`, in a step that XLA compiles."""
    inputs = {n: keras.Input((T,), dtype="int64", name=f"{n}_ids") for n in ("one", "two")}
    looked_up = [layer(inputs[layer.name]) for layer in layers()]
    summed = keras.ops.sum(keras.layers.Concatenate(1)(looked_up), 1)
    head = keras.layers.Dense(1, use_bias=False, trainable=False)
    model = tfdp.make_private(keras.Model(inputs, head(summed)))
    head.set_weights([KERNEL])
    model.compile(optimizer(rows), loss="mse", jit_compile=True)
    return model


@pytest.mark.parametrize("rows", [RowSGD(0.5), RowAdagrad(0.5, epsilon=0)], ids=["sgd", "adagrad"])
def test_exactly_the_survivors_change_and_as_on_one_device(rows):
    make = lambda: type(rows).from_config(rows.get_config())  # noqa: E731
    expected, found = one_device(make()), tables(make())
    step = tf.function(
        lambda ids, y, present: found.step(ids, loss_of(y), present), autograph=False
    )
    before = values(found)
    for a, b in zip(before, values(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    by_noise_alone = looked_up_in_vain = 0
    present = np.arange(B) < B - 1
    for i in range(2):
        ids, y = batch(i)
        start = values(found)
        survivors = step(ids, tf.constant(y), tf.constant(present))
        for name, old, new in zip(("one", "two"), start, values(found), strict=True):
            rows_of_step = survivors[name].numpy()
            rows_of_step = set(rows_of_step[rows_of_step < NO_ROW])
            assert set(np.flatnonzero((old != new).any(1))) == rows_of_step
            looked_up = set(ids[name][(ids[name] >= 0) & (ids[name] < V)])
            by_noise_alone += len(rows_of_step - looked_up)
            looked_up_in_vain += len(looked_up - rows_of_step)
        expected.train_on_batch(ids, y, sample_weight=present.astype("float32"))
        for a, b in zip(values(found), values(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)
    assert by_noise_alone > 3 and looked_up_in_vain > 3
    assert found.optimizer.charging.steps == expected.optimizer.charging.steps == 2
    assert found.optimizer.epsilon(1e-5) == expected.optimizer.epsilon(1e-5)
    if isinstance(rows, RowAdagrad):
        slots = [found.slots(name)["accumulators"] for name in ("one", "two")]
        wanted = [v for v in expected.optimizer.variables if "accumulator" in v.path]
        for a, b in zip(slots, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_once_the_budget_is_spent_no_example_is_used():
    ended = []
    for last in (1, 2):
        found = tables(RowSGD(1.0))
        found.optimizer.charging._limit.assign(1)  # as a budget of one step does
        for i in (0, last):
            ids, y = batch(i)
            start = values(found)
            found.step(ids, loss_of(y), tf.fill([B], True))
        assert found.optimizer.charging.steps == 1
        ended.append(values(found))
    for a, b, c in zip(*ended, start, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)  # noise alone


def test_before_charging_begins_nothing_changes_and_nothing_is_charged():
    with mock.patch.object(tpu_embedding_v1.tpu_strategy, "TPUStrategyV2", tf.distribute.Strategy):
        made = TPUTables(optimizer(RowSGD(1.0)), layers(), embedding_class(KINDS.UNSUPPORTED))
    start = values(made)
    ids, y = batch(0)
    made.step(ids, loss_of(y), tf.fill([B], True))
    for old, new in zip(start, values(made), strict=True):
        np.testing.assert_array_equal(old, new)
    assert made.optimizer.charging.steps == 0


@pytest.mark.parametrize(
    "rows, why",
    [
        (LazyAdam(), "its moments decay"),
        (tf.tpu.experimental.embedding.FTRL(), "its linear slot"),
        (tf.tpu.experimental.embedding.Adam(), "its moments decay"),
        (tf.tpu.experimental.embedding.AdagradMomentum(0.1, 0.9), "its momentum"),
        (tf.tpu.experimental.embedding.Adagrad(), "no other rule"),
        (RowSGD(weight_decay=0.1), "`weight_decay`"),
        (RowAdagrad(epsilon=0, row_wise=True), "row_wise=True"),
        (RowAdagrad(), "epsilon=1e-07"),
        (RowAdagrad(epsilon=0, initial_accumulator_value=0), "initial_accumulator_value=0"),
    ],
)
def test_optimizers_that_would_show_what_was_looked_up_or_do_not_exist_are_refused(rows, why):
    with pytest.raises(ValueError, match=why):
        tpu_optimizer(rows)


def test_the_reasons_hold_a_gradient_of_zero_moves_rows_under_adam_and_ftrl_and_no_others():
    zero = tf.IndexedSlices(tf.zeros((1, D)), tf.constant([1]))
    for rule in (RowSGD(1.0), RowAdagrad(1.0, epsilon=0), LazyAdam(1.0)):
        table = tf.Variable(tf.ones((3, D)))
        slots = [tf.Variable(tf.fill(shape, 0.1)) for _, shape, _ in rule.slots(table)]
        rule.update_with_slots(zero, table, slots, 1.0)
        unchanged = [bool(tf.reduce_all(s == 0.1)) for s in slots] + [
            bool(tf.reduce_all(table == 1.0))
        ]
        assert all(unchanged) != isinstance(rule, LazyAdam)
    table, accumulator, linear = (tf.Variable(tf.fill((3, D), v)) for v in (1.0, 0.1, 0.0))
    tf.raw_ops.ResourceSparseApplyFtrl(
        var=table.handle, accum=accumulator.handle, linear=linear.handle, grad=zero.values,
        indices=zero.indices, lr=0.1, l1=0.0, l2=0.0, lr_power=-0.5,
    )  # fmt: skip
    np.testing.assert_array_equal(table, [[1, 1], [0, 0], [1, 1]])


def test_the_tpu_optimizers_have_the_settings_of_the_row_optimizers():
    rows = RowAdagrad(0.25, initial_accumulator_value=0.5, epsilon=0)
    for mapped in (tpu_optimizer(RowSGD(0.25)), tpu_optimizer(rows)):
        assert mapped.use_gradient_accumulation is True
        assert float(mapped.learning_rate()) == 0.25
        assert mapped.weight_decay_factor is None and mapped.clip_gradient_min is None
    assert isinstance(mapped, tf.tpu.experimental.embedding.Adagrad)
    assert mapped.initial_accumulator_value == 0.5


@pytest.mark.parametrize(
    "feature, name", [(KINDS.V1, "TPUEmbedding"), (KINDS.V2, "TPUEmbeddingV2")]
)
def test_hardware_whose_embedding_was_never_tried_is_refused(feature, name):
    with pytest.raises(NotImplementedError, match=rf"\({name}\)"):
        embedding_class(feature)
    with pytest.raises(ValueError, match=f"embedding_type={name}"):
        TPUTables(optimizer(RowSGD()), layers(), getattr(tf.tpu.experimental.embedding, name))


def test_what_would_make_the_guarantee_untrue_is_refused():
    with pytest.raises(ValueError, match="capacity"):
        tables(RowSGD(), capacity=None)
    found = tables(RowSGD())
    ids, y = batch(0)
    present = tf.fill([B], True)
    with pytest.raises(PrivacyError, match=r"shape \(\) for examples of shape \(8,\)"):
        found.step(ids, lambda a: tf.reduce_sum(loss_of(y)(a)), present)
    with pytest.raises(ValueError, match=r"Received: \['one'\]"):
        found.step({"one": ids["one"]}, loss_of(y), present)
    with pytest.raises(ValueError, match=r"of shape \(8,\)"):
        found.step({**ids, "two": ids["two"][:, 0]}, loss_of(y), present)
    replicas = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with replicas.scope(), pytest.raises(NotImplementedError, match="2 replicas"):
        TPUTables(optimizer(RowSGD()), layers(), embedding_class(KINDS.UNSUPPORTED))
    assert found.optimizer.charging.steps == 0
