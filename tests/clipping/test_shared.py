"""Negatives that all examples share: norms and clipped sums are those of single examples."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.clipping import in_parts
from tfdp.clipping.engine import backward, clipped_sums, squared_norms
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.clipping.sums.contributions import PerExampleGradients, Rows, SharedRows
from tfdp.clipping.sums.gradients import variable_gradient
from tfdp.clipping.sums.surviving_rows import activated_rows, restrict
from tfdp.runtime.xla import compiling

ITEMS, B = 12, 6
GENERATOR = np.random.default_rng(3)
BEGINNING = GENERATOR.bit_generator.state


@pytest.fixture(autouse=True)
def data_of_its_own():
    """Data and draws of a test are always the same, whichever tests ran before it.

    With these no example is left with hardly any gradient: that is a difference from 1, of which
    float32 keeps few digits, and float64 has another one.
    """
    GENERATOR.bit_generator.state = BEGINNING
    keras.utils.set_random_seed(2)


def first_label(outputs):
    """(B,) losses of logits whose label is 0."""
    logits = tf.nest.flatten(outputs)[0]
    return tf.reduce_logsumexp(logits, axis=1) - logits[:, 0]


class Chain(layers.Layer):
    """Layers one after another, on inputs of any shape."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def table():
    return layers.Embedding(ITEMS, 4, name="table")


def sparse_table():
    return tfdp.layers.SparseEmbedding(ITEMS, 4, name="table")


def dense():
    return Chain([layers.Embedding(ITEMS, 6), layers.Dense(4)])


def two_dense():
    return Chain([layers.Embedding(ITEMS, 6), layers.Dense(5), layers.Dense(4)])


def gated():
    """All of it keeps factors: one activation."""
    return Chain([layers.Embedding(ITEMS, 6), layers.Dense(5, "gelu"), layers.Dense(4)])


def deep():
    """Of all kinds: the last two layers keep factors, the others are taken in parts."""
    return Chain(
        [layers.Embedding(ITEMS, 6), layers.Dense(7, "tanh"), layers.LayerNormalization(),
         layers.Dense(5, "gelu"), layers.Dense(4)]
    )  # fmt: skip


def short():
    """The last two layers keep factors, the table and the layer on it are taken in parts."""
    return Chain(
        [layers.Embedding(ITEMS, 3), layers.Dense(4, "tanh"), layers.Dense(3, "gelu"),
         layers.Dense(4)]
    )  # fmt: skip


def activated():
    return Chain([tfdp.layers.SparseEmbedding(ITEMS, 6), layers.Dense(4, "tanh")])


def features(activation=None):
    """Two tables and a number, side by side, with a look-up added to the end."""
    ids, genre = (keras.Input((), dtype="int64", name=n) for n in ("ids", "genre"))
    price = keras.Input((2,), name="price")
    parts = [layers.Embedding(ITEMS, 3)(ids), price, layers.Embedding(5, 2)(genre)]
    vector = layers.Dense(4, activation)(layers.Concatenate()(parts))
    return keras.Model([ids, genre, price], vector + layers.Embedding(ITEMS, 4)(ids))


COLUMNS = {
    "ids": np.arange(ITEMS),
    "genre": np.arange(ITEMS) % 5,
    "price": GENERATOR.normal(size=(ITEMS, 2)).astype(np.float32),
}
TOWERS = {
    "table": table, "sparse_table": sparse_table, "dense": dense, "two_dense": two_dense,
    "deep": deep, "activated": activated, "gated": gated,
}  # fmt: skip


def model_of(make_tower, history=False, **kwargs):
    """A builder of a model from user features and an item's id to logits."""

    def build():
        policy = keras.config.dtype_policy().compute_dtype
        user, item = keras.Input((5,), dtype=policy), keras.Input((), dtype="int64")
        inputs, tower = [user, item], make_tower()
        vector = layers.Dense(4)(user)
        if history:  # by the item tower's own weights
            seen = keras.Input((3,), dtype="int64")
            inputs.append(seen)
            vector = vector + layers.GlobalAveragePooling1D()(tower(seen))
        settings = {"num_negatives": 7, "seed": 3, **kwargs}
        return keras.Model(
            inputs, tfdp.layers.SharedNegatives(tower, ITEMS, **settings)(vector, item)
        )

    return build


