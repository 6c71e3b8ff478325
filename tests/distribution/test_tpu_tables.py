"""Tables in a TPU embedding train as those of one device.

TensorFlow's own TPUEmbeddingV0 runs here on the CPU, only its check for a TPU replaced. The other
two classes run on TPUs alone: doubles stand in for them, and their own code is traced, not run.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tpu_emulation
from distribution.tpu_embeddings import KINDS, SPARSE_CORES, hardware, program_of
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2

import tfdp
from tfdp.distribution import select_on_host
from tfdp.errors import PrivacyError
from tfdp.experimental.tpu import resident_models
from tfdp.experimental.tpu.optimizers import tpu_optimizer
from tfdp.layers import SparseEmbedding
from tfdp.optimizers import LazyAdam, RowAdagrad, RowSGD
from tfdp.selection import AdaFEST

N, T, V, D, CAPACITY = 39, 3, 41, 2, 29
SIZE = N + 1  # the capacity of full batches, in equal parts for 2 SparseCores of each of 4 replicas
TABLES = ("one", "two")
EAGERLY = {"run_eagerly": True}  # a trace takes longer than a step or two
RULES = {"sgd": lambda: RowSGD(0.5), "adagrad": lambda: RowAdagrad(0.5, epsilon=0)}


def data():
    generator = np.random.default_rng(0)
    # Rows 0 to 4 are met by many examples, and by some twice.
    ids = np.where(generator.random((N, T)) < 0.6, generator.integers(0, 5, (N, T)),
                   generator.integers(0, V, (N, T)))  # fmt: skip
    return ids, generator.normal(size=(N, 1)).astype("float32")


def network(placement):
    """Two tables: one called twice, one combined in the model and padded with id 0."""
    ids = keras.Input((T,), dtype="int64")
    one, two = (
        SparseEmbedding(
            V, D, name=name, placement=placement, combiner=combiner, mask_zero=bool(combiner),
            embeddings_initializer=keras.initializers.RandomNormal(seed=seed),
        )
        for seed, (name, combiner) in enumerate(zip(TABLES, (None, "mean"), strict=True))
    )  # fmt: skip
    parts = [keras.layers.Flatten()(one(ids)), one(ids[:, 0]), two(ids)]
    x = keras.layers.Concatenate()(parts)
    kernel = keras.initializers.RandomNormal(seed=7)
    return keras.Model(ids, keras.layers.Dense(1, kernel_initializer=kernel)(x))


def compiled(rows, placement="tpu", sigma=0.4, strategy=None, network=network, **kwargs):
    options = {"seed": 3, "clip_norm": 0.5, "expected_batch_size": N, "num_examples": N, **kwargs}
    selection = options.pop("selection", AdaFEST(1.2, noise_ratio=1.0, capacity=CAPACITY))
    compiling = {
        "jit_compile": options.pop("jit_compile", "auto"),
        "run_eagerly": options.pop("run_eagerly", False),
        "loss": options.pop("loss", "mse"),
    }
    with strategy.scope() if strategy else contextlib.nullcontext():
        # The check looks at a batch before the first step: the rows of the steps are other draws.
        model = tfdp.make_private(network(placement), validate=False)
        model.compile(
            tfdp.optimizers.DPOptimizer(
                keras.optimizers.SGD(0.1), noise_multiplier=sigma, selection=selection,
                embedding_optimizer=rows(), **options,
            ),
            **compiling,
        )  # fmt: skip
    return model


def batches(model, steps=2):
    drawn = tfdp.data.poisson_batches(data(), N, steps_per_epoch=steps)  # q = 1
    return select_on_host(drawn, model)


def tables(model):
    layers = [model.get_layer(name) for name in TABLES]
    return [
        layer.embeddings.numpy()
        if layer.external_table is None
        else layer.external_table.to_arrays()["0"]
        for layer in layers
    ]


def same_start(model, other):
    """Gives the held tables the values of the ordinary ones."""
    for name, values in zip(TABLES, tables(other), strict=True):
        model.get_layer(name).external_table.load({"0": values})


@pytest.fixture(scope="module")
def on_one_device():
    """Ordinary tables, and what two steps make of them; compiled they are of a fixed size."""
    known = {}

    def get(rule, sigma, jit_compile="auto"):
        if (rule, sigma, jit_compile) not in known:
            eager = jit_compile == "auto"  # a trace takes longer than two steps
            model = compiled(RULES[rule], None, sigma, jit_compile=jit_compile, run_eagerly=eager)
            before = tables(model)
            history = model.fit(batches(model), verbose=0).history
            dense = model.get_weights()[-2:]
            known[rule, sigma, jit_compile] = (before, tables(model), dense, history, model)
        return known[rule, sigma, jit_compile]

    return get


@pytest.mark.thorough
@pytest.mark.parametrize("rule, sigma, jit_compile", [("sgd", 0.0, "auto"), ("adagrad", 0.4, True)])
def test_v0_changes_exactly_the_survivors_and_as_on_one_device(
    rule, sigma, jit_compile, on_one_device
):
    before, expected, dense, history, other = on_one_device(rule, sigma, jit_compile)
    with hardware(KINDS.UNSUPPORTED):
        model = compiled(RULES[rule], sigma=sigma, jit_compile=jit_compile)
        found = model.fit(batches(model), verbose=0).history
    assert type(model.get_layer("one").external_table.holder._engine.embedding).__name__ == (
        "TPUEmbeddingV0"
    )
    for start, a, b in zip(before, tables(model), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
        changed = (a != start).any(1)
        np.testing.assert_array_equal(changed, (b != start).any(1))
        assert 3 < changed.sum() < V - 3
    for a, b in zip(model.get_weights()[-2:], dense, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    assert found["gradient_size"] == history["gradient_size"]
    assert model.optimizer.steps_taken == 2
    assert model.optimizer.epsilon(1e-5) == other.optimizer.epsilon(1e-5)
    if rule == "adagrad":
        slots = [model.get_layer(n).external_table.to_arrays()["accumulators"] for n in TABLES]
        wanted = [v for v in other.optimizer.variables if "accumulator" in v.path]
        for a, b in zip(slots, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind, several, rule, sigma",
    [
        # Without noise: a step that is not compiled advances the source further than one that is.
        pytest.param(KINDS.V1, None, "adagrad", 0.0, marks=pytest.mark.thorough),
        # Keras looks at a batch before it trains on several replicas: its rows are other draws.
        pytest.param(KINDS.V1, "tpu", "sgd", 0.0, marks=pytest.mark.thorough),
        (KINDS.V2, "mirrored", "sgd", 0.0),
    ],
)
def test_engines_that_update_by_themselves_are_given_the_same(
    kind, several, rule, sigma, on_one_device, replicas, monkeypatch
):
    before, expected, dense, history, other = on_one_device(rule, sigma)
    strategy = None
    if several == "tpu":
        tpu_emulation.emulate(monkeypatch)
        strategy = tpu_emulation.strategy(2)
    elif several == "mirrored":
        strategy = replicas.strategy(4)
    with hardware(kind):
        model = compiled(RULES[rule], sigma=sigma, strategy=strategy)
        for name, values in zip(TABLES, before, strict=True):
            model.get_layer(name).external_table.load({"0": values})
        found = model.fit(batches(model), verbose=0).history
        assert model.get_layer("one").external_table.holder._engine.embedding.updates == 2
        for a, b in zip(tables(model), expected, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)
    for a, b in zip(model.get_weights(), dense, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    assert found["gradient_size"] == history["gradient_size"]
    assert model.optimizer.steps_taken == 2
    assert int(model.optimizer.embedding_optimizer.iterations.numpy()) == 2


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:AdaFEST's threshold of")
def test_noise_reaches_each_surviving_row_once_and_has_the_step_s_deviation(replicas):
    """False-alarm rate 1e-6: the sum of squares is chi-square."""
    from scipy import stats

    def scattered(placement):
        ids = keras.Input((1,), dtype="int64")
        layer = SparseEmbedding(40_000, 8, name="one", placement=placement)
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(layer(ids))))

    # Half of the rows survive.
    selection = AdaFEST(1e-9, noise_ratio=1.0, capacity=40_000)
    with hardware(KINDS.V1):
        model = compiled(
            lambda: RowSGD(1.0), sigma=1.5, strategy=replicas.strategy(2), selection=selection,
            network=scattered, clip_norm=1e-3,
        )  # fmt: skip
        drawn = tfdp.data.poisson_batches((data()[0][:, :1], data()[1]), N, steps_per_epoch=1)
        chosen = select_on_host(drawn, model)
        model.get_layer("one").external_table.load({"0": np.zeros((40_000, 8), "float32")})
        model.fit(chosen, verbose=0)
        rows = model.get_layer("one").external_table.to_arrays()["0"][V:]  # none of the data's ids
    survived = rows.any(1)
    # Of 160,000 draws one is exactly 0 with probability 5e-4, three with 2e-11.
    assert np.sum(survived != rows.all(1)) < 3 and 19_000 < survived.sum() < 21_000
    rows = rows[survived]
    stddev = selection.gradient_noise_multiplier(1.5) * 1e-3 / N
    squares = np.sum((rows.astype("float64") / stddev) ** 2)
    assert 5e-7 < stats.chi2.cdf(squares, rows.size) < 1 - 5e-7
    assert abs(rows.std() / stddev - 1) < 0.01


def train_on(strategy):
    with strategy.scope():
        model = compiled(RULES["adagrad"])
    model.fit(batches(model), verbose=0)


@pytest.mark.thorough
def test_tensorflow_s_own_tpu_embedding_takes_the_step():
    found = program_of(KINDS.V1, train_on)
    operations = {op.type: op for op in found if "TPUEmbedding" in op.type}
    assert list(operations) == [
        "EnqueueTPUEmbeddingArbitraryTensorBatch",
        "RecvTPUEmbeddingActivations",
        "SendTPUEmbeddingGradients",
    ]
    send = operations["SendTPUEmbeddingGradients"]
    config = tpu_embedding_configuration_pb2.TPUEmbeddingConfiguration()
    config.ParseFromString(send.get_attr("config"))
    assert not config.pipeline_execution_with_tensor_core
    for table, name in zip(config.table_descriptor, TABLES, strict=True):
        assert (table.name, table.vocabulary_size, table.dimension) == (name, V, D)
        rule = table.optimization_parameters
        assert rule.WhichOneof("parameters") == "adagrad"
        assert rule.gradient_accumulation_status == 1  # ENABLED
        assert not rule.weight_decay_factor and not rule.HasField("clipping_limits")
    shapes = [tuple(t.shape) for t in send.inputs]
    assert shapes == [(SIZE // 2, k, D) for k in (4, 1, 3, 1)] + [()]


@pytest.mark.thorough
def test_tensorflow_s_own_tpu_embedding_v2_takes_the_step():
    operations = program_of(KINDS.V2, train_on)
    kinds = [op.type for op in operations]
    assert kinds.count("XlaSparseDenseMatmulWithStaticBufferSize") == 2
    update = [op for op in operations if op.type.startswith("XlaSparseDenseMatmulGradWith")]
    assert [op.type for op in update] == [
        "XlaSparseDenseMatmulGradWithAdagradAndStaticBufferSize"
    ] * 2
    for op, ids in zip(update, (SIZE * 5 // 2, SIZE * 4 // 2), strict=True):
        assert (ids, 8) in [tuple(t.shape) for t in op.inputs]  # activations, then survivors
        assert op.get_attr("max_ids_per_sparse_core") == ids // SPARSE_CORES
    wrapped = [op for op in operations if op.type == "ConvertToSparseCoreCsrWrappedCooTensor"]
    assert not any(op.get_attr("allow_id_dropping") for op in wrapped) and len(wrapped) == 2


# Where there is no engine, the row optimizer has slots of its own, which the file does not hold.
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer 'row_adagrad'")
@pytest.mark.thorough
@pytest.mark.parametrize("kind", [KINDS.V1, KINDS.V2])
def test_a_model_is_saved_from_the_engine_and_served_without_one(kind, tmp_path):
    path = tmp_path / "model.keras"
    with hardware(kind):
        model = compiled(RULES["adagrad"])
        model.fit(batches(model), verbose=0)
        wanted = tables(model)
        model.save(path)
        if kind == KINDS.V2:
            more = keras.saving.load_model(path)
            assert more.optimizer.steps_taken == 2
            more.fit(batches(more, 1), verbose=0)  # starts from the saved rows
            for a, b in zip(tables(more), wanted, strict=True):
                assert 0 < (a == b).all(1).sum() < V
    ordinary = keras.saving.load_model(path)
    assert ordinary.get_layer("one").external_table is None
    for a, b in zip(tables(ordinary), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(ordinary.predict(data()[0], verbose=0)).all()
    assert "updated by TensorFlow" in str(model.privacy_statement())
    assert ordinary.ledger.epsilon(1e-5) == model.ledger.epsilon(1e-5)


@pytest.mark.thorough
def test_v0_keeps_its_slots_in_a_file(tmp_path):
    with hardware(KINDS.UNSUPPORTED):
        model = compiled(RULES["adagrad"])
        model.fit(batches(model, 1), verbose=0)
        model.save(tmp_path / "m.keras")
        again = keras.saving.load_model(tmp_path / "m.keras")
        resident_models.prepare(again, batches(again, 1))
        for name in TABLES:
            found, wanted = (m.get_layer(name).external_table.to_arrays() for m in (again, model))
            assert (wanted["accumulators"] != 0.1).any()
            for key in wanted:
                np.testing.assert_array_equal(found[key], wanted[key])


@pytest.mark.thorough
def test_a_table_in_two_models_has_one_ledger_and_is_trained_by_both():
    ids = keras.Input((T,), dtype="int64")
    with hardware(KINDS.UNSUPPORTED):
        shared = SparseEmbedding(V, D, placement="tpu", name="one")

        def model_of_shared():
            x = keras.layers.Flatten()(shared(ids))
            return compiled(
                lambda: RowSGD(1.0), network=lambda _: keras.Model(ids, keras.layers.Dense(1)(x))
            )

        first, values = model_of_shared(), []
        second = model_of_shared()
        for i, model in enumerate((first, second, first)):
            model.fit(batches(model, 1), verbose=0)
            values.append(shared.external_table.to_arrays()["0"].copy())
            assert model.optimizer.steps_taken == i + 1
        assert not np.array_equal(values[0], values[1]) and not np.array_equal(*values[1:])
        third = model_of_shared()
        assert third.optimizer.steps_taken == 3


def test_rows_chosen_for_other_tables_are_refused_and_would_train_nothing_without_noise():
    with hardware(KINDS.V1):
        model = compiled(
            lambda: RowSGD(1.0), sigma=0.0, selection=AdaFEST(1e-9, capacity=V), **EAGERLY
        )
        chosen = batches(model, 1)
        before = np.ones((V, D), "float32")
        for name in TABLES:
            model.get_layer(name).external_table.load({"0": before})

        def others(x, y, weight):
            look_ups = {**x.look_ups, "one": {**x.look_ups["one"]}}
            look_ups["one"]["survivors"] = (x.look_ups["one"]["survivors"] + 1) % V
            return x._replace(look_ups=look_ups), y, weight

        model.fit(chosen.map(others), verbose=0)
        for found in tables(model):
            np.testing.assert_array_equal(found, before)
        model.fit(chosen, verbose=0)
        assert all((found != before).any() for found in tables(model))
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(PrivacyError, match="or for other tables"),
        ):
            patch.setattr(AdaFEST, "version", 99)
            model.fit(chosen, verbose=0)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:No row of any sparse table survived")
def test_once_the_budget_is_spent_no_example_is_used():
    with hardware(KINDS.V1), pytest.MonkeyPatch.context() as patch:
        model = compiled(lambda: RowSGD(1.0), **EAGERLY)
        patch.setattr(model.optimizer.charging, "_is_allowed", lambda: tf.constant(False))
        for name in TABLES:
            model.get_layer(name).external_table.load({"0": np.zeros((V, D), "float32")})
        for shift in (0, 1):
            ids, y = data()
            drawn = tfdp.data.poisson_batches(((ids + shift) % V, y), N, steps_per_epoch=1)
            shown = model.fit(select_on_host(drawn, model), verbose=0).history
            assert shown["capacity_reached"] == [0.0] and shown["gradient_size"] == [0.0]
            assert model.optimizer.steps_taken == 0
            for found in tables(model):
                np.testing.assert_array_equal(found, 0)


def linear(y, prediction):
    """A loss whose gradient is finite where the prediction is not."""
    return prediction[:, 0]


def frozen_head(placement):
    """Of which no gradient reads what was looked up."""
    model = network(placement)
    model.layers[-1].trainable = False
    return model


@pytest.mark.thorough
@pytest.mark.parametrize(
    "loss, made", [("mse", network), pytest.param(linear, frozen_head, marks=pytest.mark.thorough)]
)
def test_gradients_of_other_ids_than_were_looked_up_reach_no_row_without_noise(loss, made):
    ids, y = data()
    # Rows 0 to 4 have many contributions and survive; most of the others do not.
    selection = AdaFEST(0.8, capacity=V)
    with hardware(KINDS.V1):
        model = compiled(
            lambda: RowSGD(1.0), sigma=0.0, selection=selection, loss=loss, network=made, **EAGERLY
        )
        drawn = tfdp.data.poisson_batches((ids, y), N, steps_per_epoch=1)
        chosen = select_on_host(
            drawn, model, lambda x: {"one": tf.concat([x[:, ::-1], x[:, :1]], 1), "two": x}
        )
        before = np.ones((V, D), "float32")
        for name in TABLES:
            model.get_layer(name).external_table.load({"0": before})
        shown = model.fit(chosen, verbose=0).history["loss"]
        survivors = next(iter(chosen))[0].survivors.numpy()
    assert np.isnan(shown).all()
    survivors = set(survivors[(survivors >= 0) & (survivors < V)])
    changed = set(np.flatnonzero((tables(model)[0] != before).any(1)))
    assert 2 < len(survivors) < len(np.unique(ids)) - 5 and changed <= survivors


@pytest.mark.thorough
def test_data_that_says_not_what_is_looked_up_is_refused():
    drawn = tfdp.data.poisson_batches(data(), N, steps_per_epoch=1)
    with hardware(KINDS.V1):
        model = compiled(RowSGD)
        with pytest.raises(PrivacyError, match="looked up ahead"):
            model.fit(drawn, verbose=0)
        with pytest.raises(PrivacyError, match="looked up ahead"):
            model.fit(*data(), batch_size=N, verbose=0)
        for width, told in ((3, "at least 4 ids.*told of 3"), (6, "4 ids.*told of 6")):
            model = compiled(RowSGD)
            chosen = select_on_host(
                drawn, model, lambda x, w=width: {"one": tf.concat([x, x], 1)[:, :w], "two": x}
            )
            with pytest.raises(PrivacyError, match=f"looks up {told}"):
                model.fit(chosen, verbose=0)
        frozen = compiled(RowSGD)
        frozen.get_layer("two").trainable = False
        frozen.compile(frozen.optimizer, "mse")
        with pytest.raises(PrivacyError, match=r"\['two'\] in a TPU embedding are frozen"):
            frozen.fit(select_on_host(drawn, frozen, lambda x: {"one": x}), verbose=0)


@pytest.mark.thorough
def test_optimizers_and_uses_that_a_tpu_embedding_has_not_are_refused():
    with hardware(KINDS.V1):
        for rows in (LazyAdam, RowAdagrad, lambda: RowSGD(weight_decay=0.1)):
            model = compiled(rows)
            with pytest.raises(ValueError, match="`embedding_optimizer` of tables in a TPU"):
                model.fit(batches(model, 1), verbose=0)
        model.compile("sgd", "mse")
        with pytest.raises(PrivacyError, match="a DPOptimizer trains and no other"):
            model.fit(*data(), verbose=0)
        model = compiled(RowSGD, expected_batch_size=N // 2)
        for use in (
            lambda: model.predict(data()[0], verbose=0),
            lambda: model.evaluate(*data(), verbose=0),
            lambda: model(data()[0]),
        ):
            with pytest.raises(RuntimeError, match="in training only"):
                use()

        def drawn(size):
            poisson = tfdp.data.poisson_batches(
                data(), N // 2, max_batch_size=size, steps_per_epoch=1
            )
            return select_on_host(poisson, model)

        with pytest.raises(PrivacyError, match="looked up ahead"):
            model.train_on_batch(*data())
        for argument, used in {
            "validation_data": data(),
            "callbacks": [keras.callbacks.EarlyStopping(restore_best_weights=True)],
        }.items():
            with pytest.raises(ValueError, match=argument):
                model.fit(drawn(30), verbose=0, **{argument: used})
        with pytest.raises(ValueError, match="BackupAndRestore"):
            model.fit(drawn(30), callbacks=[keras.callbacks.BackupAndRestore("x")], verbose=0)
        assert model.optimizer.steps_taken == 0
        model.fit(drawn(30), verbose=0)
        with pytest.raises(PrivacyError, match="another shape"):
            model.fit(drawn(28), verbose=0)
        table = model.get_layer("one").external_table
        with pytest.raises(RuntimeError, match="before the first `fit`"):
            table.load({"0": np.zeros((V, D))})
        with pytest.raises(ValueError, match=r"has shape \(41, 2\)"):
            table.load({"0": np.zeros((V, 3))})
    with hardware(KINDS.V2):
        model = compiled(RowSGD, expected_batch_size=N // 2)
        with pytest.raises(ValueError, match="cannot share evenly"):
            model.fit(drawn(29), verbose=0)
    with pytest.raises(ValueError, match="placement='gpu'"):
        SparseEmbedding(V, D, placement="gpu")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [KINDS.UNSUPPORTED, KINDS.V1])
def test_tables_that_exist_in_no_variable_are_neither_guessed_nor_exported(kind, tmp_path):
    with hardware(kind):
        model = compiled(RowSGD)
        with pytest.raises(tf.errors.InvalidArgumentError, match="one.* is in a TPU embedding"):
            model.model.predict(data()[0], verbose=0)
        model.fit(batches(model, 1), verbose=0)
        with pytest.raises(RuntimeError, match=r"Tables \['one', 'two'\].*load it where there is"):
            tfdp.serving.export(model, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_without_a_tpu_the_placement_changes_nothing():
    model = compiled(lambda: RowSGD(1.0))
    assert model.get_layer("one").external_table is None
    assert [v.path for v in model.trainable_variables][:2] == ["one/embeddings", "two/embeddings"]


def test_ids_are_read_from_the_graph_of_the_model():
    model = compiled(lambda: RowSGD(1.0), None)
    x = tf.constant([[0, V, 4], [7, -2, 7]], tf.int64)
    found = tfdp.distribution.host_selection.ids_of_model(model)(x)
    np.testing.assert_array_equal(found["one"], [[0, -1, 4, 0], [7, -1, 7, 7]])
    np.testing.assert_array_equal(found["two"], [[-1, -1, 4], [7, -1, 7]])


@pytest.mark.thorough
def test_ids_are_in_the_order_in_which_keras_runs_the_model():
    def towers(placement):
        ids = keras.Input((T,), dtype="int64")
        layer = SparseEmbedding(V, D, placement=placement, name="one")
        user, item = keras.layers.Flatten()(layer(ids)), layer(ids[:, 0])
        for _ in range(3):
            item = keras.layers.Dense(2)(item)  # deeper, and run first
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()([user, item])))

    with hardware(KINDS.V1):
        model = compiled(lambda: RowSGD(1.0), network=towers)
        assert np.isfinite(model.fit(batches(model, 1), verbose=0).history["loss"]).all()


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


@pytest.mark.thorough
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
