"""That examples do not mix is proved from the graph; what mixes them is refused, every time."""

import itertools
import re

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import layers
from mixing import (
    APART,
    DRAWN_APART,
    DRAWN_TWICE,
    LOSSES,
    MIXING,
    WALKED,
    Function,
    Maker,
    mean,
)
from networks import Queries

import tfdp
from tfdp.clipping.engine import backward, clipped_sums
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.errors import PrivacyError
from tfdp.training.checks import independence

N, D = 64, 4
X, Y = np.random.default_rng(0).normal(size=(2, N, D)).astype(np.float32)


def compiled(base, loss="mse", batch=32, **kwargs):
    model = tfdp.make_private(base) if not isinstance(base, tfdp.models.DPModel) else base
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), noise_multiplier=1.0, num_examples=N, expected_batch_size=batch
    )
    model.compile(optimizer, loss=loss, **kwargs)
    return model


def examine(base, loss="mse", x=X, y=Y, batch=40):
    """What a step on such batches would find, on paper."""
    model = compiled(base, loss)
    x, y = tf.nest.map_structure(lambda a: tf.convert_to_tensor(a[:batch]), (x, y))
    model.clipping_plan(x)
    return independence.notes_of([independence.examine_on_paper(model, x, y, None)])


def sequential(*stack, shape=(D,)):
    return keras.Sequential([keras.Input(shape), *stack])


def layer_of(made):
    return made.make() if isinstance(made, Maker) else Function(made)


def refused(base, loss="mse", match="", **kwargs):
    with pytest.raises(PrivacyError, match=f"(?s)mix.* the examples.*{match}|{match}"):
        examine(base, loss, **kwargs)


# The walk joins the two kinds of queries, too (`mixing_in_hiding.HIDDEN`).
QUERIES = "queries with a mean", "rows of the batch as queries"


@pytest.mark.parametrize("name", slow.cases(MIXING, slow=[*WALKED, *QUERIES]))
def test_layers_that_mix_are_refused_by_operation_and_layer(name):
    made, what = MIXING[name]
    base = sequential(layers.Dense(D), layer_of(made))
    searched = name in ("numpy", "how many differ")
    for _ in range(1 + searched):  # with values that are drawn anew
        with pytest.raises(PrivacyError, match=what) as refusal:
            examine(base)
        if not searched:
            assert "SharedNegatives" in str(refusal.value)
            assert re.match("Layer '(function|multi_head_attention)|Model", str(refusal.value))


@pytest.mark.parametrize("name", DRAWN_TWICE)
def test_random_numbers_of_one_example_that_others_use_are_refused(name):
    made, what = DRAWN_TWICE[name]
    base = sequential(layers.Dense(D), layer_of(made))
    with pytest.raises(PrivacyError, match=f"random numbers of one draw in two ways.*{what}"):
        examine(base)


def proved(*made):
    notes = examine(sequential(layers.Dense(D), *map(layer_of, made)))
    return notes.remarks == (independence.PROVED,) and not notes.assumptions


DRAWING = "dropout", "noise", "own noise", "drawn once", "drawn branch"
STACKED = [made for name, made in APART.items() if name not in DRAWING]


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("first", range(3))
def test_layers_that_treat_each_example_by_itself_are_proved(first):
    """A stack of such layers is one, and it is planned and traced once for all of them."""
    assert proved(*STACKED[first::3])


# Not in a stack: where a seed was set for all of TensorFlow, two layers may share one of theirs.
@pytest.mark.thorough_after(16)
@pytest.mark.parametrize("name", [*DRAWING, *DRAWN_APART])
def test_layers_that_draw_for_each_example_by_itself_are_proved(name):
    assert proved((APART | DRAWN_APART)[name])


GIVEN = {
    "tiled": lambda q, x: keras.ops.tile(q[None], (keras.ops.shape(x)[0], 1, 1)),
    "tiled as rows": lambda q, x: keras.ops.reshape(
        keras.ops.tile(q, (keras.ops.shape(x)[0], 1)), (-1, 3, 4)),
    "broadcast": lambda q, x: keras.ops.broadcast_to(q[None], (keras.ops.shape(x)[0], 3, 4)),
    "repeated": lambda q, x: keras.ops.repeat(q[None], keras.ops.shape(x)[0], axis=0),
    "added to zeros": lambda q, x: q[None] + keras.ops.zeros_like(x[:, :1]),
}  # fmt: skip
READ = {
    "dense": lambda h, x: layers.Dense(4)(h),
    "attention": lambda h, x: layers.MultiHeadAttention(2, 2)(h, layers.Dense(4)(x)),
    "own attention": lambda h, x: layers.Dense(4)(layers.MultiHeadAttention(2, 2)(h, h)) + x[:, :3],
    "einsum": lambda h, x: layers.EinsumDense("bqd,de->bqe", (None, 4))(h),
}  # fmt: skip


