"""What mixes the examples of a batch in ways that a proof may overlook, and innocent look-alikes.

Each is a function of (B, 4) inputs, or of inputs of the shape beside it.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

B = 8
PLACES = np.arange(B, dtype="float32")
SEED, FIVE = tf.Variable([1, 2]), tf.Variable([5.0], trainable=False)
SEEDS = tf.Variable([[1, 2], [3, 4]])
NOTHING = tf.Variable([0.0], trainable=False)


def mixed_gradient(op, g):
    return g * (1 + tf.reduce_sum(tf.abs(g)))


tf.RegisterGradient("OfTheBatch")(mixed_gradient)


def overridden(kind, function):
    """A function, one of whose operations has a gradient that mixes."""

    def call(x):
        graph = tf.compat.v1.get_default_graph()
        with graph.gradient_override_map({kind: "OfTheBatch"}):
            return function(x)

    return call


def with_gradient(forward, gradient):
    @tf.custom_gradient
    def function(h):
        return forward(h), gradient

    return function


def of_total(run):
    """A gradient that takes a tensor of the whole batch from around the function that it is in."""

    def call(x):
        total = tf.reduce_sum(tf.abs(x))
        return run(with_gradient(tf.identity, lambda g: g * total), x)

    return call


def in_function(function):
    return tf.function(function, autograph=False)


def written(count, step=1):
    """A list, some places of which stay empty."""

    def call(x):
        rows = tf.TensorArray(tf.float32, B, element_shape=(4,))
        _, rows = tf.while_loop(
            lambda i, rows: i < count,
            lambda i, rows: (i + step, rows.write(i, tf.gather(x, i))), (0, rows))  # fmt: skip
        return x + tf.ensure_shape(rows.stack(), [B, 4])

    return call


def mapped(function, *others):
    """A function of an example's row, and of a number that is its place."""
    return lambda x: tf.map_fn(lambda t: function(*t), (x, *others), fn_output_signature=tf.float32)


def by_counter(function):
    return lambda x: tf.map_fn(
        lambda i: function(x, i), tf.range(B), fn_output_signature=tf.float32
    )


