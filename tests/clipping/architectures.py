"""Architectures whose private gradients test_architectures.py compares with brute force.

A new one is one line: name, function that builds the model, data, loss, and keywords of
`Architecture`. Models are built under the policies float32 and float64, so they take the dtype of
their inputs from `inp`. They draw no random numbers: the reference takes one example at a time.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from keras import layers, ops
from networks import (
    EMBED,
    FLAT,
    MASKED,
    POOL1,
    POOL2,
    D,
    Hyper,
    Kernel,
    L,
    Nested,
    Own,
    Physics,
    Scan,
    Spectral,
    T,
    TiedInParent,
    V,
    autoencoder,
    chain,
    classes,
    cross,
    decoder,
    deep_fm,
    deep_sets,
    detr,
    dlrm,
    encoder,
    entropy,
    experts,
    film,
    flow,
    graph,
    graph_network,
    heads,
    highway,
    ids,
    learned_queries,
    lora,
    mixer,
    mobile,
    normal,
    numbers,
    perceiver,
    q_former,
    resnet,
    scores,
    seq2seq,
    squeeze_and_excite,
    tokens,
    two_towers,
    unet,
    vision_transformer,
    wavenet,
)

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


IMAGE, SEQUENCE, ROW = (8, 8, 2), (T, 3), (4,)
add("logistic regression", chain(D(1, "sigmoid"), shape=ROW), lambda: (normal(4), ids(1, high=2)),
    "binary_crossentropy", small=True)  # fmt: skip
add("softmax regression", chain(D(3, "softmax"), shape=ROW), classes(ROW),
    "sparse_categorical_crossentropy")  # fmt: skip
add("own softmax", chain(D(4, "tanh"), L(Own, 3, "softmax"), shape=ROW), classes(ROW),
    "sparse_categorical_crossentropy")  # fmt: skip
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
add("derivative", Physics, numbers(ROW, (4,)))
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
add("volumes", chain(L(layers.Conv3D, 3, 2), FLAT, D(1),
                     shape=(4, 4, 4, 2)),
    numbers((4, 4, 4, 2)))  # fmt: skip
add("convolutional lstm", chain(L(layers.ConvLSTM1D, 2, 2), FLAT, D(1), shape=(3, 4, 2)),
    numbers((3, 4, 2)))  # fmt: skip
add("rnn", chain(L(layers.SimpleRNN, 4), D(1), shape=SEQUENCE), numbers(SEQUENCE))
add("lstm", chain(L(layers.LSTM, 4, return_sequences=True), L(layers.LSTM, 3), D(1),
                  shape=SEQUENCE), numbers(SEQUENCE))  # fmt: skip
add("gru", chain(L(layers.GRU, 4), D(1), shape=SEQUENCE), numbers(SEQUENCE))
add("unrolled gru", chain(L(layers.GRU, 4, unroll=True), D(1), shape=SEQUENCE),
    numbers(SEQUENCE))  # fmt: skip
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
add("attention scores", graph(scores, SEQUENCE), numbers(SEQUENCE))
add("encoder", graph(encoder, (T,), dtype="int32"), lambda: (np.tril(ids(T), 2), ids(high=3)),
    entropy)  # fmt: skip
add("decoder", graph(decoder, (T,), dtype="int32"), tokens(T), entropy, small=True)
add("grouped queries", graph(lambda x: layers.Dense(1)(layers.GroupQueryAttention(4, 4, 2)(x, x)),
                             SEQUENCE), numbers(SEQUENCE, (T, 1)))  # fmt: skip
add("vision transformer", graph(vision_transformer, IMAGE), classes(IMAGE), entropy)
add("perceiver", graph(perceiver, SEQUENCE), numbers(SEQUENCE))
add("detr", graph(detr, SEQUENCE), numbers(SEQUENCE, (3, 5)))
add("q former", graph(q_former, SEQUENCE, SEQUENCE),
    lambda: ([normal(*SEQUENCE), normal(*SEQUENCE)], normal(1) + 3))  # fmt: skip
add("learned queries", graph(learned_queries, SEQUENCE), numbers(SEQUENCE), small=True)
add("mixer", graph(mixer, IMAGE), classes(IMAGE), entropy)
add("tied in parent", TiedInParent, tokens(T), entropy)
add("tied around a loop", lambda: TiedInParent(layers.GRU(4)), lambda: (ids(T), ids(high=V)),
    entropy)  # fmt: skip
add("two towers", graph(two_towers, ROW, ROW), lambda: ([normal(4), normal(4)], normal(1) + 3))
add("deep fm", graph(deep_fm, (T,), dtype="int32"), tokens())
add("dlrm", graph(dlrm, ROW, ROW), lambda: ([normal(4), normal(4)], normal(1) + 3))
add("cross network", graph(cross, ROW), numbers(ROW))
add("bag of words", chain(MASKED, POOL1, D(3), shape=(T,), dtype="int32"),
    lambda: (np.tril(ids(T), 2), ids(high=3)), entropy)  # fmt: skip
add("deep sets", graph(deep_sets, SEQUENCE), numbers(SEQUENCE))
add("graph network", graph(graph_network, SEQUENCE, (T, T)),
    lambda: ([normal(T, 3), normal(T, T)], normal(1) + 3))  # fmt: skip