LEARNED = list(itertools.product(GIVEN, READ))
# The other three readers, once each: what is given is the same to them, a tensor for each example.
READ_ONCE = {("tiled as rows", "attention"), ("broadcast", "own attention"), ("repeated", "einsum")}
SLOW = [case for case in LEARNED if case[1] != "dense" and case not in READ_ONCE]


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("give, read", slow.cases(LEARNED, slow=SLOW))
def test_queries_that_are_learned_are_proved(give, read):
    inputs = keras.Input((5, D))
    h = READ[read](Queries(GIVEN[give])(inputs), inputs)
    base = keras.Model(inputs, layers.Dense(1)(keras.ops.mean(h, 1) + inputs[:, 0]))
    notes = examine(base, x=np.repeat(X[:, None], 5, 1), y=Y[:, :1])
    assert notes.remarks == (independence.PROVED,) and not notes.assumptions


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_mix_are_refused(name):
    loss, what = LOSSES[name]
    refused(sequential(layers.Dense(D)), loss, what)


def test_a_second_output_divided_by_the_batch_is_refused():
    inputs = keras.Input((D,))
    base = keras.Model(inputs, {name: layers.Dense(D, name=name)(inputs) for name in "ab"})

    def loss(y, p):
        return tf.square(p - y) / (1 + tf.reduce_sum(tf.cast(y > 0, tf.float32)))

    refused(base, {"a": "mse", "b": loss}, "loss", y={"a": Y, "b": Y})


@pytest.mark.thorough
def test_the_same_refusal_whatever_the_data_hold():
    base = sequential(layers.Dense(1), Function(lambda x: x - mean(x)))
    found = set()
    for data in (X, 0 * X, np.full_like(X, np.nan), 1e6 * X):
        with pytest.raises(PrivacyError) as refusal:
            examine(base, x=data)
        found.add(str(refusal.value))
    assert len(found) == 1


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("shape, axis", [((3, 4, 5), [1, 3]), ((3, 4), -1), ((8, 16), -1)])
def test_normalized_outputs_and_their_mean_are_proved(shape, axis):
    inputs = keras.Input(shape)
    flat = layers.Flatten()(layers.LayerNormalization(axis=axis)(inputs))
    base = keras.Model(inputs, keras.ops.mean(flat, -1, keepdims=True))
    x = np.random.default_rng(0).normal(size=(N, *shape)).astype("float32")
    notes = examine(base, x=x, y=Y[:, :1])
    assert notes.remarks == (independence.PROVED,) and not notes.assumptions


class Own(tfdp.models.DPModel):
    def __init__(self, mixes=True):
        super().__init__()
        self.mixes = mixes
        self.one, self.other = layers.Dense(3), layers.Dense(1)

    def call(self, x):
        h = self.one(x)
        return self.other(h - mean(h) if self.mixes else h)


class Positives(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.square(y_pred - y_true) / tf.reduce_mean(tf.square(y_true))


ENGINES = {
    "tf.function": {}, "XLA": {"jit_compile": True}, "eagerly": {"run_eagerly": True},
    "executions": {"steps_per_execution": 2},
}  # fmt: skip


REFUSED = list(itertools.product(ENGINES, ["layer", "loss"]))


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "engine, mixes", slow.cases(REFUSED, slow=[(e, "loss") for e in ENGINES if e != "tf.function"])
)
def test_fit_refuses_before_a_step(engine, mixes):
    base, loss = (Own(), "mse") if mixes == "layer" else (Own(False), Positives())
    model = compiled(base, loss, **ENGINES[engine])
    with pytest.raises(PrivacyError, match="mixes the examples"):
        model.fit(tfdp.data.poisson_batches((X, Y[:, :1]), 32), verbose=0)
    assert model.optimizer.charging.steps == 0