def halves_of(x, size=None):
    """Groups of 32 examples, if there are so many, or of `size`."""
    count = tf.maximum(tf.shape(x)[0] // 32, 1) if size is None else tf.shape(x)[0] // size
    groups = tf.reshape(x, tf.stack([count, -1, 4]))
    return tf.reshape(groups - 0.5 * tf.reduce_max(groups, 1, keepdims=True), [-1, 4])


def list_of_places(x):
    places = tf.TensorArray(tf.float32, 2).unstack(tf.stack([tf.constant(PLACES)] * 2))
    return x * places.write(0, x[:, 0]).stack()[1][:, None]


def late_places(x):
    state = (0, x[:, 0], tf.zeros(B))
    step = lambda i, r, s: (i + 1, s, s + PLACES)  # noqa: E731
    return x * tf.while_loop(lambda i, r, s: i < 3, step, state)[1][:, None]


def places_used_in_the_loop(x):
    state = (0, x[:, 0], tf.zeros(B), tf.zeros(B))
    step = lambda i, h, r, s: (i + 1, h + h * r, s, s + PLACES)  # noqa: E731
    return x * tf.while_loop(lambda i, *_: i < 4, step, state)[1][:, None]


def ended_by_another_counter(start, step):
    """A list that is filled up to the place where the loop ends, by a counter of its own."""

    def call(x):
        rows = tf.TensorArray(tf.float32, B, element_shape=(4,)).unstack(tf.zeros([B, 4]))
        _, _, rows = tf.while_loop(
            lambda i, n, rows: n < B,
            lambda i, n, rows: (i + 1, n + step, rows.write(i, tf.gather(x, i))),
            (0, start, rows))  # fmt: skip
        return x + rows.stack()

    return call


def second_of_each_pair(x):
    ids = np.array([0, 0, *range(2, 2 * B)])
    return tf.reshape(tf.math.unsorted_segment_sum(tf.reshape(x, [2 * B, 2]), ids, 2 * B), [B, 4])


def lost_shape(x):
    shapes = (tf.TensorShape([]), tf.TensorShape([None, 4]))
    h = tf.while_loop(lambda i, h: i < 1, lambda i, h: (i + 1, h * 1.0), (0, x), shapes)[1]
    n = tf.cast(tf.reduce_sum(FIVE), tf.int32)
    moved = tf.tensor_scatter_nd_add(h, tf.range(n)[:, None], tf.ones([n, 4]))
    return tf.ensure_shape(moved, [B, 4])


def saturated(x):
    """A softmax over all, whose largest is exactly 1 now and then."""
    return x * tf.clip_by_value(
        tf.reduce_max(tf.nn.softmax(1e3 * tf.reshape(x, [1, -1]))), 0.5, 1.0)  # fmt: skip


def seeded(seed):
    """Random numbers from the seed that a function gives."""
    return lambda x: x * tf.random.stateless_uniform(tf.shape(x), seed())


def tiled_seed(x):
    return x * tf.while_loop(
        lambda i, h: i < 2,
        lambda i, h: (i + 1, h * tf.random.stateless_uniform(tf.shape(h), tf.stack([i, 7]))),
        (0, x))[1]  # fmt: skip


QUERIES, ONE_FOR_EACH = tf.Variable(np.eye(3, 4)), tf.Variable(np.eye(3 * B, 4))


def dense(h):
    """Keras' layer on more axes than two: a product of matrices between two changes of shape."""
    flat = tf.reshape(h, [-1, 4]) @ tf.ones([4, 4])
    return tf.reshape(flat, [-1, *h.shape[1:-1], 4])


def queried(give):
    """A dense layer on queries, and what they find in the inputs."""

    def call(x):
        queries = dense(tf.ensure_shape(give(tf.cast(QUERIES, x.dtype), x), [B, 3, 4]))
        found = tf.nn.softmax(tf.matmul(queries, x[..., None, :], transpose_b=True))
        return x + tf.reduce_sum(found * tf.nn.relu(queries), 1)

    return call


def image(function):
    return function, (2, 2, 3)


HIDDEN = {
    "by the counter of a map": by_counter(lambda x, i: tf.gather(x, i) * tf.cast(i, tf.float32)),
    "a map with places": mapped(lambda row, place: row * place, PLACES),
    "a vectorized map with places": lambda x: tf.vectorized_map(
        lambda t: t[0] * t[1], (x, tf.constant(PLACES))),
    "a branch by the counter": by_counter(
        lambda x, i: tf.cond(i < 4, lambda: tf.gather(x, i), lambda: -tf.gather(x, i))),
    "as many steps as the counter": by_counter(lambda x, i: tf.while_loop(
        lambda k, h: k < i, lambda k, h: (k + 1, h * 1.1), (0, tf.gather(x, i)))[1]),
    "a seed of the place": mapped(lambda row, place: row * tf.random.stateless_uniform(
        [4], tf.stack([tf.cast(place, tf.int32), 0])), PLACES),
    "others by a fixed order": lambda x: x + tf.map_fn(
        lambda i: tf.gather(x, i), tf.constant([1, 0, 3, 2, 5, 4, 7, 6]),
        fn_output_signature=tf.float32),
    "unstacked by number": lambda x: tf.stack([r * float(k) for k, r in enumerate(tf.unstack(x))]),
    "half of a list": written(4), "every second place of a list": written(8, 2),
    "one place of a list": lambda x: x + tf.TensorArray(tf.float32, B, element_shape=(4,)).write(
        2, tf.gather(x, 2)).stack(),
    "a list of places": list_of_places, "places after two steps": late_places,
    "places after two steps, used in the loop": places_used_in_the_loop,
    "ended by a counter that is faster": ended_by_another_counter(0, 2),
    "ended by a counter that began earlier": ended_by_another_counter(3, 1),
    "contrast of one image": (lambda x: tf.image.adjust_contrast(x, 3.0), (4, 3)),
    "places in the batch": image(lambda x: x + tf.cast(tf.nn.max_pool_with_argmax(
        x, 1, 1, "SAME", include_batch_in_index=True)[1], tf.float32)),
    "places as targets": lambda x: x * tf.cast(
        tf.math.in_top_k(tf.range(B) % 4, x, 2), tf.float32)[:, None],
    "categories by a fixed seed": lambda x: x * tf.cast(
        tf.random.stateless_categorical(x, 4, [1, 2]), tf.float32),
    "categories by place": lambda x: x * tf.cast(
        tf.random.categorical(tf.constant(np.eye(B, 3), x.dtype), 4), tf.float32),
    "gamma by a fixed seed": lambda x: x * tf.stop_gradient(
        tf.random.stateless_gamma(tf.shape(x), [1, 2], alpha=tf.abs(x) + 1.0)),
    "a seed that nobody changes": lambda x: x * tf.random.stateless_uniform(tf.shape(x), SEED),
    "a seed of steps": tiled_seed,
    "a seed from a list of seeds": seeded(lambda: tf.gather(SEEDS, 0)),
    "a seed from a function": seeded(in_function(lambda: SEED + 1)),
    "a seed from a branch": seeded(lambda: tf.cond(SEED[0] > 0, lambda: SEED + 1, lambda: SEED)),
    "a seed from a loop": seeded(lambda: tf.while_loop(
        lambda i, s: i < 2, lambda i, s: (i + 1, s + SEED), (0, tf.zeros([2], tf.int32)))[1]),
    "diagonals": (lambda x: x + tf.linalg.diag(x, k=(0, B - 1))[:, :B], (8,)),
    "unequal parts": lambda x: x + tf.stack(
        [tf.reduce_sum(p, 0) for p in tf.split(x, [2, 0] + [1] * (B - 2))]),
    "parts of copies": lambda x: x + tf.stack(
        [tf.reduce_sum(p, 0) for p in tf.split(tf.tile(x, [2, 1]), B)]),
    "a map over copies": lambda x: x + tf.reshape(
        tf.map_fn(lambda r: r * 1.0, tf.repeat(x, 2, axis=0)), [2, B, 4])[0],
    "places as bool": lambda x: x + tf.gather_nd(x, tf.cast(tf.cast(
        tf.stack([tf.range(B), tf.zeros(B, tf.int32)], 1), tf.bool), tf.int32))[:, None],
    "a segment that is left out": lambda x: x + tf.math.unsorted_segment_sum(
        x, [*range(B - 1), -1], B),
    "pairs of one example": second_of_each_pair,
    "blocks of other examples": (lambda x: tf.batch_to_space(
        tf.tile(x, [1, 2, 2, 1]), [2, 2], [[0, 0], [0, 0]])[:, :1, :1] + 0 * x[:2], (1, 1, 3)),
    "groups of two": lambda x: halves_of(x, 2), "one group": halves_of,
    "a gradient of zeros": lambda x: x + with_gradient(
        tf.zeros_like, lambda g: tf.reduce_sum(g, 0, keepdims=True) + 0 * g)(x),
    "a gradient of a number": lambda x: x * (1 + with_gradient(
        lambda h: tf.zeros(()), lambda g: g * tf.ones([B, 4]))(x)),
    "a complex gradient": lambda x: tf.math.real(with_gradient(
        tf.identity, lambda g: g * tf.cast(1 + tf.reduce_sum(tf.abs(g)), g.dtype))(
            tf.complex(x, x))),
    "a gradient clipped by the norm of all": with_gradient(
        tf.identity, lambda g: tf.clip_by_norm(g, 1.0)),
    "another gradient of an operation without a rule": overridden(
        "BesselI1e", tf.math.bessel_i1e),
    "another gradient of ones": overridden("OnesLike", lambda x: x * tf.raw_ops.OnesLike(x=x)),
    "another gradient in a function": in_function(overridden("Square", tf.square)),
    "a total from around a function": of_total(lambda f, x: in_function(f)(x)),
    "a total from around a map": of_total(tf.map_fn),
    "a total from around a loop": of_total(lambda f, x: tf.while_loop(
        lambda i, h: i < 2, lambda i, h: (i + 1, f(h)), (0, x))[1]),
    "a total from around a branch": of_total(lambda f, x: tf.cond(
        tf.random.uniform(()) < 2.0, lambda: f(x), lambda: x)),
    "a shape that was lost": lost_shape, "a saturated softmax": saturated,
    "bias by place": lambda x: tf.transpose(tf.nn.bias_add(tf.transpose(x), PLACES)),
    "stitched in another order": lambda x: x + tf.dynamic_stitch(
        [tf.constant([7, 6, 5, 4]), tf.constant([0, 1, 2, 3])], [x[:4], x[4:]]),
    "shifted places": lambda x: x + tf.cast(
        tf.bitwise.right_shift(tf.range(B), 1), tf.float32)[:, None],
    "ranks": lambda x: x + tf.cast(
        tf.math.invert_permutation(tf.argsort(x[:, 0])), tf.float32)[:, None],
    "largest of all in one": lambda x: tf.tensor_scatter_nd_max(
        x, tf.constant([[0]]), tf.reduce_max(x, 0, keepdims=True)),
    "a table of pairs": lambda x: x + tf.cast(tf.math.confusion_matrix(
        tf.argmax(x, 1), tf.argmax(-x, 1), num_classes=4), tf.float32)[:1],
    "a matrix of pairs": lambda x: x + tf.einsum(
        "bb->b", tf.matmul(x, x, transpose_b=True))[:, None],
    "gathered on the last axis": lambda x: x + tf.transpose(tf.gather(
        tf.transpose(x), tf.constant([1, 0, 3, 2, 5, 4, 7, 6]), axis=-1)),
    "backwards": lambda x: x[::-1],
    "sums of products": lambda x: x + tf.tensordot(x, x, [[0], [0]])[:1],
    "those above zero": lambda x: x + tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0), 0),
    "evenly spaced": lambda x: x * tf.linspace(0.0, 1.0, B)[:, None],
    "queries of the batch before": queried(lambda q, x: q + 0 * q + tf.roll(x, 1, 0)[:, None]),
    "queries with a mean": queried(
        lambda q, x: tf.tile((q + tf.reduce_mean(x, 0))[None], [B, 1, 1])),
    "queries with a mean that is multiplied by 0": queried(
        lambda q, x: tf.tile((q + 0 * tf.reduce_mean(x, 0))[None], [B, 1, 1])),
    "rows of the batch as queries": queried(
        lambda q, x: tf.tile(tf.reshape(tf.tile(x, [3, 1]), [1, 3 * B, 4])[:, :3], [B, 1, 1])),
    "copies of the batch as queries": queried(
        lambda q, x: q + tf.reshape(tf.tile(x, [3, 1]), [B, 3, 4])),
    "examples that become queries": (lambda x: x + dense(
        tf.reshape(tf.transpose(x, [1, 0, 2]), [B, 3, 4])), (3, 4)),
    "each query many times": queried(
        lambda q, x: tf.reshape(tf.repeat(q, tf.shape(x)[0], axis=0), [-1, 3, 4])),
    "queries of places": queried(
        lambda q, x: tf.reshape(tf.cast(ONE_FOR_EACH, x.dtype), [-1, 3, 4])),
    "constant queries of places": queried(lambda q, x: tf.reshape(
        dense(tf.constant(np.eye(3 * B, 4), x.dtype)), [-1, 3, 4])),
    "queries of places beside each other": queried(lambda q, x: tf.transpose(
        tf.reshape(tf.cast(ONE_FOR_EACH, x.dtype), [3, -1, 4]), [1, 0, 2])),
    "two queries in threes": queried(
        lambda q, x: tf.reshape(tf.tile(q[:2], [12, 1]), [-1, 3, 4])),
    "as many queries as examples": lambda x: x + tf.reduce_sum(dense(tf.transpose(
        tf.tile(tf.cast(ONE_FOR_EACH, x.dtype)[None, :B], [B, 1, 1]), [1, 0, 2])), 1),
    "numbers that two examples share": lambda x: x * tf.tile(
        tf.random.uniform([B // 2, 1]), [2, 1]),
}  # fmt: skip


def steps_of_time(x):
    return tf.transpose(x, [1, 0, 2])


def noisy_shift(x):
    shift = tf.random.uniform((tf.shape(x)[0], 1), 0, 6, tf.int32)
    return tf.gather(x, (tf.range(6)[None] + shift) % 6, batch_dims=1)


def scattered_top_k(x):
    rows = tf.repeat(tf.range(tf.shape(x)[0])[:, None], 2, 1)
    places = tf.stack([rows, tf.math.top_k(x[:, :, 0], 2)[1]], -1)
    shape = [tf.shape(x)[0], 2]
    return x * tf.scatter_nd(places, tf.ones(shape), [shape[0], 6])[:, :, None]


def with_queries(give):
    """As `queried`, of the mean of an example's steps."""
    return lambda x: x + queried(give)(tf.reduce_mean(x, 1))[:, None]


#: Of (B, 6, 4) inputs.
INNOCENT = {
    "tiled queries": with_queries(lambda q, x: tf.tile(q[None], [tf.shape(x)[0], 1, 1])),
    "queries tiled as rows": with_queries(
        lambda q, x: tf.reshape(tf.tile(q, [tf.shape(x)[0], 1]), [-1, 3, 4])),
    "queries after each other": with_queries(lambda q, x: tf.reshape(
        tf.tile(tf.reshape(q, [12]), [tf.shape(x)[0]]), [-1, 3, 4])),
    "constant queries": with_queries(lambda q, x: tf.reshape(
        dense(tf.constant(np.tile(np.eye(3, 4), (B, 1)), x.dtype)), [-1, 3, 4])),
    "broadcast queries": with_queries(
        lambda q, x: tf.broadcast_to(q, [tf.shape(x)[0], 3, 4])),
    "repeated queries": with_queries(lambda q, x: tf.repeat(q[None], tf.shape(x)[0], axis=0)),
    "queries and zeros": with_queries(lambda q, x: q + tf.zeros_like(x)[:, None]),
    "queries of the example": with_queries(lambda q, x: q * x[:, None]),
    "chosen queries": with_queries(
        lambda q, x: tf.gather(q[None], tf.zeros([tf.shape(x)[0]], tf.int32))),
    "queries that are drawn": with_queries(
        lambda q, x: tf.reshape(tf.random.normal([tf.shape(x)[0] * 3, 4]), [-1, 3, 4])),
    "positions": lambda x: x + tf.range(6, dtype=tf.float32)[None, :, None],
    "a causal mask": lambda x: tf.linalg.matmul(tf.linalg.band_part(tf.ones((6, 6)), -1, 0), x),
    "the last step": lambda x: x * tf.gather(
        x, tf.cast(tf.argmax(x[:, :, 0], 1), tf.int32), batch_dims=1)[:, None],
    "the best step": lambda x: x * tf.gather_nd(
        x, tf.argmax(x[:, :, :1], 1), batch_dims=1)[:, None],
    "a mask of lengths": lambda x: x * tf.sequence_mask(
        tf.cast(tf.abs(x[:, 0, 0]), tf.int32), 6, dtype=tf.float32)[:, :, None],
    "the largest": lambda x: x * tf.nn.top_k(x[:, :, 0], 1)[0][:, :, None],
    "a scan over time": lambda x: steps_of_time(tf.scan(lambda a, b: a + b, steps_of_time(x))),
    "Keras' scan": lambda x: steps_of_time(ops.scan(
        lambda c, b: (c + b, c + b), ops.zeros_like(x[:, 0]), steps_of_time(x))[1]),
    "states of zeros": lambda x: steps_of_time(tf.scan(
        lambda h, t: tf.tanh(h + t), steps_of_time(x),
        initializer=tf.zeros([tf.shape(x)[0], 4]))),
    "a fixed number of turns": lambda x: ops.fori_loop(0, 3, lambda i, h: h * 0.5, x),
    "another gradient of each example": lambda x: tf.map_fn(overridden("Square", tf.square), x),
    "frequencies": lambda x: tf.math.real(tf.signal.fft(tf.cast(x, tf.complex64))),
    "distances": lambda x: x + tf.reduce_sum(
        tf.norm(x[:, :, None] - x[:, None], axis=-1), -1, keepdims=True),
    "clipped by its norm": lambda x: tf.clip_by_norm(x, 1.0, axes=[1, 2]),
    "divided by its norm": lambda x: tf.map_fn(lambda row: row / tf.norm(row), x),
    "a median": lambda x: x - ops.quantile(x, 0.5, axis=1, keepdims=True),
    "straight through": with_gradient(tf.round, lambda g: g),
    "a reversed gradient": with_gradient(tf.identity, lambda g: -g),
    "a reversed gradient in a map": lambda x: tf.map_fn(
        with_gradient(tf.identity, lambda g: -g), x),
    "computed again": lambda x: tf.recompute_grad(tf.tanh)(x),
    "unstacked over time": lambda x: tf.stack(
        [row * k for k, row in enumerate(tf.unstack(x, axis=1))], 1),
    "repeated": lambda x: ops.reshape(ops.mean(ops.reshape(
        ops.repeat(x, 2, axis=0), (-1, 2, 6, 4)), 1), (-1, 6, 4)),
    "eigenvalues": lambda x: x * tf.linalg.eigvalsh(tf.matmul(x, x, transpose_b=True))[:, :, None],
    "a system of equations": lambda x: tf.linalg.solve(
        tf.matmul(x, x, transpose_b=True) + tf.eye(6), x),
    "a branch by a draw": lambda x: tf.cond(
        tf.random.uniform(()) < 0.5, lambda: x, lambda: x * 2.0),
    "no NaN": lambda x: tf.where(tf.math.is_nan(x), tf.zeros_like(x), x),
    "an assertion": lambda x: (tf.debugging.assert_all_finite(x, "a"), x)[1],
    "attention": lambda x: tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x),
    "bits": lambda x: x * ops.cast(ops.bitwise_and(ops.cast(x, "int32"), 1), "float32"),
    "sorted places": lambda x: x + tf.cast(
        tf.searchsorted(tf.sort(x[:, :, 0], 1), x[:, :, 1]), tf.float32)[:, :, None],
    "own counts": lambda x: x + tf.cast(tf.reduce_sum(
        tf.cast(x[:, :, None] == x[:, None], tf.int32), 2), tf.float32),
    "identity matrices": lambda x: tf.matmul(tf.eye(6, batch_shape=[tf.shape(x)[0]]), x),
    "routing": lambda x: tf.while_loop(
        lambda i, b: i < 3, lambda i, b: (i + 1, b + tf.nn.softmax(b) * x),
        (0, tf.zeros_like(x)))[1],
    "until it is small": lambda x: tf.map_fn(lambda row: tf.while_loop(
        lambda h: tf.norm(h) > 1.0, lambda h: (h * 0.5,), (row,), maximum_iterations=20)[0], x),
    "a seed that is drawn in a function": lambda x: x * tf.random.stateless_uniform(
        tf.shape(x), in_function(lambda: tf.random.uniform([2], 0, 9, tf.int32))()),
    "shifted by a draw": noisy_shift, "the two largest": scattered_top_k,
    "one order of time for all": lambda x: tf.gather(
        x, tf.random.shuffle(tf.range(6)), axis=1),
    "masked by draws": lambda x: tf.where(
        tf.random.uniform((tf.shape(x)[0], 6, 1)) < 0.15, 0.0, x),
    "Keras' softplus": keras.activations.softplus,
}  # fmt: skip
