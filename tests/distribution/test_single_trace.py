"""Training under TensorFlow's TPUStrategy, emulated on CPU devices: one program for all replicas.

Bounds on measured standard deviations are 1% at 2e5 draws or more: more than 6 standard errors.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tpu_emulation

import tfdp
from tfdp import noise
from tfdp.data import declare_sampling, poisson_batches
from tfdp.distribution import checks, select_on_host, self_check
from tfdp.errors import PrivacyError
from tfdp.optimizers import DPOptimizer, RowAdagrad, RowSGD
from tfdp.optimizers.rows import row_optimizer
from tfdp.runtime.replicas import is_first_worker, is_multi_worker
from tfdp.selection import AdaFEST, ExponentialSelection

N, V, D, SIZE = 64, 40, 4, 30
SETTINGS = {"noise_multiplier": 0.0, "num_examples": N, "expected_batch_size": SIZE}


@pytest.fixture(autouse=True)
def no_self_check(monkeypatch):
    """It has tests of its own."""
    monkeypatch.setattr(self_check, "check_devices", lambda strategy: None)


def dense():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="tanh")])


def dense_data():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(N, 3)), generator.normal(size=(N, 2))
    return x.astype("float32"), y.astype("float32")


def sparse(rows=V, width=D):
    ids = keras.Input((3,), dtype="int64")
    x = tfdp.layers.SparseEmbedding(rows, width, combiner="sum", mask_zero=True, name="one")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(x))


def sparse_data():
    generator = np.random.default_rng(0)
    ids = generator.integers(0, V, (N, 3)) % generator.integers(1, V, (N, 3))
    return ids, generator.normal(size=(N, 1)).astype("float32")


def batches(data, **kwargs):
    """Poisson batches of more rows than a number of replicas divides."""
    return poisson_batches(data, SIZE, max_batch_size=39, seed=3, **kwargs)


@pytest.mark.thorough
def test_updates_losses_and_ledger_are_those_of_one_replica(replicas, tpus):
    found = []
    # With amsgrad both run Keras' operations: TensorFlow's one for Adam rounds 1 - β₂ otherwise.
    inner = functools.partial(keras.optimizers.Adam, 0.1, amsgrad=True)
    for strategies, count in ((replicas, 1), (tpus, 2)):
        eager = {"run_eagerly": count == 1}  # a trace takes longer than two steps
        model = strategies.model(count, dense, inner=inner, compile_kwargs=eager, **SETTINGS)
        changes, history = strategies.train(model, batches(dense_data()))
        assert model.optimizer.steps_taken == 2
        found.append((changes, history["loss"], model.ledger))
    assert len(tpus.programs) == 1 and tpus.in_agreement(model.trainable_variables)
    for a, b in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6)
    assert found[0][2] == found[1][2]


@pytest.mark.thorough
def test_survivors_and_sparse_updates_are_those_of_one_replica(replicas, tpus):
    found = []
    for strategies, count in ((replicas, 1), (tpus, 2)):
        model = strategies.model(
            count, sparse, selection=AdaFEST(2.0, capacity=20), rows=lambda: RowAdagrad(0.1),
            **SETTINGS,
        )  # fmt: skip
        changes, history = strategies.train(model, batches(sparse_data()))
        assert model.optimizer.steps_taken == 2
        found.append((changes, history))
    survivors = np.flatnonzero(np.any(found[0][0][0], axis=1))
    assert 0 < len(survivors) < V // 2
    for a, b in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for name in ("gradient_size", "capacity_reached"):
        np.testing.assert_allclose(found[0][1][name], found[1][1][name], rtol=1e-6)
    assert tpus.in_agreement(model.trainable_variables + model.optimizer.variables)
    assert impossible_operations(tpus.programs[-1]) == []


def test_noise_is_added_once_and_every_replica_agrees(tpus):
    # No example takes part: what moves is noise alone.
    sigma, clip_norm = 2.0, 3.0
    model = tpus.model(
        2,
        lambda: keras.Sequential([keras.Input((500,)), keras.layers.Dense(500, use_bias=False)]),
        noise_multiplier=sigma, clip_norm=clip_norm, num_examples=N, expected_batch_size=SIZE,
    )  # fmt: skip
    data = (np.zeros((N, 500), "float32"), np.zeros((N, 500), "float32"), np.zeros(N, "float32"))
    (kernel,), (later,) = tpus.changes_of_steps(model, batches(data, steps_per_epoch=2))
    assert kernel.std() == pytest.approx(sigma * clip_norm / SIZE, rel=0.01)
    assert abs(np.corrcoef(kernel.ravel(), later.ravel())[0, 1]) < 0.01
    assert tpus.in_agreement(model.trainable_variables)
    assert model.optimizer.steps_taken == 2
    for variable in model.optimizer.hidden_variables:
        assert len({v.numpy().tobytes() for v in variable.values}) == 1


@pytest.mark.filterwarnings("ignore:AdaFEST's threshold of")
@pytest.mark.thorough
def test_surviving_rows_are_noised_once_and_every_replica_agrees(tpus, monkeypatch):
    sigma, ratio, rows, threshold = 2.0, 0.5, 30_000, 2.5
    # The emulation leaves out places without a row as XLA does, but not inside of a loop.
    monkeypatch.setattr(row_optimizer, "XLA_ROWS", rows)
    selection = AdaFEST(threshold, noise_ratio=ratio, capacity=rows // 2)
    model = tpus.model(
        2, lambda: sparse(rows, 64), selection=selection, rows=lambda: RowSGD(1.0),
        **{**SETTINGS, "noise_multiplier": sigma},
    )  # fmt: skip
    data = (*sparse_data(), np.zeros(N, "float32"))
    (change, *_), history = tpus.train(model, batches(data, steps_per_epoch=1))
    assert history["capacity_reached"] == [0.0]
    sigma_1 = selection.contribution_noise_multiplier(sigma)
    sigma_2 = selection.gradient_noise_multiplier(sigma)
    expected = rows * 0.5 * tf.math.erfc(threshold / sigma_1 / np.sqrt(2)).numpy()
    survivors = np.any(change, axis=1)
    assert abs(survivors.sum() - expected) < 6 * np.sqrt(expected)
    assert change[survivors].std() == pytest.approx(sigma_2 / SIZE, rel=0.01)
    assert survivors.sum() * 64 > 2e5
    assert tpus.in_agreement(model.trainable_variables)


@pytest.mark.thorough
def test_steps_without_a_dp_optimizer_are_charged_once(tpus):
    with tpus.strategy(2).scope():
        model = tfdp.make_private(dense())
        model.compile("sgd", loss="mse")
    model.fit(poisson_batches(dense_data(), SIZE, max_batch_size=40), verbose=0)
    assert model.charge_history.runs[-1][1] == 2


def test_a_tpu_that_is_reached_over_the_network_is_no_cluster_of_workers(tpus):
    strategy = tpus.strategy(2)
    spec = tf.train.ClusterSpec({"worker": ["10.0.0.2:8470"]})
    strategy.cluster_resolver.cluster_spec.return_value = spec
    assert not is_multi_worker(strategy) and is_first_worker(strategy)


@pytest.mark.thorough
def test_noise_drawn_in_parts_is_that_of_one_device(tpus, monkeypatch):
    # The counter is advanced in a loop then, in each replica's own copy.
    monkeypatch.setattr(noise.training_source, "_LARGEST_DRAW", 64)
    strategy = tpus.strategy(2)
    with strategy.scope():
        there = noise.NoiseSource(seed=5)
    run = tf.function(lambda: strategy.run(lambda: there.normal((200,), 1.0)), autograph=False)
    expected = noise.NoiseSource(seed=5).normal((200,), 1.0).numpy()
    for found in strategy.experimental_local_results(run()):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def impossible_operations(program):
    """Names of what a TPU cannot run: strings, Python, and shapes that depend on values."""
    types = (
        "Where", "Unique", "UniqueV2", "BooleanMask", "DynamicPartition", "NonMaxSuppression",
        "PyFunc", "PyFuncStateless", "EagerPyFunc", "Assert", "PrintV2", "VarHandleOp",
        "RngReadAndSkip", "RandomUniform", "RandomStandardNormal", "If",
    )  # fmt: skip
    found = []
    for op in tpu_emulation.operations_of_program(program):
        tensors = [*op.inputs, *op.outputs]
        compiled_apart = (
            op.type.endswith("PartitionedCall") and "_XlaMustCompile" in op.node_def.attr
        )
        unknown = any(t.dtype in (tf.string, tf.variant) for t in tensors)
        # A TPU runs conditionals whose branches neither have state nor decide about shapes.
        decides = op.type == "StatelessIf" and not all(
            t.shape.is_fully_defined() for t in op.outputs
        )
        if op.type in types or compiled_apart or unknown or decides:
            found.append(f"{op.type} {op.name}")
    return found


class Ordered(keras.layers.Layer):
    """Adds a constant that is made of operations, and that could be rows of examples."""

    def call(self, x):
        places = tf.range(4)
        return x[:, tf.newaxis] + tf.cast(places[:, tf.newaxis] < places, x.dtype)


def test_a_step_of_ones_own_is_planned_and_proved_in_the_program_of_a_tpu(monkeypatch):
    tpu_emulation.products_of(monkeypatch, float32=True)
    strategy = tpu_emulation.strategy(2)
    with strategy.scope():
        inside = [keras.layers.Dense(4), keras.layers.Dropout(0.5), Ordered()]
        layers = [*inside, keras.layers.Flatten(), keras.layers.Dense(4)]
        model = tfdp.make_private(keras.Sequential([keras.Input((4,)), *layers]))
        model.compile(DPOptimizer(keras.optimizers.Adam(), **SETTINGS), loss="mse")
    model.make_train_function()
    parts = [tf.fill([2, 4], float(i)) for i in range(2)]

    @tf.function(autograph=False)
    def step(*parts):
        x = strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )
        return strategy.run(model.train_step, args=((x, x),))

    assert impossible_operations(step.get_concrete_function(*parts).graph) == []


@pytest.mark.thorough
def test_the_program_of_dpformer_has_nothing_that_a_tpu_cannot_run(monkeypatch):
    tpu_emulation.products_of(monkeypatch, float32=True)
    strategy = tpu_emulation.strategy(2)
    with strategy.scope():
        model = tfdp.models.DPFormer(5, 4, dim=2, num_blocks=1, num_heads=1)
        model.build((None, 4))
        model.compile(DPOptimizer(keras.optimizers.Adam(), **SETTINGS))
    model.make_train_function()
    ids = [tf.fill([2, 4], i + 1) for i in range(2)]

    @tf.function(autograph=False)
    def step(*ids):
        x = strategy.experimental_distribute_values_from_function(
            lambda context: ids[context.replica_id_in_sync_group]
        )
        return strategy.run(model.train_step, args=((x, x),))

    program = step.get_concrete_function(*ids).graph
    assert len(list(tpu_emulation.operations_of_program(program))) > 1000
    assert impossible_operations(program) == []


def test_a_batch_given_whole_to_each_replica_is_refused(tpus):
    model = tpus.model(2, dense, **SETTINGS)
    x, y = dense_data()
    with pytest.raises(PrivacyError, match="Each of 2 replicas received the same batch"):
        model.train_on_batch(x, y)

    def loop(step):
        strategy = model.distribute_strategy
        run = tf.function(lambda *data: strategy.run(step, args=(data,)), autograph=False)
        run(tf.constant(x), tf.constant(y))

    with pytest.raises(PrivacyError, match="Each of 2 replicas received the same batch"):
        loop(model.train_step)
    with pytest.raises(PrivacyError, match="tfdp cannot tell"):
        loop(tf.function(model.train_step, autograph=False))
    with pytest.raises(PrivacyError, match="made by tfdp.data"):
        model.fit(x, y, batch_size=SIZE, verbose=0)


@pytest.mark.parametrize("count", [1, 2])
def test_an_optimizer_made_outside_the_scope_is_refused(tpus, count):
    with tpus.strategy(count).scope():
        model = tfdp.make_private(dense())
        inner = keras.optimizers.SGD()
    with pytest.raises(PrivacyError, match="strategy.scope"):
        model.compile(DPOptimizer(inner, **SETTINGS), loss="mse")


@pytest.mark.parametrize("count", [1, 2])
def test_jit_compile_is_refused(tpus, count):
    with pytest.raises(PrivacyError, match="compiles every step itself"):
        tpus.model(count, dense, compile_kwargs={"jit_compile": True}, **SETTINGS)


def test_products_of_bfloat16_are_refused(tpus, monkeypatch):
    # What TensorFlow does on TPUs unless told otherwise; norms would not bound what is released.
    tpu_emulation.products_of(monkeypatch, float32=False)
    with pytest.raises(PrivacyError, match="bfloat16"):
        tpus.model(1, dense, **SETTINGS)


@pytest.mark.parametrize("selection", [AdaFEST(2.0), ExponentialSelection(3)])
def test_a_selection_of_any_number_of_rows_is_refused(tpus, selection):
    with pytest.raises(PrivacyError, match="under TPUStrategy needs a number of rows"):
        tpus.model(1, sparse, selection=selection, rows=lambda: RowSGD(1.0), **SETTINGS)


@pytest.mark.thorough
def test_rows_chosen_on_the_host_are_those_of_the_step(tpus):
    def model():
        return tpus.model(
            2, sparse, selection=AdaFEST(2.0, capacity=9), rows=lambda: RowSGD(1.0),
            **SETTINGS,
        )  # fmt: skip

    expected, _ = tpus.train(model(), batches(sparse_data()))
    on_host = model()
    chosen = select_on_host(batches(sparse_data()), on_host)
    found, _ = tpus.train(on_host, chosen)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    stddev = on_host.optimizer.charging.host_noise_stddev()
    assert not isinstance(stddev, tf.distribute.DistributedValues)
    with (
        on_host.distribute_strategy.scope(),
        pytest.raises(PrivacyError, match="outside `strategy"),
    ):
        select_on_host(batches(sparse_data()), on_host)


def test_noise_of_layers_is_refused(tpus):
    with tpus.strategy(2).scope(), pytest.raises(PrivacyError, match="differ from replica"):
        tfdp.layers.DPForwardNoise(1.0, 1.0)(tf.ones([2, 3]), training=True)


def test_batches_of_unknown_size_are_refused(tpus):
    model = tpus.model(1, dense, **SETTINGS)
    ragged = tf.data.Dataset.from_tensor_slices(dense_data()).batch(SIZE)
    with pytest.raises(PrivacyError, match="batches of one size"):
        model.fit(declare_sampling(ragged, "poisson", N, SIZE), verbose=0)
    model = tpus.model(2, dense, compile_kwargs={"steps_per_execution": 2}, **SETTINGS)
    with pytest.raises(PrivacyError, match="remove `steps_per_execution`"):
        model.fit(batches(dense_data()), verbose=0)


def test_tpus_of_several_hosts_are_refused(tpus):
    strategy = tpus.strategy(2)
    strategy.extended._tpu_devices[1, 0] = "/job:worker/replica:0/task:1/device:TPU:0"
    with pytest.raises(PrivacyError, match="Each host of a TPU pod"):
        checks.check_strategy(strategy, None)