@pytest.mark.thorough
def test_steps_outside_of_fit_are_examined_too():
    with pytest.raises(PrivacyError, match="mixes the examples"):
        compiled(Own(), batch=N).train_on_batch(X, Y[:, :1])


@pytest.mark.thorough
def test_micro_batches_are_examined_as_they_run():
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), noise_multiplier=1.0, num_examples=N, expected_batch_size=32,
        microbatch_size=8,
    )  # fmt: skip
    model = tfdp.make_private(
        sequential(layers.Dense(1), Function(lambda x: x - mean(x) if x.shape[0] == 8 else x))
    )
    model.compile(optimizer, loss="mse")
    with pytest.raises(PrivacyError, match="mixes the examples"):
        model.fit(tfdp.data.poisson_batches((X, Y[:, :1]), 32), verbose=0)
    assert model.optimizer.charging.steps == 0


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["tf.function", "executions"])
def test_what_python_changes_after_the_check_is_seen_where_the_step_is_traced(engine):
    class Begins(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.mixes = True

    model = compiled(Own(False), **ENGINES[engine])
    with pytest.raises(PrivacyError, match="mixes the examples"):
        model.fit(tfdp.data.poisson_batches((X, Y[:, :1]), 32), verbose=0, callbacks=[Begins()])
    assert model.optimizer.charging.steps == 0


# Traces: two for the plan, one on paper, one of the step. More of them are for versions to come.
@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("last", slow.cases([0, 2, 3, 4, 5, 99], slow=[5, 99]))
def test_what_python_does_anew_at_each_trace_is_seen_in_the_step_that_runs(last):
    calls = []

    def counted(x):
        calls.append(len(calls) >= last)
        return x - mean(x) if calls[-1] else x

    model = compiled(sequential(layers.Dense(D), Function(counted), layers.Dense(1)))
    data = tfdp.data.poisson_batches((X, Y[:, :1]), 32, steps_per_epoch=1)
    try:
        model.fit(data, verbose=0)
    except PrivacyError as refusal:
        assert "mixes the examples" in str(refusal) and model.optimizer.charging.steps == 0
    else:
        assert not any(calls)  # it mixed in no trace, so in none that runs
    assert any(calls) or last == 99 or len(calls) <= last


@pytest.mark.thorough
def test_tensors_that_were_there_before_the_forward_pass_may_hold_of_any_example():
    class Centred(Own):
        def train_step(self, data):
            self.mean = tf.reduce_mean(data[0], 0)
            return super().train_step(data)

        def call(self, x):
            return self.other(self.one(x - getattr(self, "mean", 0.0)))

    with pytest.raises(PrivacyError, match="existed before the forward pass"):
        trained(compiled(Centred(False)))


# The step of several executions is that of tf.function, in a loop.
@pytest.mark.thorough
@pytest.mark.parametrize("engine", slow.cases(ENGINES, slow=["executions"]))
def test_a_step_that_is_compiled_keeps_its_gradients_of_its_own(engine):
    silu = sequential(layers.Dense(1, "silu"))
    assert independence.PROVED in trained(compiled(silu, **ENGINES[engine]))


def statement_of(model):
    return " ".join(str(model.privacy_statement()).split())


def trained(model):
    model.fit(tfdp.data.poisson_batches((X, Y[:, :1]), 32, steps_per_epoch=1), verbose=0)
    return statement_of(model)


def test_the_statement_says_what_was_proved_searched_or_not_looked_at():
    eager = {"run_eagerly": True}  # a trace takes longer than one step
    assert independence.PROVED in trained(compiled(Own(False), **eager))

    def set_diagonal(x):  # by an operation without a rule
        return tf.linalg.set_diag(x[:, :, None] * x[:, None, :], x)[:, 0]

    said = trained(compiled(sequential(Function(set_diagonal), layers.Dense(1)), **eager))
    assert independence.SEARCHED.format(operation="MatrixSetDiagV3") in said
    assert independence.PROVED not in said
    unchecked = tfdp.make_private(sequential(layers.Dense(1)), validate=False)
    said = trained(compiled(unchecked, **eager))
    assert independence.NOT_CHECKED in said and independence.PROVED not in said

    class Unchecked(Own):
        validate_independence = False

    assert independence.NOT_CHECKED in trained(compiled(Unchecked(), **eager))


@pytest.mark.thorough
def test_what_was_not_checked_in_a_step_that_ran_stays_in_the_statement():
    class Checks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch:
                self.model.validate_independence = True
                self.model.make_train_function(force=True)

    model = compiled(Own(False))
    model.validate_independence = False
    data = tfdp.data.poisson_batches((X, Y[:, :1]), 32, steps_per_epoch=1)
    model.fit(data, epochs=2, verbose=0, callbacks=[Checks()])
    said = statement_of(model)
    assert independence.NOT_CHECKED in said and independence.PROVED not in said


@pytest.mark.thorough
def test_an_operation_that_no_search_can_tell_is_refused_with_the_way_out():
    def without_rule(x):
        return x + tf.reduce_sum(tf.cast(tf.where(x > 0), tf.float32))

    refused(sequential(Function(without_rule), layers.Dense(1)), match="validate=False")


@pytest.mark.thorough
def test_weights_that_a_loss_reads_are_refused():
    assert examine(sequential(layers.Dense(1, kernel_regularizer="l2")))  # a penalty is no part
    dense = layers.Dense(1)

    def loss(y, outputs):
        return tf.square(outputs - y)[:, 0] * tf.reduce_sum(dense.kernel)

    with pytest.raises(PrivacyError, match="reads the trained variable .*kernel"):
        examine(sequential(dense), loss)


def test_losses_that_have_names_are_refused_by_them():
    for circle in (keras.losses.Circle(), "circle"):  # before there are data
        with pytest.raises(PrivacyError, match="Circle compares.*SharedNegatives"):
            compiled(sequential(layers.Dense(3)), circle)
    keras_rs = pytest.importorskip("keras_rs")
    flat = sequential(layers.Dense(1), layers.Reshape(()))
    refused(flat, keras_rs.losses.PairwiseHingeLoss(), y=(Y[:, 0] > 0).astype("float32"))


class Towers(keras.Model):
    """A score for each pair of a query and a candidate of the batch."""

    def __init__(self):
        super().__init__()
        self.query, self.candidate = layers.Dense(3), layers.Dense(3)

    def call(self, x):
        return tf.matmul(self.query(x[:, :2]), self.candidate(x[:, 2:]), transpose_b=True)


@pytest.mark.thorough
def test_two_towers_with_in_batch_negatives_are_refused():
    def softmax(y, scores):
        return keras.losses.sparse_categorical_crossentropy(
            tf.range(tf.shape(scores)[0]), scores, from_logits=True
        )

    refused(Towers(), softmax)
    inputs = keras.Input((D,))
    scores = keras.ops.matmul(layers.Dense(3)(inputs), keras.ops.transpose(layers.Dense(3)(inputs)))
    refused(keras.Model(inputs, scores), softmax)


class Rows(keras.Model):
    """A dense layer on a tensor with as many rows as the batch, and what becomes of its outputs.

    Each loss is one example's own; a row of the dense layer is not.
    """

    def __init__(self, makes, uses):
        super().__init__()
        self.inner, self.last = layers.Dense(D), layers.Dense(1)
        self._makes, self._uses = makes, uses
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        return self.last(self._uses(x, self.inner(self._makes(x, self.seeds))))


def ones(x, _):
    return keras.ops.ones_like(x[:, :2])


def drawn(x, seeds):
    return keras.random.uniform((keras.ops.shape(x)[0], 2), seed=seeds)


def along_the_second_axis(x, _):
    return keras.ops.zeros_like(x)[:, None] + x


USES_OTHER_ROWS = {
    "mean": (ones, lambda x, rows: x + keras.ops.mean(rows, axis=0), "Mean"),
    "sampled negatives": (
        drawn, lambda x, rows: keras.ops.matmul(x, keras.ops.transpose(rows))[:, :1], "MatMul"),
    "first row": (ones, lambda x, rows: x + rows[:1], "StridedSlice"),
    "a row that the example names": (
        ones, lambda x, rows: x + tf.gather(rows, tf.cast(x[:, 0] > 0, tf.int32)), "GatherV2"),
    "neighbour": (ones, lambda x, rows: x + tf.roll(rows, 1, axis=0), "along the examples"),
    "examples along another axis": (
        along_the_second_axis, lambda x, rows: keras.ops.mean(rows, axis=0), "first axis"),
}  # fmt: skip


OTHER_ROWS = list(itertools.product(USES_OTHER_ROWS, ["eagerly", "tf.function"]))
FEW = "mean", "sampled negatives"


@pytest.mark.parametrize(
    "name, engine",
    slow.cases(OTHER_ROWS, [c for c in OTHER_ROWS if c[0] not in FEW and c[1] != "eagerly"]),
)
def test_rows_that_other_examples_use_are_refused(name, engine):
    makes, uses, what = USES_OTHER_ROWS[name]
    model = compiled(Rows(makes, uses), **ENGINES[engine])
    with pytest.raises(PrivacyError, match=f"(?s)Layer '(dense|rows).*{what}"):
        model.fit(tfdp.data.poisson_batches((X, Y[:, :1]), 32, steps_per_epoch=1), verbose=0)
    assert model.optimizer.charging.steps_of_run == 0


@pytest.mark.thorough
def test_rows_that_other_examples_use_would_move_the_sum_by_more_than_the_clip_norm():
    model = Rows(ones, lambda x, rows: x + keras.ops.mean(rows, axis=0))
    x = tf.constant(X[:32])
    model(x)
    weights = np.ones(32, np.float32)
    weights[5] = 1e4
    sums = []
    for present in (np.ones(32, bool), np.arange(32) != 5):
        result = backward(
            model, make_clipping_plan(model, x), x,
            lambda outputs: weights * outputs[:, 0], tf.constant(present),
        )  # fmt: skip
        sums.append([s.numpy().ravel() for s in clipped_sums(model, result, 1.0, "flat")])
    moved = np.linalg.norm(np.concatenate(sums[0]) - np.concatenate(sums[1]))
    assert moved > 5.0  # so the refusal is needed


@pytest.mark.thorough
@pytest.mark.parametrize("makes", [ones, drawn])
def test_rows_that_their_own_examples_use_are_proved(makes):
    notes = examine(Rows(makes, lambda x, rows: x + rows))
    assert notes.remarks == (independence.PROVED,) and not notes.assumptions


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:These variables do not affect")
def test_xlnet_mixes_examples_of_which_some_are_padded():
    hub = pytest.importorskip("keras_hub")
    backbone = hub.models.XLNetBackbone(7, 1, 2, 8, 8, dropout=0.0)
    ids, mask = keras.Input((5,), dtype="int32"), keras.Input((5,), dtype="int32")
    h = backbone({"token_ids": ids, "padding_mask": mask, "segment_ids": keras.ops.zeros_like(ids)})
    base = keras.Model([ids, mask], layers.Dense(1)(h[:, 0]))
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 6, (N, 1))
    x = [generator.integers(1, 7, (N, 5)), (np.arange(5) < lengths).astype("int32")]
    refused(base, x=x, y=Y[:, :1])


