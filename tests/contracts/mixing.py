"""Layers and losses for tests of independence: what mixes the examples of a batch, what does not.

Each is a function of (B, 4) inputs, or of labels and outputs; those with a second argument `seeds`
get a `keras.random.SeedGenerator`.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


class Function(layers.Layer):
    """A layer without a name that says what it does."""

    def __init__(self, function, drawn=False):
        super().__init__()
        self.function = function
        self.seeds = keras.random.SeedGenerator() if drawn else None

    def call(self, x):
        return self.function(x) if self.seeds is None else self.function(x, self.seeds)

    def compute_output_shape(self, shape):
        return shape


class Maker:
    """Makes a layer, where a function of the inputs is not all."""

    def __init__(self, make):
        self.make = make


def drawn(function):
    return Maker(lambda: Function(function, drawn=True))


def by_parity(h):
    odd = tf.range(tf.shape(h)[0]) % 2 == 1
    return tf.where(odd[:, tf.newaxis], -h, h)


def mean(h):
    return tf.reduce_mean(h, axis=0, keepdims=True)


def half_of_the_gradients(h):  # the same numbers
    odd = tf.range(tf.shape(h)[0]) % 2 == 1
    return tf.where(odd[:, tf.newaxis], tf.stop_gradient(h), h)


@tf.custom_gradient
def gradient_of_the_batch(h):
    """Nothing but the gradient mixes, and by a factor: it stays 0 where it was 0."""
    return tf.identity(h), lambda g: g * (1.0 + tf.reduce_sum(tf.abs(g)))


@tf.custom_gradient
def gradient_by_place(h):
    places = tf.cast(tf.range(tf.shape(h)[0]), h.dtype)[:, tf.newaxis]
    return tf.identity(h), lambda g: g * (1 + 1e-3 * tf.sin(places))


@tf.custom_gradient
def gradient_of_the_values(h):
    return tf.identity(h), lambda g: g * tf.reduce_max(tf.abs(h))


@tf.custom_gradient
def clipped_gradient(h):
    return tf.identity(h), lambda g: tf.clip_by_value(g, -0.01, 0.01)


@tf.custom_gradient
def gradient_by_a_tape(h):
    def gradient(g):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(h)
            squares = tf.square(h)
        return tape.gradient(squares, h, g)

    return tf.square(h), gradient


@tf.function
def in_a_function(h):
    return h - mean(h)


def mixed_up(x, seeds):
    order = keras.random.shuffle(tf.range(tf.shape(x)[0]), seed=seeds)
    weight = keras.random.beta((tf.shape(x)[0], 1), 0.2, 0.2, seed=seeds)
    return weight * x + (1 - weight) * tf.gather(x, order)


def twice(function):
    """Multiplies each example by numbers of its own, and uses these once more."""

    def call(x, seeds):
        own = keras.random.normal(ops.shape(x), seed=seeds)
        return function(x * own, own)

    return drawn(call)


def of_both_axes(x, seeds):
    own = keras.random.normal((ops.shape(x)[0], ops.shape(x)[0]), seed=seeds)
    return x * (own + ops.transpose(own))[:, :1]


def twice_by_key(function):
    """Multiplies each example by numbers of its own, and gives the key of the draw once more."""

    def call(x, seeds):
        key = tf.cast(seeds.next(), tf.int32)
        return function(x * tf.random.stateless_normal(tf.shape(x), key), key)

    return drawn(call)


def of_other_places(h, key):
    wider = tf.random.stateless_normal(
        [tf.shape(h)[0], 8], tf.cast(tf.cast(key, tf.int64), tf.int32)
    )
    return h + wider[:, 4:]


def in_steps(function):
    return lambda h, key: tf.while_loop(
        lambda i, h: i < 2, lambda i, h: (i + 1, function(h, key)), (0, h))[1]  # fmt: skip


def by_operation_seed(x):
    own = tf.random.normal(tf.shape(x), seed=5)
    return x * own + tf.random.normal([tf.shape(x)[0], 8], seed=5)[:, 4:]


def with_a_seed(function):
    """As where `tf.random.set_seed` was called: operations have seeds of their own."""

    def call(x):
        graph = tf.compat.v1.get_default_graph()
        before, graph.seed = graph.seed, 5
        try:
            return function(x)
        finally:
            graph.seed = before

    return call


def by_steps(h, own):
    return tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, h + own[:1]), (0, h))[1]


def drawn_in_a_loop(x):
    def step(i, h):
        own = tf.random.normal(tf.shape(h))
        return i + 1, h * own + own[:1]

    return tf.while_loop(lambda i, h: i < 2, step, (0, x))[1]


def now_and_then(function):
    def call(x, seeds):
        return ops.cond(keras.random.uniform((), seed=seeds) < 0.1, lambda: function(x), lambda: x)

    return drawn(call)


STEPS = tf.Variable(0, dtype=tf.int64, trainable=False)
GATE = tf.Variable(0.0, trainable=False)


def segments(x):
    kind = tf.cast(x[:, 0] > 0, tf.int32)
    return x + tf.gather(tf.math.unsorted_segment_mean(x, kind, 2), kind)


def until_all_are_positive(x):
    return tf.while_loop(lambda h: tf.reduce_any(h < 0), lambda h: (h + 1.0,), (x,))[0]


def whitened(x):
    return x @ tf.linalg.inv(tf.transpose(x) @ x + tf.eye(4))


def by_numpy(x):
    centred = tf.numpy_function(lambda a: a - a.mean(0), [x], tf.float32, stateful=False)
    return tf.ensure_shape(centred, x.shape)


def attends(give):
    """A layer that adds what learned queries, given to each example, find in its inputs."""

    class Attends(layers.Layer):
        def build(self, input_shape):
            self.queries = self.add_weight(shape=(3, 4))
            self.dense, self.attention = layers.Dense(4), layers.MultiHeadAttention(2, 2)

        def call(self, x):
            queries = self.dense(give(ops.convert_to_tensor(self.queries), x))
            return x + ops.mean(self.attention(queries, x[:, None]), 1)

        def compute_output_shape(self, shape):
            return shape

    return Maker(lambda: Attends(name="function_attends"))


#: Layers that mix; all are refused, by what the expression says.
MIXING = {
    "queries with a mean": (
        attends(lambda q, x: q[None] + mean(x)[:, None] + 0 * x[:, None]), "Mean"),
    "queries of the neighbour": (
        attends(lambda q, x: q[None] + ops.roll(x, 1, axis=0)[:, None]), "Roll"),
    "rows of the batch as queries": (
        attends(lambda q, x: q[None] + ops.reshape(ops.tile(x, (3, 1)), (-1, 3, 4))), "Reshape"),
    "each query many times": (attends(lambda q, x: ops.reshape(
        ops.repeat(q, ops.shape(x)[0], axis=0), (-1, 3, 4))), "positions"),
    "guard against NaN": (lambda x: ops.cond(ops.any(ops.isnan(x)), lambda: 0 * x, lambda: x),
                          "Any"),
    "clip_by_global_norm": (lambda x: tf.clip_by_global_norm([x], 1.0)[0][0], "L2Loss"),
    "largest of all": (lambda x: x / ops.maximum(1.0, ops.max(ops.abs(x))), "Max"),
    "mean": (lambda x: x - mean(x), "Mean"),
    "constant mean": (lambda x: x - tf.stop_gradient(mean(x)), "Mean"),
    "moments": (lambda x: tf.nn.batch_normalization(x, *tf.nn.moments(x, 0), None, None, 1e-3),
                "Mean"),
    "tiny": (lambda x: x + 1e-6 * mean(x), "Mean"),
    "closed gate": (lambda x: x + GATE * mean(x), "Mean"),
    "counter": (lambda x: x + tf.cast(tf.minimum(STEPS, 1), tf.float32) * mean(x), "Mean"),
    "later": (lambda x: tf.cond(STEPS > 1000, lambda: x - mean(x), lambda: x), "Mean"),
    "static size": (lambda x: x - mean(x) if (x.shape[0] or 0) > 30 else x, "Mean"),
    "in a function": (in_a_function, "Mean"),
    "mix-up": (drawn(mixed_up), "GatherV2"),
    "mix-up now and then": (now_and_then(lambda x: 0.5 * x + 0.5 * ops.roll(x, 1, axis=0)), "Roll"),
    "centred now and then": (now_and_then(lambda x: x - mean(x)), "Mean"),
    "places": (lambda x: x * ops.cast(ops.arange(ops.shape(x)[0]), "float32")[:, None],
               "positions"),
    "parity": (by_parity, "positions"),
    "places of numpy": (lambda x: x * np.arange(x.shape[0] or 1, dtype="float32")[:, None],
                        "positions"),
    "one-hot places": (lambda x: x + tf.one_hot(tf.range(tf.shape(x)[0]), 4), "positions"),
    "numbered": (lambda x: x + tf.cumsum(tf.ones_like(x)), "along the examples"),
    "half of the gradients": (half_of_the_gradients, "positions"),
    "fixed seed": (lambda x: keras.random.dropout(x, 0.5, seed=42), "from a fixed seed"),
    "fixed normal": (lambda x: x + tf.random.stateless_normal([tf.shape(x)[0], 1], [1, 2]),
                     "from a fixed seed"),
    "numpy": (by_numpy, "PyFunc"),
    "roll": (lambda x: tf.roll(x, 1, axis=0), "Roll"),
    "reverse": (lambda x: tf.reverse(x, [0]), "ReverseV2"),
    "cumsum": (tf.cumsum, "Cumsum"),
    "softmax": (lambda x: tf.nn.softmax(x, axis=0), "Softmax"),
    "sort": (lambda x: tf.sort(x, axis=0), "TopKV2"),
    "by rank": (lambda x: tf.gather(x, tf.argsort(x[:, 0])), "TopKV2"),
    "first": (lambda x: x - x[:1], "one example"),
    "first one": (lambda x: x - x[0], "one example"),
    "neighbour": (lambda x: tf.concat([x[1:], x[:1]], 0), "StridedSlice"),
    "pairs": (lambda x: x @ tf.transpose(x) @ x, "MatMul"),
    "einsum": (lambda x: tf.einsum("bi,ci->ci", x, x), "Einsum"),
    "whitened": (whitened, "MatMul"),
    "normalized": (lambda x: tf.linalg.normalize(x, axis=0)[0], "Sum"),
    "one after another": (lambda x: tf.scan(lambda a, b: a + b, x), "TensorListSetItem"),
    "as often as any needs": (until_all_are_positive, "decides when a loop"),
    "segments": (segments, "Segment"),
    "gradient of the batch": (gradient_of_the_batch, "custom gradient"),
    "gradient by place": (gradient_by_place, "custom gradient"),
    "gradient of the values": (gradient_of_the_values, "custom gradient"),
    "shuffled": (tf.random.shuffle, "shuffles the examples"),
    "how many differ": (
        lambda x: x + tf.cast(tf.size(tf.unique(tf.reshape(x, [-1]))[0]), tf.float32), "Unique"),
    "largest place": (lambda x: x + tf.cast(tf.argmax(x, 0), tf.float32), "ArgMax"),
    "padded": (lambda x: tf.pad(x, [[1, 0], [0, 0]])[:-1], "Pad"),
    "scattered": (
        lambda x: tf.scatter_nd(tf.range(tf.shape(x)[0])[:, None] // 2, x, tf.shape(x)), "Scatter"),
}  # fmt: skip

#: Those that the walk through their graph alone is asked about, but as evidence: it is what finds
#: them, and it finds others like them in whole models.
WALKED = (
    "largest of all", "constant mean", "moments", "tiny", "closed gate", "counter", "places",
    "parity", "one-hot places", "numbered", "roll", "reverse", "cumsum", "softmax", "sort",
    "by rank", "neighbour", "einsum", "normalized", "padded",
)  # fmt: skip

#: Each example has random numbers of its own, which others use as well.
DRAWN_TWICE = {
    "the first one's": (twice(lambda h, own: h + own[:1]), "StridedSlice"),
    "their mean": (twice(lambda h, own: h + mean(own)), "Mean"),
    "a table of them": (twice(lambda h, own: h + tf.gather(own, tf.argmax(h, 1))), "GatherV2"),
    "one that decides": (
        twice(lambda h, own: tf.cond(own[0, 0] > 0, lambda: h, lambda: -h)), "StridedSlice"),
    "in all steps": (twice(by_steps), "StridedSlice"),
    "of each step": (drawn_in_a_loop, "StridedSlice"),
    "for both axes": (drawn(of_both_axes), "several axes"),
    "of classes": (lambda x: (lambda d: x * d + d[:1])(tf.cast(tf.random.categorical(
        tf.zeros([tf.shape(x)[0], 3]), 4), tf.float32)), "StridedSlice"),
    "by one key in other places": (twice_by_key(of_other_places), "another shape or law"),
    "by one key and another law": (twice_by_key(lambda h, key: h + tf.random.stateless_uniform(
        tf.shape(h), key)), "another shape or law"),
    "by one key for all": (twice_by_key(lambda h, key: h + tf.random.stateless_normal(
        [1, 4], key)), "another shape or law"),
    "by one key, the first one's": (twice_by_key(lambda h, key: h + tf.random.stateless_normal(
        tf.shape(h), key)[:1]), "StridedSlice"),
    "by one key in a loop": (twice_by_key(in_steps(of_other_places)), "another shape or law"),
    "by one seed of operations": (by_operation_seed, "another shape or law"),
}  # fmt: skip


def own_places(x):
    best = tf.argmax(x, 1, output_type=tf.int32)
    rows = tf.range(tf.shape(x)[0])
    return x + tf.gather_nd(x, tf.stack([rows, best], 1))[:, None]


def own_loops(x):
    def until_positive(row):
        return tf.while_loop(  # -inf is among what it is tried with
            lambda h: tf.reduce_any(h < 0), lambda h: (h + 1.0,), (row,), maximum_iterations=20
        )[0]

    return tf.map_fn(until_positive, x)


def queries(x):
    same = tf.tile(tf.constant([[1.0, 2.0, 3.0, 4.0]]), [tf.shape(x)[0], 1])
    return x + tf.nn.relu(same @ tf.ones((4, 4)))


#: Layers that treat each example by itself; all are proved.
APART = {
    "sine": tf.sin,
    "dropout": Maker(lambda: layers.Dropout(0.5)),
    "noise": Maker(lambda: layers.GaussianNoise(0.1)),
    "own noise": lambda x: x + tf.random.normal(tf.shape(x)),
    "drawn once": lambda x: x * tf.random.stateless_uniform(tf.shape(x)[1:], [1, 2]),
    "map": lambda x: tf.map_fn(lambda row: row * tf.reduce_sum(row), x),
    "vectorized map": lambda x: tf.vectorized_map(lambda row: row * tf.reduce_sum(row), x),
    "own loops": own_loops,
    "sorted": lambda x: tf.sort(x, axis=-1),
    "by own rank": lambda x: ops.take_along_axis(x, ops.argsort(x, axis=-1), axis=-1),
    "drawn branch": lambda x: ops.cond(tf.random.uniform(()) < 0.5, lambda: 2 * x, lambda: x),
    "a fixed loop": lambda x: tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, 2 * h),
                                            (0, x))[1],
    "a token before": lambda x: tf.concat(
        [tf.tile(tf.constant([[1.0, 2.0]]), [tf.shape(x)[0], 1]), x], 1)[:, 1:5],
    "queries": queries,
    "own places": own_places,
    "repeated": lambda x: tf.reduce_sum(tf.reshape(tf.repeat(x, 3, axis=0), [-1, 3, 4]), 1),
    "clipped gradient": clipped_gradient,
    "gradient by a tape": gradient_by_a_tape,
    "silu": tf.nn.silu,
    "normalized": lambda x: tf.linalg.normalize(x, axis=1)[0],
    "log-sum-exp": lambda x: x - tf.reduce_logsumexp(x, 1, keepdims=True),
    "counts": lambda x: x + tf.cast(tf.math.bincount(
        tf.cast(tf.abs(x), tf.int32), minlength=4, maxlength=4, axis=-1), tf.float32),
    "determinant": lambda x: x + tf.linalg.det(
        x[:, :, None] * x[:, None, :] + tf.eye(4))[:, None],
    "area": lambda x: tf.reshape(
        tf.image.resize(tf.reshape(x, [-1, 2, 2, 1]), (2, 2), "area"), [-1, 4]),
}  # fmt: skip

#: Those whose examples have random numbers of their own; all are proved, too.
DRAWN_APART = {
    "own numbers twice": twice(lambda h, own: h + tf.reduce_mean(own, 1, keepdims=True)),
    "own numbers, sorted": twice(lambda h, own: h + tf.sort(own)),
    "own numbers and a number of all": twice(lambda h, own: h + own * tf.random.normal([1, 4])),
    "own numbers in a loop": lambda x: tf.while_loop(
        lambda i, h: i < 2, lambda i, h: (i + 1, h + tf.random.normal(tf.shape(h))), (0, x))[1],
    "own numbers in a map": lambda x: tf.map_fn(
        lambda pair: pair[0] * pair[1], (x, tf.random.normal(tf.shape(x))),
        fn_output_signature=tf.float32),
    "own numbers in a vectorized map": lambda x: tf.vectorized_map(
        lambda row: row * tf.random.normal([4]), x),
    "own numbers in a vectorized map with a seed": with_a_seed(lambda x: tf.vectorized_map(
        lambda row: row * tf.random.normal([4]), x)),
    "own classes": lambda x: x * tf.cast(tf.random.categorical(
        tf.zeros([tf.shape(x)[0], 3]), 4), tf.float32),
    "own columns of two squares": lambda x: x * tf.transpose(
        tf.random.normal([tf.shape(x)[0]] * 2) + tf.random.normal([tf.shape(x)[0]] * 2))[:, :1],
    "own numbers by one key": twice_by_key(
        lambda h, key: h + tf.random.stateless_normal(tf.shape(h), key)),
    "own numbers by one key in a loop": twice_by_key(in_steps(
        lambda h, key: h + tf.random.stateless_normal(tf.shape(h), key))),
    "own numbers by a split key": twice_by_key(
        lambda h, key: h + tf.random.stateless_uniform(tf.shape(h), key + 1)
        + tf.random.stateless_normal(tf.shape(h), key + 2)),
    "own draws in a branch": twice(
        lambda h, own: tf.cond(tf.random.uniform(()) < 0.5, lambda: h * own, lambda: h)),
}  # fmt: skip

#: Losses (labels, outputs) that mix.
LOSSES = {
    "mean of labels": (lambda y, p: tf.square(p - tf.reduce_mean(y)) + 0 * p, "Mean"),
    "part of the positives": (
        lambda y, p: tf.square(p - y) / tf.reduce_sum(tf.cast(y > 0, p.dtype)), "Sum"),
    "1e-7 of a mean": (lambda y, p: tf.square(p - y) + 1e-7 * tf.reduce_mean(p), "Mean"),
    "its gradient": (
        lambda y, p: tf.square(p - y) + (p - tf.stop_gradient(p)) * tf.reduce_mean(y), "Mean"),
    "for rare labels": (
        lambda y, p: tf.square(p - y) + tf.where(y > 9, tf.reduce_mean(p), 0.0), "Mean"),
    "reversed": (lambda y, p: tf.square(p - y) + tf.reverse(p - tf.stop_gradient(p), [0]),
                 "ReverseV2"),
    "in-batch negatives": (
        lambda y, p: -tf.linalg.diag_part(
            tf.nn.log_softmax(tf.matmul(p, y, transpose_b=True))), "MatMul"),
    "negatives by rows": (
        lambda y, p: tf.reduce_logsumexp(
            tf.vectorized_map(lambda v: tf.linalg.matvec(y, v), p), axis=1), "MatMul"),
    "(B,) against (B, 1)": (lambda y, p: tf.square(y[:, 0] - p[:, :1]), "combines examples"),
    "by place": (lambda y, p: tf.square(by_parity(p) - y)[:, 0], "positions"),
}  # fmt: skip