def batch(history=False):
    x = [GENERATOR.normal(size=(B, 5)).astype(np.float32), GENERATOR.integers(0, ITEMS, B)]
    return x + [GENERATOR.integers(0, ITEMS, (B, 3))] if history else x


def shared_calls(plan):
    assert all(call.rule is not None for call in plan.calls.values())
    return [call.layer.name for call in plan.calls.values() if call.uses or call.scores]


def sums_of(model, x, losses, masks, clip_norm=1.0):
    """Float64 clipped sums of the examples in each mask, of one draw."""
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    plan = make_clipping_plan(model, x)
    states = [(v, v.numpy()) for v in model.variables if v.name == "seed_generator_state"]
    found = []
    for mask in masks:
        result = backward(model, plan, x, losses, tf.constant(mask))
        for state, value in states:
            state.assign(value)
        sums = clipped_sums(model, result, clip_norm, "flat")
        found.append([tf.convert_to_tensor(t).numpy().astype(np.float64) for t in sums])
    return found


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize(
    ("name", "history"),
    slow.cases(
        [("table", False), *((n, True) for n in TOWERS)],
        slow=[("table", True), ("dense", True)],  # as "sparse_table" and "two_dense"
    ),
)
def test_norms_and_sums_equal_brute_force(brute_force, name, history):
    x = batch(history)
    check = brute_force(model_of(TOWERS[name], history), x, first_label)
    assert shared_calls(check.plan)
    check.check(("flat", "normalized"), tolerance=2e-5)