@pytest.mark.thorough
@pytest.mark.parametrize("steps", slow.cases([3, 60], slow=[3]))
def test_recurrent_models_are_proved(steps):
    x = np.random.default_rng(0).normal(size=(N, steps, 2)).astype(np.float32)
    stack = layers.LSTM(2, return_sequences=True), layers.GRU(2), layers.Dense(1)
    assert not examine(sequential(*stack, shape=(steps, 2)), x=x, y=Y[:, :1]).assumptions
    mixing = Function(lambda h: h - mean(h))
    refused(sequential(layers.LSTM(2), mixing, shape=(steps, 2)), match="Mean", x=x, y=Y[:, :2])


def test_recurrent_layers_whose_gates_share_are_proved_in_the_step_that_runs():
    x = np.random.default_rng(0).normal(size=(N, 3, 2)).astype(np.float32)
    model = compiled(
        sequential(layers.LSTM(2, activation="softmax"), layers.Dense(1), shape=(3, 2))
    )
    model.fit(tfdp.data.poisson_batches((x, Y[:, :1]), 32, steps_per_epoch=1), verbose=0)
    assert independence.PROVED in model.privacy_statement(1e-3).remarks


@pytest.mark.thorough
def test_the_check_changes_nothing_of_the_model():
    base = sequential(layers.Dense(3, kernel_regularizer="l2"), layers.Dropout(0.5),
                      layers.Dense(1))  # fmt: skip
    model = compiled(base, metrics=["mae"])
    before = [keras.ops.convert_to_numpy(v) for v in model.variables]
    model.clipping_plan(tf.constant(X))
    independence.examine_on_paper(model, tf.constant(X), tf.constant(Y[:, :1]), None)
    assert len(model.variables) == len(before)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert model.examined and model.optimizer.charging.steps == 0
