"""Networks and data for architectures.py, in small."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

B, T, V = 3, 6, 11
GENERATOR = np.random.default_rng(5)


def inp(*shape, dtype=None):
    return keras.Input(shape, dtype=dtype or keras.config.dtype_policy().compute_dtype)


def normal(*shape):
    return GENERATOR.normal(size=(B, *shape)).astype(np.float32)


def ids(*shape, high=V):
    return GENERATOR.integers(1, high, (B, *shape)).astype(np.int32)


def numbers(x, y=(1,)):
    return lambda: (normal(*x), normal(*y) + 3)


def classes(x, count=3, *shape):
    return lambda: (normal(*x), ids(*shape, high=count))


def tokens(*y, high=V):
    return lambda: (ids(T), ids(*y, high=high) if y else normal(1) + 3)


def entropy(**kwargs):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


def chain(*stack, shape, dtype=None):
    """A sequential model; layers are made anew for each build."""
    return lambda: keras.Sequential([inp(*shape, dtype=dtype), *(layer() for layer in stack)])


def graph(make, *shapes, dtype=None):
    """A functional model from a function of its inputs."""

    def build():
        inputs = [inp(*s, dtype=dtype) for s in shapes]
        return keras.Model(inputs if len(inputs) > 1 else inputs[0], make(*inputs))

    return build


def L(cls, *args, **kwargs):
    return lambda: cls(*args, **kwargs)


def D(units, activation=None, **kwargs):
    return lambda: layers.Dense(units, activation, **kwargs)


FLAT, POOL1, POOL2 = (L(layers.Flatten), L(layers.GlobalAveragePooling1D),
                      L(layers.GlobalAveragePooling2D))  # fmt: skip
EMBED = L(layers.Embedding, V, 4)
MASKED = L(layers.Embedding, V, 4, mask_zero=True)


def conv_norm(x, filters, size=3, strides=1, activation="relu"):
    x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
    return layers.Activation(activation)(layers.GroupNormalization(2)(x))


def resnet(x):
    x = conv_norm(x, 4)
    for strides, filters in ((1, 4), (2, 6)):
        h = conv_norm(conv_norm(x, filters, strides=strides), filters, activation="linear")
        x = layers.ReLU()(h + layers.Conv2D(filters, 1, strides, padding="same")(x))
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(x))


def squeeze_and_excite(x):
    x = conv_norm(x, 4)
    s = layers.Dense(4, "sigmoid")(layers.Dense(2, "relu")(layers.GlobalAveragePooling2D()(x)))
    return layers.Dense(1)(layers.GlobalAveragePooling2D()(x * layers.Reshape((1, 1, 4))(s)))


def mobile(x):
    for filters, strides in ((4, 1), (6, 2)):
        x = layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False)(x)
        x = layers.ReLU(6.0)(layers.GroupNormalization(1)(x))
        x = conv_norm(x, filters, 1)
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(x))


def unet(x):
    down = conv_norm(x, 4)
    h = conv_norm(layers.MaxPooling2D()(down), 6)
    up = layers.Conv2DTranspose(4, 2, 2)(h) + layers.Conv2D(4, 1)(layers.UpSampling2D()(h))
    return layers.Conv2D(1, 1)(layers.Concatenate()([down, up]))


def wavenet(x):
    x = layers.Conv1D(4, 1)(x)
    for rate in (1, 2):
        gate = [layers.Conv1D(4, 2, padding="causal", dilation_rate=rate, activation=a)(x)
                for a in ("tanh", "sigmoid")]  # fmt: skip
        x = x + layers.Conv1D(4, 1)(gate[0] * gate[1])
    return layers.Dense(1)(x)


def block(x, heads=2, **kwargs):
    h = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(heads, 4)(h, h, **kwargs)
    h = layers.Dense(8, "gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(x.shape[-1])(h)


def decoder(x):
    table = layers.ReversibleEmbedding(V, 4)
    return table(block(table(x), use_causal_mask=True), reverse=True)


def encoder(x):
    h = layers.Embedding(V, 4, mask_zero=True)(x)
    return layers.Dense(3)(layers.GlobalAveragePooling1D()(block(h)))


class Queries(layers.Layer):
    """Three vectors that are learned, given to each example by a function of them and the inputs.

    Without a function they are added to zeros, as many as the batch has examples.
    """

    def __init__(self, give=None):
        super().__init__()
        self.give = give or (lambda q, x: q[None] + ops.zeros_like(x[:, :1, :1]))

    def build(self, input_shape):
        self.queries = self.add_weight(shape=(3, 4), name="queries")

    def call(self, x):
        return self.give(ops.convert_to_tensor(self.queries), x)

    def compute_output_shape(self, shape):
        return shape[0], 3, 4


def attended(h, tokens, make=layers.Dense):
    """Queries attend to tokens, and pass a layer of their own."""
    h = h + layers.MultiHeadAttention(2, 2)(layers.LayerNormalization()(h), tokens)
    return h + make(4)(layers.LayerNormalization()(h))


def perceiver(x):
    latents = Queries(lambda q, x: ops.tile(q[None], (ops.shape(x)[0], 1, 1)))(x)
    h = layers.Dense(4, "gelu")(latents)
    for _ in range(2):
        h = block(attended(h, x))
    return layers.Dense(1)(layers.GlobalAveragePooling1D()(h))


def detr(x):
    places = Queries()(x)
    tokens = block(layers.Dense(4)(x))
    h = ops.zeros_like(places)
    for _ in range(2):
        own = layers.Dense(4)(places) + h
        h = attended(layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 2)(own, own)),
                     tokens)  # fmt: skip
    return layers.Concatenate()([layers.Dense(2)(h), layers.Dense(3, "sigmoid")(h)])


def q_former(x, words):
    queries = Queries(lambda q, x: ops.broadcast_to(q[None], (ops.shape(x)[0], 3, 4)))(x)
    queries = layers.EinsumDense("bqd,de->bqe", (None, 4))(queries)
    h = block(layers.Concatenate(axis=1)([queries, layers.Dense(4)(words)]))
    h = attended(h[:, :3], x, lambda units: layers.Dense(units, "gelu"))
    return layers.Dense(1)(ops.max(h, axis=1))


def learned_queries(x):
    queries = Queries(lambda q, x: ops.broadcast_to(q[None], (ops.shape(x)[0], 3, 4)))(x)
    found = layers.Attention()([layers.Dense(4)(queries), layers.Dense(4)(x)])
    return layers.Dense(1)(ops.max(found, axis=1))


def vision_transformer(x):
    h = layers.Reshape((-1, 6))(layers.Conv2D(6, 2, 2)(x))
    return layers.Dense(3)(layers.LayerNormalization()(block(h))[:, 0])


def mixer(x):
    h = layers.Reshape((-1, 4))(layers.Conv2D(4, 2, 2)(x))
    mixed = layers.Dense(h.shape[1])(layers.Dense(5, "gelu")(layers.Permute((2, 1))(h)))
    h = h + layers.Permute((2, 1))(mixed)
    return layers.Dense(3)(layers.GlobalAveragePooling1D()(h + layers.Dense(4, "gelu")(h)))


def seq2seq(x):
    h = layers.Embedding(V, 4)(x)
    _, *state = layers.LSTM(3, return_state=True)(h)
    out = layers.LSTM(3, return_sequences=True)(h, initial_state=state)
    return layers.Dense(V)(layers.Concatenate()([out, layers.Attention()([out, h[..., :3]])]))


def scores(x):
    h = layers.Dense(4)(x)
    a, weights = layers.AdditiveAttention()([h, h], return_attention_scores=True)
    return layers.Dense(1)(layers.Flatten()(layers.Concatenate()([a, weights])))


def two_towers(a, b):
    tower = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(4)])
    return layers.Dot(1)([tower(a), layers.Dense(4)(b)]) + layers.Dot(1)([tower(a), tower(b)])


def deep_fm(x):
    e, w = layers.Embedding(V, 3)(x), layers.Embedding(V, 1)(x)
    pairs = 0.5 * ops.sum(ops.square(ops.sum(e, 1)) - ops.sum(ops.square(e), 1), 1, keepdims=True)
    return ops.sum(w, 1) + pairs + layers.Dense(1)(layers.Dense(4, "relu")(layers.Flatten()(e)))


def dlrm(x, c):
    e = layers.Embedding(V, 4)(ops.cast(ops.abs(c) * 3, "int32"))
    h = ops.concatenate([layers.Dense(4, "relu")(x)[:, None], e], 1)
    pairs = layers.Flatten()(ops.matmul(h, ops.transpose(h, (0, 2, 1))))
    return layers.Dense(1)(layers.Dense(5, "relu")(ops.concatenate([pairs, h[:, 0]], 1)))


def cross(x):
    h = x
    for _ in range(2):
        h = x * layers.Dense(x.shape[-1])(h) + h
    return layers.Dense(1)(h)


def deep_sets(x):
    return layers.Dense(1)(ops.max(layers.Dense(5, "relu")(layers.Dense(5, "tanh")(x)), 1))


def graph_network(x, a):
    for _ in range(2):
        x = ops.relu(ops.matmul(ops.softmax(a), layers.Dense(4)(x)) + layers.Dense(4)(x))
    return layers.Dense(1)(ops.mean(x, 1))


def experts(x):
    gates = layers.Dense(3, "softmax")(x)
    outs = ops.stack([layers.Dense(2, "tanh")(x) for _ in range(3)], 1)
    return ops.sum(gates[..., None] * outs, 1)


def highway(x):
    for _ in range(2):
        t = layers.Dense(4, "sigmoid")(x)
        x = t * layers.Dense(4, "relu")(x) + (1 - t) * x
    return layers.Dense(1)(x)


def autoencoder(x):
    return layers.Dense(5, "sigmoid")(layers.Dense(2, "elu")(x))


def film(x, c):
    gain, shift = ops.split(layers.Dense(8)(c), 2, -1)
    return layers.Dense(1)(ops.tanh(layers.Dense(4)(x) * gain + shift))


def flow(x):
    step = layers.Dense(4, "tanh")
    for _ in range(4):  # one layer, integrated over time
        x = x + 0.3 * step(x)
    return layers.Dense(1)(x)


def heads(x):
    h = layers.Dense(4, "tanh")(x)
    return {"one": layers.Dense(1, name="one")(h), "two": layers.Dense(3, name="two")(h)}


def lora(layer, *shape):
    def build():
        made = layer()
        made.build((None, *shape))
        made.enable_lora(2)
        # Its second factor starts at zero, and with it the gradient of the first.
        return made

    return build


class Own(layers.Layer):
    """Weights of one's own, and an activation at the end."""

    def __init__(self, units, activation):
        super().__init__()
        self.units, self.activation = units, keras.activations.get(activation)

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1], self.units))
        self.b = self.add_weight(name="b", shape=(self.units,), initializer="zeros")

    def call(self, x):
        return self.activation(ops.matmul(x, self.w) + self.b)