FREQUENCIES = {"frequencies": np.arange(ITEMS) + 1.0}
MORE = {"num_negatives": 40}  # than there are items: each is drawn several times
DRAWS = {
    "cosine": (dense, {"similarity": "cosine", "temperature": 0.2}),  # a norm is no linear layer
    "many by frequencies": (table, {**FREQUENCIES, **MORE}),
    "all items": (table, {"num_negatives": None}),
    "one": (table, {"num_negatives": 1}),
    "frequencies": (dense, FREQUENCIES),
    "many": (dense, MORE),
    "all items, dense": (dense, {"num_negatives": None}),
    "one, dense": (dense, {"num_negatives": 1}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", slow.cases(DRAWS, slow=list(DRAWS)[4:]))
def test_draws_of_any_kind_equal_brute_force(brute_force, name):
    tower, settings = DRAWS[name]
    x = batch(history=True)
    brute_force(model_of(tower, True, **settings), x, first_label).check(tolerance=2e-5)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(("activation", "in_parts"), [(None, 0), ("tanh", 2)])
def test_features_side_by_side_equal_brute_force(brute_force, activation, in_parts):
    x, tower = batch(), lambda: features(activation)
    check = brute_force(model_of(tower, item_features=COLUMNS), x, first_label)
    assert len(shared_calls(check.plan)) == 4
    # Rows of one id, beside others, go through the activation at several places.
    assert len([call for call in check.plan.calls.values() if call.scores]) == in_parts
    check.check(tolerance=2e-5)


def test_two_layers_on_one_look_up_add_their_gradients_at_it(brute_force):
    def tower():
        ids = keras.Input((), dtype="int64")
        rows = layers.Embedding(ITEMS, 6)(ids)
        return keras.Model(ids, layers.Add()([layers.Dense(4)(rows), layers.Dense(4)(rows)]))

    check = brute_force(model_of(tower), batch(), first_label)
    assert max(len(call.uses) for call in check.plan.calls.values()) == 2
    check.check(tolerance=2e-5)


def test_a_table_that_is_looked_up_twice_takes_its_look_ups_beyond_a_gate_in_parts(brute_force):
    def tower():
        one = layers.Embedding(ITEMS, 6)
        hidden = Chain([one, layers.Dense(4, "tanh")])
        ids = keras.Input((), dtype="int64")
        return keras.Model(ids, layers.Add()([hidden(ids), layers.Dense(4)(one(ids))]))

    check = brute_force(model_of(tower), batch(), first_label)
    assert sum(bool(call.scores) for call in check.plan.calls.values()) == 1
    check.check(tolerance=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make_tower", "history"),
    slow.cases(
        [(short, False), (dense, True), (gated, True), (deep, True)],
        slow=[(dense, True), (gated, True), (deep, True)],  # of each form `short` has a layer
    ),
)
def test_a_step_compiled_by_xla_gives_the_same(brute_force, make_tower, history):
    check = brute_force(model_of(make_tower, history), batch(history), first_label)
    assert any(call.scores for call in check.plan.calls.values()) or make_tower in (dense, gated)
    check.check(tolerance=2e-5, jit_compile=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make_tower", "width"), slow.cases([(short, 4), (deep, 7)], slow=[(deep, 7)])
)
def test_examples_in_parts_give_the_same(brute_force, monkeypatch, make_tower, width):
    # 4 of 6 examples: the second part is not whole
    monkeypatch.setattr(in_parts, "_TOGETHER", 4 * 7 * width)
    check = brute_force(model_of(make_tower, True), batch(history=True), first_label)
    check.check(tolerance=2e-5, graph=True)


@pytest.mark.parametrize(
    "make_tower", slow.cases([dense, activated, short, deep], slow=[dense, deep])
)
def test_an_example_that_is_not_finite_adds_nothing(make_tower):
    model = model_of(make_tower)()
    users, items = batch()
    there = np.arange(B) != 2
    (without,) = sums_of(model, [users, items], first_label, [there])
    users[2] = np.nan
    (whole,) = sums_of(model, [users, items], first_label, [there | True])
    for a, b in zip(whole, without, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)
        assert np.any(a != 0)


class SquaredVectors(layers.Layer):
    """The vectors of the negatives are used beside the scores, too."""

    def __init__(self):
        super().__init__()
        self.table, self.scores = table(), tfdp.layers.SharedScores()

    def call(self, users):
        vectors = self.table(tf.constant([3, 1, 4, 1]))
        return self.scores(users, vectors) + tf.reduce_sum(vectors**2)


class TwoWays(layers.Layer):
    """What meets the users in one layer of scores goes on through an activation to another."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = table(), layers.Dense(4)
        self.one, self.other = tfdp.layers.SharedScores(), tfdp.layers.SharedScores()

    def call(self, users):
        vectors = self.linear(self.table(tf.constant([3, 1, 4, 1])))
        return self.one(users, vectors) + self.other(users, tf.nn.relu(vectors))


class OwnScores(tfdp.layers.SharedScores):
    """What it computes is not known from its class."""

    def call(self, users, vectors):
        return super().call(users, vectors) ** 2


class Others(layers.Layer):
    def __init__(self, scores):
        super().__init__()
        self.table, self.scores = table(), scores

    def call(self, users):
        return self.scores(users, self.table(tf.constant([3, 1, 4, 1])))


@pytest.mark.thorough_after(2)
@pytest.mark.parametrize("make", [SquaredVectors, TwoWays, lambda: Others(OwnScores())])
def test_other_uses_of_what_is_shared_take_the_fallback(brute_force, make):
    def build():
        users = keras.Input((4,), dtype=keras.config.dtype_policy().compute_dtype)
        return keras.Model(users, make()(users))

    x = GENERATOR.normal(size=(B, 4)).astype(np.float32)
    check = brute_force(build, x, first_label)
    assert [call.rule for call in check.plan.calls.values()] == [None]
    check.check(tolerance=2e-5)


@pytest.mark.thorough_after(3)
@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_no_example_is_clipped_to_more_than_the_norm(positions, jit_compile):
    """A search: scales from 1e-12 to 1e12, repeated ids, own rows that cancel the shared ones."""
    count, width, size = 9, 4, 300
    rng = np.random.default_rng(positions)
    scales = 10.0 ** rng.uniform(-12, 12, (size, 1, 1))
    left = (rng.normal(size=(size, positions, count)) * scales**0.5).astype(np.float32)
    right = (rng.normal(size=(size, positions, width)) * scales**0.5).astype(np.float32)
    drawn, ids = rng.integers(0, ITEMS, count), rng.integers(0, ITEMS, (size, 3))
    drawn[2] = -1  # no row
    true = np.zeros((size, ITEMS, width))
    each = np.einsum("btn,btd->bnd", left.astype(np.float64), right.astype(np.float64))
    for n, item in enumerate(drawn):
        true[:, item] += each[:, n] * (item >= 0)
    values = rng.normal(size=(size, 3, width)) * scales
    cancels = rng.random((size, 3)) < 0.5
    values = np.where(cancels[..., None], -true[np.arange(size)[:, None], ids], values)
    values = values.astype(np.float32)
    for t in range(3):
        true[np.arange(size), ids[:, t]] += values[:, t]

    def raised(ids, values, left, right):
        with compiling(jit_compile):
            own = Rows(ids, values)
            shared = SharedRows(tf.constant(drawn), left, right)
            norm, bound = variable_gradient(tf.zeros([ITEMS, width]), [own, shared]).squared_norm()
            return tf.maximum(norm, 0.0) + bound

    if jit_compile:  # eagerly otherwise: a trace takes longer
        raised = tf.function(raised, jit_compile=True, autograph=False)
    found = raised(*map(tf.constant, (ids, values, left, right))).numpy()
    norms = np.sqrt((true**2).sum((1, 2)))
    assert np.all(norms <= np.sqrt(found) * (1 + 1e-6))
    assert np.median(np.sqrt(found) / norms) < 1.001


def test_explain_names_what_is_shared():
    text = tfdp.clipping.explain(model_of(deep)())
    assert text.count("(shared)") == 2 and text.count("(shared, in parts)") == 3


@pytest.mark.parametrize("make_tower", [sparse_table, activated])
def test_public_rows_and_survivors_alone_are_clipped_and_summed(brute_force, make_tower):
    x = batch(history=True)
    check = brute_force(model_of(make_tower, True, num_negatives=3), x, first_label)
    gradients = check.gradients()
    result = backward(check.private_model, check.plan, check.x, first_label, tf.fill([B], True))
    ((place, activated),) = activated_rows(check.model, result).items()
    own = np.concatenate([x[1][:, None], x[2]], axis=1)
    np.testing.assert_array_equal(np.sort(activated.ids, axis=1), np.sort(own, axis=1))
    public = {g.ids.ref() for i, g, _ in result.gradients if i == place}
    (drawn,) = (set(one.deref().numpy()) for one in public)
    survivors = sorted({0, 4, 9})
    assert not drawn <= set(survivors)

    restricted = restrict(result, {place: tf.constant(survivors, tf.int64)})
    rows = sorted(drawn | set(survivors))
    kept = np.isin(np.arange(ITEMS), rows)
    gradients[place] = gradients[place] * kept[:, None]
    true = np.sqrt(sum(np.square(g).reshape(B, -1).sum(1) for g in gradients))
    norms, _, _ = squared_norms(restricted)
    np.testing.assert_allclose(np.sqrt(tf.add_n(norms)), true, rtol=1e-5)
    clip_norm = float(np.median(true))
    total = clipped_sums(check.model, restricted, clip_norm, "flat")[place]
    wanted = np.tensordot(np.minimum(1, clip_norm / true), gradients[place], 1)
    np.testing.assert_array_equal(total.rows, rows)
    np.testing.assert_allclose(total.values, wanted[rows], rtol=1e-4, atol=1e-6)


def test_no_example_moves_a_sum_beyond_the_norm_where_the_cosine_cancels():
    # In one dimension a cosine has no gradient: whatever is left of it is rounding.
    model = keras_model_of_cosines(table_stddev=1e-4)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(256, 1)).astype("float32"), generator.integers(0, 1000, 256)
    everyone = np.ones(256, bool)
    masks = [everyone, *(np.arange(256) != j for j in range(3))]
    targets = tf.zeros(256, tf.int32)
    losses = lambda z: tf.nn.sparse_softmax_cross_entropy_with_logits(targets, z)  # noqa: E731
    assert max(moves(sums_of(model, x, losses, masks))) <= 1.0 + 1e-4


def keras_model_of_cosines(table_stddev):
    user, item = keras.Input((1,)), keras.Input((), dtype="int64")
    start = keras.initializers.RandomNormal(stddev=table_stddev, seed=1)
    tower = keras.layers.Embedding(1000, 1, embeddings_initializer=start)
    scores = tfdp.layers.SharedNegatives(
        tower, 1000, 16, similarity="cosine", temperature=0.05, seed=3
    )(user, item)
    return keras.Model([user, item], scores)


def moves(sums):
    """Norm of the change from the first clipped sums to each of the others."""
    everyone, *rest = sums
    return [np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(everyone, r, strict=True)))
            for r in rest]  # fmt: skip


def moved_by(model, x, losses, records, clip_norm):
    """Norm of the change of the clipped sums without each record, over the clip norm."""
    at = np.arange(len(x[0]))
    masks = [at >= 0, *(at != record for record in records)]
    return np.array(moves(sums_of(model, x, losses, masks, clip_norm))) / clip_norm


def test_sums_of_layers_that_compute_in_16_bits_are_in_32(restored_policy):
    """In bfloat16 one of 1,024 examples alike adds nothing to their sum, or a whole unit of it."""
    keras.utils.set_random_seed(2)
    keras.config.set_dtype_policy("mixed_bfloat16")
    rng = np.random.default_rng(5)
    columns = {"f": rng.normal(size=(16, 8)).astype(np.float32)}
    f = keras.Input((8,), name="f", dtype="float32")
    hidden = layers.Dense(8, "tanh", use_bias=False)(f)
    tower = keras.Model({"f": f}, layers.Dense(4, "tanh", use_bias=False)(hidden))
    user, item = keras.Input((4,), dtype="float32"), keras.Input((), dtype="int64")
    scores = tfdp.layers.SharedNegatives(tower, 16, None, item_features=columns)
    model = keras.Model([user, item], scores(user, item))
    users = np.tile(20 * rng.normal(size=(1, 4)).astype(np.float32), (1024, 1))
    x = users, np.zeros(1024, np.int64)

    def losses(outputs):
        return first_label(tf.cast(outputs, tf.float32))

    assert max(moved_by(model, x, losses, range(2), 0.1)) <= 1.001


@pytest.fixture
def restored_policy():
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


FEATURES = np.array([[4, 2, 1], [4, 2, 1], [0.25, 0.5, 0.125], [0.5, 0.25, 0.25]], np.float32)


def model_of_features(first):
    """Scores of four items by their features, of which two are alike."""
    f, user = keras.Input((3,), name="f"), keras.Input((2,))
    item = keras.Input((), dtype="int64")
    last = layers.Dense(2, "relu", name="last")
    tower = keras.Model({"f": f}, last(layers.Activation("relu")(first(f))))
    shared = tfdp.layers.SharedNegatives(tower, 4, None, item_features={"f": FEATURES})
    model = keras.Model([user, item], shared(user, item))
    last.set_weights([np.float32([[1, 0.5], [0.5, 0.25], [0.25, 1]]), np.zeros(2, np.float32)])
    return model


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("size", [2.0**20, 2.0**40])
def test_negatives_that_cancel_the_own_item_leave_the_sum_of_the_others(size):
    """Their gradients have the norm 0 together, and the sum adds them up apart."""
    first = layers.Dense(3)
    model = model_of_features(first)
    kernel = np.float32([[1, 0.5, 0.25], [0.5, 1, 0.5], [0.25, 0.25, 1]])
    first.set_weights([kernel, np.zeros(3, np.float32)])
    users = np.tile(np.float32([[-1, -0.5]]), (64, 1))
    users[7] = size, 0
    x = users, np.zeros(64, np.int64)
    own, other = moved_by(model, x, first_label, [7, 3], 1.0)
    assert own <= 1e-3 and other <= 1.001


@pytest.mark.parametrize(
    "make_first", [lambda: layers.Dense(3, kernel_initializer="ones"), layers.LayerNormalization]
)
def test_negatives_that_cancel_each_other_leave_the_sum_of_the_others(make_first):
    """Also of weights of which a rule has added up what each negative gives."""
    model = model_of_features(make_first())
    users = np.tile(np.float32([[1, 0.5]]), (64, 1))
    users[7] = 2.0**40, 2.0**40
    weights = np.tile(np.float32([0, 1, 0, 0, 0]), (64, 1))
    weights[7] = 0, 1, -1, 0, 0  # two items that are alike

    def losses(outputs):
        return tf.reduce_sum(outputs * weights, axis=1)

    x = users, np.full(64, 3)
    own, other = moved_by(model, x, losses, [7, 3], 1.0)
    assert own <= 1e-3 and other >= 0.1


def test_own_parts_raise_the_norm_of_what_they_may_cancel():
    """Each of what the sum adds up apart is at most 1,300 C, once it is clipped."""

    class Nothing:
        factors = ()

        def squared_norm(self, variable):
            return tf.zeros([2], tf.float64), tf.zeros([2], tf.float64)

    own = np.float32([[[3.0, 4.0]], [[0.0, 0.0]]])
    gradient = in_parts.InParts(
        tf.zeros([1, 2]), [PerExampleGradients(tf.constant(own))], Nothing()
    )
    norm, bound = gradient.squared_norm()
    assert 5.0 <= 1300 * float(norm[0] + bound[0]) ** 0.5 and bound[1] < 1e-30
