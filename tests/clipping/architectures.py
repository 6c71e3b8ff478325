"""Architectures whose private gradients test_architectures.py compares with brute force.

A new one is one line: name, function that builds the model, data, loss, and keywords of
`Architecture`. Models are built under the policies float32 and float64, so they take the dtype of
their inputs from `inp`. They draw no random numbers: the reference takes one example at a time.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

B, T, V = 3, 6, 11
GENERATOR = np.random.default_rng(5)
TABLE = {}


@dataclasses.dataclass
class Architecture:
    """A model, data and a loss.

    Attributes:
        build: function without arguments that makes the model.
        data: function without arguments that gives (x, y) of `B` examples.
        loss: the name of one, or a function without arguments that makes what `compile` takes.
        small: whether it is part of the ordinary tests.
        scale: standard deviation of what is added to the initial weights.
        tolerance: relative; for models that compute in float32 under every policy.
    """

    build: Callable
    data: Callable
    loss: object
    small: bool = False
    scale: float = 0.1
    tolerance: float = 1e-5


def add(name, build, data, loss="mse", **kwargs):
    assert name not in TABLE, name
    TABLE[name] = Architecture(build, data, loss, **kwargs)


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
        return tape.gradient(u, x) + u


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

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(V, 4)

    def call(self, x):
        return ops.matmul(ops.tanh(self.table(x)), ops.transpose(self.table.embeddings))


IMAGE, SEQUENCE, ROW = (8, 8, 2), (T, 3), (4,)
add("logistic regression", chain(D(1, "sigmoid"), shape=ROW), lambda: (normal(4), ids(1, high=2)),
    "binary_crossentropy", small=True)  # fmt: skip
add("softmax regression", chain(D(3, "softmax"), shape=ROW), classes(ROW),
    "sparse_categorical_crossentropy")  # fmt: skip
add("own softmax", chain(D(4, "tanh"), L(Own, 3, "softmax"), shape=ROW), classes(ROW),
    "sparse_categorical_crossentropy", small=True)  # fmt: skip
add("own sigmoid", chain(L(Own, 4, "tanh"), L(Own, 1, "sigmoid"), shape=ROW),
    lambda: (normal(4), ids(1, high=2)), "binary_crossentropy")  # fmt: skip
add("many labels", chain(D(5, "relu"), D(4, "sigmoid"), shape=ROW),
    lambda: (normal(4), ids(4, high=2)), "binary_crossentropy")  # fmt: skip
add("mlp", chain(D(6, "relu"), D(5, "selu"), D(1), shape=ROW), numbers(ROW), "huber")
add("mlp with leaks", chain(D(6), L(layers.PReLU), L(layers.LeakyReLU), D(1), shape=ROW),
    numbers(ROW))  # fmt: skip
add("highway", graph(highway, ROW), numbers(ROW), "mae")
add("autoencoder", graph(autoencoder, (5,)), numbers((5,), (5,)), "log_cosh")
add("factors of an integral", graph(flow, ROW), numbers(ROW), small=True)
add("experts", graph(experts, ROW), numbers(ROW, (2,)))
add("film", graph(film, ROW, (3,)), lambda: ([normal(4), normal(3)], normal(1) + 3))
add("hypernetwork", Hyper, numbers(ROW))
add("radial basis", chain(L(Kernel), D(1), shape=ROW), numbers(ROW))
add("derivative", Physics, numbers(ROW, (4,)), small=True)
add("named inputs", Nested, lambda: ({"x": normal(3), "c": ids(2)}, normal(1) + 3), small=True)
add("two losses", graph(heads, ROW),
    lambda: (normal(4), {"one": normal(1) + 3, "two": ids(high=3)}),
    lambda: {"one": "mse", "two": entropy()}, small=True)  # fmt: skip
add("lora dense", chain(lora(D(5), 4), D(1), shape=ROW), numbers(ROW))
add("lora sigmoid", chain(D(4, "tanh"), lora(D(1, "sigmoid"), 4), shape=ROW),
    lambda: (normal(4), ids(1, high=2)), "binary_crossentropy")  # fmt: skip
add("lora embedding", chain(lora(EMBED, T), FLAT, D(1), shape=(T,), dtype="int32"), tokens())
add("maxout", graph(lambda x: layers.Dense(1)(ops.max(layers.Reshape((3, 4))(layers.Dense(12)(x)),
                                                       1)), ROW), numbers(ROW))  # fmt: skip
add("convolutions", chain(L(layers.Conv2D, 4, 3, activation="relu"), L(layers.MaxPooling2D),
                          L(layers.Conv2D, 3, 2, groups=1), FLAT, D(3), shape=IMAGE),
    classes(IMAGE), entropy, small=True)  # fmt: skip
add("separable", chain(L(layers.SeparableConv2D, 4, 3), L(layers.SeparableConv2D, 3, 3), POOL2,
                       D(1), shape=IMAGE), numbers(IMAGE))  # fmt: skip
add("mobile", graph(mobile, IMAGE), classes(IMAGE), entropy)
add("residual", graph(resnet, IMAGE), classes(IMAGE), entropy)
add("squeeze and excite", graph(squeeze_and_excite, IMAGE), numbers(IMAGE))
add("unet", graph(unet, IMAGE), numbers(IMAGE, (8, 8, 1)))
add("wavenet", graph(wavenet, SEQUENCE), numbers(SEQUENCE, (T, 1)))
add("text convolution", chain(EMBED, L(layers.Conv1D, 4, 3, activation="relu"),
                              L(layers.GlobalMaxPooling1D), D(3), shape=(T,), dtype="int32"),
    lambda: (ids(T), ids(high=3)), entropy)  # fmt: skip
add("volumes", chain(L(layers.Conv3D, 3, 2), L(layers.MaxPooling3D), FLAT, D(1),
                     shape=(4, 4, 4, 2)),
    numbers((4, 4, 4, 2)))  # fmt: skip
add("convolutional lstm", chain(L(layers.ConvLSTM1D, 2, 2), FLAT, D(1), shape=(3, 4, 2)),
    numbers((3, 4, 2)))  # fmt: skip
add("rnn", chain(L(layers.SimpleRNN, 4), D(1), shape=SEQUENCE), numbers(SEQUENCE))
add("lstm", chain(L(layers.LSTM, 4, return_sequences=True), L(layers.LSTM, 3), D(1),
                  shape=SEQUENCE), numbers(SEQUENCE))  # fmt: skip
add("gru", chain(L(layers.GRU, 4), D(1), shape=SEQUENCE), numbers(SEQUENCE), small=True)
add("unrolled gru", chain(L(layers.GRU, 4, unroll=True), D(1), shape=SEQUENCE), numbers(SEQUENCE),
    small=True)  # fmt: skip
add("unrolled lstm", chain(L(layers.LSTM, 4, unroll=True), D(1), shape=SEQUENCE),
    numbers(SEQUENCE))  # fmt: skip
add("masked lstm", chain(MASKED, L(layers.LSTM, 4, return_sequences=True), D(V), shape=(T,),
                         dtype="int32"), lambda: (np.tril(ids(T), 2), ids(T)), entropy)  # fmt: skip
add("bidirectional", chain(MASKED, lambda: layers.Bidirectional(layers.GRU(3)), D(1), shape=(T,),
                           dtype="int32"), tokens())  # fmt: skip
add("cells", chain(lambda: layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)]), D(1),
                   shape=SEQUENCE), numbers(SEQUENCE))  # fmt: skip
add("time distributed", chain(lambda: layers.TimeDistributed(layers.Conv1D(3, 2)),
                              lambda: layers.TimeDistributed(layers.Flatten()),
                              L(layers.SimpleRNN, 3), D(1), shape=(3, 4, 2)),
    numbers((3, 4, 2)))  # fmt: skip
add("seq2seq", graph(seq2seq, (T,), dtype="int32"), tokens(T), entropy)
add("scan", chain(L(Scan), D(1), shape=SEQUENCE), numbers(SEQUENCE, (T, 1)))
add("frequencies", chain(L(Spectral), FLAT, D(1), shape=SEQUENCE), numbers(SEQUENCE))
add("attention scores", graph(scores, SEQUENCE), numbers(SEQUENCE), small=True)
add("encoder", graph(encoder, (T,), dtype="int32"), lambda: (np.tril(ids(T), 2), ids(high=3)),
    entropy)  # fmt: skip
add("decoder", graph(decoder, (T,), dtype="int32"), tokens(T), entropy, small=True)
add("grouped queries", graph(lambda x: layers.Dense(1)(layers.GroupQueryAttention(4, 4, 2)(x, x)),
                             SEQUENCE), numbers(SEQUENCE, (T, 1)))  # fmt: skip
add("vision transformer", graph(vision_transformer, IMAGE), classes(IMAGE), entropy)
add("mixer", graph(mixer, IMAGE), classes(IMAGE), entropy)
add("tied in parent", TiedInParent, tokens(T), entropy)
add("two towers", graph(two_towers, ROW, ROW), lambda: ([normal(4), normal(4)], normal(1) + 3))
add("deep fm", graph(deep_fm, (T,), dtype="int32"), tokens())
add("dlrm", graph(dlrm, ROW, ROW), lambda: ([normal(4), normal(4)], normal(1) + 3))
add("cross network", graph(cross, ROW), numbers(ROW))
add("bag of words", chain(MASKED, POOL1, D(3), shape=(T,), dtype="int32"),
    lambda: (np.tril(ids(T), 2), ids(high=3)), entropy)  # fmt: skip
add("deep sets", graph(deep_sets, SEQUENCE), numbers(SEQUENCE))
add("graph network", graph(graph_network, SEQUENCE, (T, T)),
    lambda: ([normal(T, 3), normal(T, T)], normal(1) + 3))  # fmt: skip