class Kernel(layers.Layer):
    """Radial basis functions: no product with the weights."""

    def build(self, shape):
        self.centers = self.add_weight(name="centers", shape=(5, shape[-1]))
        self.width = self.add_weight(name="width", shape=(5,), initializer="ones")

    def call(self, x):
        squares = ops.sum(ops.square(x[:, None] - self.centers), -1)
        return ops.exp(-squares * ops.square(self.width) / 4)


class Spectral(layers.Layer):
    """A filter in the frequencies, kept as real and imaginary part."""

    def build(self, shape):
        size = (shape[1] // 2 + 1, shape[2])
        self.re, self.im = (self.add_weight(name=n, shape=size) for n in ("re", "im"))

    def call(self, x):
        z = tf.signal.rfft(tf.transpose(x, [0, 2, 1])) * tf.transpose(tf.complex(self.re, self.im))
        return tf.transpose(tf.signal.irfft(z), [0, 2, 1])


class Scan(layers.Layer):
    """A state space, one step after another."""

    def build(self, shape):
        self.a = self.add_weight(name="a", shape=(shape[-1],))
        self.b = self.add_weight(name="b", shape=(shape[-1],))

    def call(self, x):
        def step(state, now):
            state = ops.tanh(self.a) * state + self.b * now
            return state, state

        rows = ops.transpose(x, (1, 0, 2))
        return ops.transpose(ops.scan(step, ops.zeros_like(rows[0]), rows)[1], (1, 0, 2))


class Physics(keras.Model):
    """Its output is a derivative of what the network computes."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4, "tanh"), layers.Dense(1)

    def build(self, shape):
        self.hidden.build(shape)
        self.out.build((None, 4))

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            u = self.out(self.hidden(x))
        # Keras builds models on symbols, between which it sees no gradient.
        return tape.gradient(u, x, unconnected_gradients="zero") + u


class Nested(keras.Model):
    """Takes its inputs by name."""

    def __init__(self):
        super().__init__()
        self.table, self.dense, self.out = layers.Embedding(V, 3), layers.Dense(3), layers.Dense(1)

    def call(self, inputs):
        return self.out(ops.tanh(self.dense(inputs["x"]) + ops.mean(self.table(inputs["c"]), 1)))


class Hyper(keras.Model):
    """One network makes the weights of another, for each example its own."""

    def __init__(self):
        super().__init__()
        self.maker, self.out = layers.Dense(12), layers.Dense(1)

    def call(self, x):
        kernel = ops.reshape(self.maker(x), (-1, 4, 3))
        return self.out(ops.einsum("bi,bij->bj", x, kernel))


class TiedInParent(keras.Model):
    """The head uses the table that another layer holds."""

    def __init__(self, between=ops.tanh):
        super().__init__()
        self.table = layers.Embedding(V, 4)
        self.between = between

    def call(self, x):
        return ops.matmul(self.between(self.table(x)), ops.transpose(self.table.embeddings))
