"""Models beyond those of tests/clipping/architectures.py: what else Keras users train.

Each is a function that gives (model, x, y, loss). Here are layers of preprocessing, of images, of
sound and of sequences, recommenders of the literature, and losses of users' own.
"""

import keras
import networks
import numpy as np
import tensorflow as tf
from keras import layers, ops

N = 48
ROW, STEPS, IMAGE, ITEMS = 6, 8, 16, 20
MODELS = {}
_rng = np.random.default_rng(0)


def model(function):
    MODELS[function.__name__.replace("_", " ")] = function
    return function


def numbers(*shape):
    return _rng.normal(size=(N, *shape)).astype("float32")


def ids(*shape, high=ITEMS):
    return _rng.integers(0, high, (N, *shape)).astype("int32")


def words(*shape):
    return _rng.choice(["a", "b b", "c d e"], (N, *shape))


def text(*shape):
    return tf.constant(words(*shape).tolist())


def rows(*stack, loss="mse", shape=(ROW,), x=None, y=None, dtype=None):
    x = numbers(*shape) if x is None else x
    y = numbers(1) if y is None else y
    return keras.Sequential([keras.Input(shape, dtype=dtype), *stack]), x, y, loss


def images(*stack, channels=3):
    end = layers.Flatten(), layers.Dense(1)
    return rows(*stack, *end, shape=(IMAGE, IMAGE, channels), x=np.abs(numbers(16, 16, channels)))


def steps(*stack, features=4):
    return rows(*stack, layers.GlobalAveragePooling1D(), layers.Dense(1), shape=(STEPS, features))


def items(make, *more, high=ITEMS, y=None, loss="mse"):
    inputs = [
        keras.Input((STEPS,), dtype="int32"),
        *(keras.Input((1,), dtype="int32") for _ in more),
    ]
    outputs = make(*inputs)
    x = [ids(STEPS, high=high), *(ids(1, high=high) for _ in more)]
    return keras.Model(inputs, outputs), x if more else x[0], numbers(1) if y is None else y, loss


def features(make, count=5):
    inputs = keras.Input((count,), dtype="int32")
    tables = [layers.Embedding(ITEMS, 4)(inputs[:, k]) for k in range(count)]
    return keras.Model(inputs, make(tables, inputs)), ids(count), numbers(1), "mse"


def block(x, mask=None, causal=False, heads=2):
    width = x.shape[-1]
    h = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(heads, width // heads)(h, h, attention_mask=mask,
                                                             use_causal_mask=causal)  # fmt: skip
    h = layers.Dense(2 * width, "gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(width)(h)


# Normalisation and noise.
@model
def group_normalization():
    return images(layers.Conv2D(4, 3), layers.GroupNormalization(2), layers.Activation("relu"))


@model
def rms_and_unit_normalization():
    return rows(
        layers.Dense(4), layers.RMSNormalization(), layers.UnitNormalization(), layers.Dense(1)
    )


@model
def noise_of_every_kind():
    return rows(layers.GaussianNoise(0.1), layers.Dense(4), layers.AlphaDropout(0.1),
                layers.GaussianDropout(0.1), layers.Dropout(0.1), layers.Dense(1))  # fmt: skip


@model
def spatial_dropout():
    return steps(layers.Conv1D(4, 3), layers.SpatialDropout1D(0.3))


# Convolutions and pooling.
@model
def depthwise_and_separable_1d():
    return steps(layers.DepthwiseConv1D(3), layers.SeparableConv1D(4, 3))


@model
def transposed_1d():
    return steps(layers.Conv1D(4, 3, strides=2), layers.Conv1DTranspose(3, 3, strides=2))


@model
def transposed_2d():
    return images(layers.Conv2D(3, 3, strides=2), layers.Conv2DTranspose(2, 3, strides=2))


@model
def transposed_3d():
    return rows(layers.Conv3D(2, 2), layers.Conv3DTranspose(2, 2), layers.GlobalMaxPooling3D(),
                layers.Dense(1), shape=(4, 4, 4, 1))  # fmt: skip


@model
def dilated_and_grouped():
    return images(layers.Conv2D(4, 3, dilation_rate=2), layers.Conv2D(4, 3, groups=2))


@model
def padded_cropped_and_upsampled():
    return images(layers.ZeroPadding2D(1), layers.Cropping2D(2), layers.AveragePooling2D(2),
                  layers.UpSampling2D(interpolation="bilinear"), layers.Conv2D(2, 3))  # fmt: skip


@model
def pooled_everywhere():
    return images(layers.Conv2D(4, 3), layers.MaxPooling2D(), layers.AveragePooling2D(2),
                  layers.GlobalMaxPooling2D(keepdims=True))  # fmt: skip


@model
def convolutional_lstm_2d():
    return rows(layers.ConvLSTM2D(2, 3), layers.Flatten(), layers.Dense(1), shape=(3, 6, 6, 1))


# Preprocessing in the model.
@model
def strings_looked_up():
    return rows(layers.StringLookup(vocabulary=["a", "b b"]), layers.Embedding(4, 3),
                layers.Flatten(), layers.Dense(1), shape=(2,), dtype="string",
                x=text(2))  # fmt: skip


@model
def strings_hashed():
    return rows(layers.Hashing(16), layers.Embedding(16, 3), layers.Flatten(), layers.Dense(1),
                shape=(2,), dtype="string", x=text(2))  # fmt: skip


@model
def integers_looked_up():
    return rows(layers.IntegerLookup(vocabulary=[1, 2, 3]), layers.Embedding(5, 3),
                layers.Flatten(), layers.Dense(1), dtype="int32", x=ids(ROW))  # fmt: skip


@model
def text_vectorized():
    vectorize = layers.TextVectorization(10, output_sequence_length=4, vocabulary=["a", "b", "c"])
    return rows(vectorize, layers.Embedding(10, 3), layers.GlobalAveragePooling1D(),
                layers.Dense(1), shape=(), dtype="string", x=text())  # fmt: skip


@model
def text_as_tf_idf():
    vectorize = layers.TextVectorization(
        10, output_mode="tf_idf", vocabulary=["a", "b", "c"], idf_weights=[1.0, 2.0, 3.0]
    )
    return rows(vectorize, layers.Dense(1), shape=(), dtype="string", x=text())


@model
def numbers_normalized_and_binned():
    inputs = keras.Input((ROW,))
    known = layers.Normalization(mean=np.zeros(ROW), variance=np.ones(ROW))(inputs)
    binned = layers.Discretization([-1.0, 0.0, 1.0], output_mode="multi_hot")(inputs)
    joined = layers.Concatenate()([known, binned])
    return keras.Model(inputs, layers.Dense(1)(joined)), numbers(ROW), numbers(1), "mse"


@model
def categories_encoded_and_crossed():
    one, two = (keras.Input((1,), dtype="int32") for _ in range(2))
    crossed = layers.HashedCrossing(8, output_mode="one_hot")((one, two))
    encoded = layers.CategoryEncoding(ITEMS, output_mode="one_hot")(one)
    joined = layers.Concatenate()([crossed, encoded])
    return keras.Model([one, two], layers.Dense(1)(joined)), [ids(1), ids(1)], numbers(1), "mse"


@model
def images_rescaled_and_resized():
    return images(layers.Rescaling(1 / 255), layers.Resizing(12, 12), layers.CenterCrop(8, 8),
                  layers.Conv2D(2, 3))  # fmt: skip


@model
def images_flipped_rotated_and_zoomed():
    return images(layers.RandomFlip(), layers.RandomRotation(0.1), layers.RandomZoom(0.1),
                  layers.RandomTranslation(0.1, 0.1), layers.Conv2D(2, 3))  # fmt: skip


@model
def images_of_other_colours():
    return images(layers.RandomBrightness(0.1, value_range=(0, 1)), layers.RandomContrast(0.1),
                  layers.Conv2D(2, 3))  # fmt: skip


@model
def images_cropped_at_random():
    return images(layers.RandomCrop(8, 8), layers.Conv2D(2, 3))


@model
def spectrogram():
    return rows(layers.STFTSpectrogram(frame_length=16, frame_step=8, fft_length=16),
                layers.GlobalAveragePooling1D(), layers.Dense(1), shape=(64, 1))  # fmt: skip


@model
def mel_spectrogram():
    return rows(layers.MelSpectrogram(num_mel_bins=4, fft_length=32, sequence_stride=16,
                                      sampling_rate=400, max_freq=200.0),
                layers.Flatten(), layers.Dense(1), shape=(64,))  # fmt: skip


# Sequences.
@model
def simple_rnn_stacked_cells():
    cells = layers.StackedRNNCells([layers.SimpleRNNCell(3), layers.LSTMCell(3)])
    return rows(layers.RNN(cells), layers.Dense(1), shape=(STEPS, 4))


@model
def bidirectional_merged_by_sums():
    return rows(layers.Bidirectional(layers.LSTM(3), merge_mode="sum"), layers.Dense(1),
                shape=(STEPS, 4))  # fmt: skip


@model
def gru_backwards_with_masks():
    return rows(layers.Masking(), layers.GRU(3, go_backwards=True, recurrent_dropout=0.1),
                layers.Dense(1), shape=(STEPS, 4))  # fmt: skip


@model
def additive_attention():
    inputs = keras.Input((STEPS, 4))
    h = layers.AdditiveAttention()([inputs, layers.Dense(4)(inputs)])
    return keras.Model(inputs, layers.Dense(1)(h[:, -1])), numbers(STEPS, 4), numbers(1), "mse"


@model
def attention_by_concatenation():
    inputs = keras.Input((STEPS, 4))
    h = layers.Attention(score_mode="concat", use_scale=True)([inputs, layers.Dense(4)(inputs)])
    return keras.Model(inputs, layers.Dense(1)(h[:, -1])), numbers(STEPS, 4), numbers(1), "mse"


@model
def sums_of_einstein():
    return rows(layers.EinsumDense("btd,de->bte", output_shape=(STEPS, 3), bias_axes="e"),
                layers.EinsumDense("bte,tef->bf", output_shape=(2,)), layers.Dense(1),
                shape=(STEPS, 4))  # fmt: skip


@model
def linear_attention():
    inputs = keras.Input((STEPS, 4))
    q, k, v = (layers.Dense(4, "elu")(inputs) + one for one in (1.0, 1.0, 0.0))
    h = ops.matmul(q, ops.matmul(ops.transpose(k, (0, 2, 1)), v))
    h = h / (ops.sum(q * ops.sum(k, 1, keepdims=True), -1, keepdims=True) + 1e-3)
    return keras.Model(inputs, layers.Dense(1)(h[:, -1])), numbers(STEPS, 4), numbers(1), "mse"


@model
def perceiver():
    inputs = keras.Input((STEPS, 4))
    return keras.Model(inputs, networks.perceiver(inputs)), numbers(STEPS, 4), numbers(1), "mse"


@model
def queries_of_objects():
    inputs = keras.Input((STEPS, 4))
    return keras.Model(inputs, networks.detr(inputs)), numbers(STEPS, 4), numbers(3, 5), "mse"


@model
def queries_beside_words():
    inputs = [keras.Input((STEPS, 4)), keras.Input((5, 3))]
    x = [numbers(STEPS, 4), numbers(5, 3)]
    return keras.Model(inputs, networks.q_former(*inputs)), x, numbers(1), "mse"


@model
def state_space():
    class Decay(layers.Layer):
        def build(self, shape):
            self.decay = self.add_weight(shape=(shape[-1],), initializer="zeros")

        def call(self, x):
            decay = ops.sigmoid(self.decay)
            powers = ops.power(decay, ops.reshape(ops.arange(STEPS - 1, -1, -1, dtype="float32"),
                                                  (-1, 1)))  # fmt: skip
            return ops.sum(x * powers, 1)

    return rows(layers.Dense(4), Decay(), layers.Dense(1), shape=(STEPS, 4))


@model
def temporal_convolutions():
    inputs = h = keras.Input((STEPS, 4))
    for rate in (1, 2, 4):
        one = layers.Conv1D(4, 2, padding="causal", dilation_rate=rate, activation="relu")(h)
        h = layers.Add()([h, layers.LayerNormalization()(one)])
    return keras.Model(inputs, layers.Dense(1)(h[:, -1])), numbers(STEPS, 4), numbers(1), "mse"


@model
def forecasts_with_backcasts():
    inputs = left = keras.Input((STEPS,))
    forecast = 0.0
    for _ in range(2):
        h = layers.Dense(6, "relu")(left)
        left = left - layers.Dense(STEPS)(h)
        forecast = forecast + layers.Dense(2)(h)
    return keras.Model(inputs, forecast), numbers(STEPS), numbers(2), "mae"


# Recommenders.
@model
def neural_collaborative_filtering():
    user, item = (keras.Input((), dtype="int32") for _ in range(2))
    one, two, three, four = (layers.Embedding(ITEMS, 4)(i) for i in (user, item, user, item))
    h = layers.Dense(4, "relu")(layers.Concatenate()([one, two]))
    out = layers.Dense(1, "sigmoid")(layers.Concatenate()([h, three * four]))
    return keras.Model([user, item], out), [ids(), ids()], ids(1, high=2), "binary_crossentropy"


@model
def matrix_factorization_with_biases():
    user, item = (keras.Input((), dtype="int32") for _ in range(2))
    product = layers.Dot(1)([layers.Embedding(ITEMS, 4)(user), layers.Embedding(ITEMS, 4)(item)])
    biases = layers.Embedding(ITEMS, 1)(user) + layers.Embedding(ITEMS, 1)(item)
    return keras.Model([user, item], product + biases), [ids(), ids()], numbers(1), "mse"


@model
def wide_and_deep():
    def make(tables, inputs):
        wide = layers.Dense(1)(layers.CategoryEncoding(ITEMS, output_mode="multi_hot")(inputs))
        return wide + layers.Dense(1)(layers.Dense(6, "relu")(layers.Concatenate()(tables)))

    return features(make)


@model
def attention_between_features():
    def make(tables, inputs):
        h = ops.stack(tables, 1)
        return layers.Dense(1)(layers.Flatten()(layers.MultiHeadAttention(2, 2)(h, h) + h))

    return features(make)


@model
def compressed_interactions():
    def make(tables, inputs):
        x = ops.stack(tables, 1)
        pairs = ops.einsum("bid,bjd->bijd", x, x)
        h = layers.Dense(3)(ops.transpose(ops.reshape(pairs, (-1, 25, 4)), (0, 2, 1)))
        return layers.Dense(1)(ops.sum(h, 1))

    return features(make)


@model
def experts_for_two_tasks():
    inputs = keras.Input((ROW,))
    experts = ops.stack([layers.Dense(4, "relu")(inputs) for _ in range(3)], 1)
    outputs = {}
    for task in "ab":
        gate = layers.Dense(3, "softmax")(inputs)
        outputs[task] = layers.Dense(1, name=task)(ops.sum(experts * gate[:, :, None], 1))
    y = {"a": numbers(1), "b": ids(1, high=2).astype("float32")}
    return keras.Model(inputs, outputs), numbers(ROW), y, {"a": "mse", "b": "mae"}


@model
def interests_in_a_history():
    def make(history, item):
        table = layers.Embedding(ITEMS, 4)
        past, one = table(history), table(item)
        weights = layers.Dense(1)(layers.Concatenate()([past, past * one, past - one]))
        interest = ops.sum(past * ops.cast(history[:, :, None] > 0, "float32") * weights, 1)
        return layers.Dense(1)(layers.Concatenate()([interest, one[:, 0]]))

    return items(make, "item")


@model
def self_attentive_sequences():
    def make(history):
        x = layers.Embedding(ITEMS, 4, mask_zero=True)(history)
        x = block(x + layers.Embedding(STEPS, 4)(ops.arange(STEPS)), causal=True)
        return layers.Dense(ITEMS)(layers.LayerNormalization()(x))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    return items(make, y=ids(STEPS), loss=loss)


@model
def masked_items_with_tied_weights():
    class Tied(layers.Layer):
        def build(self, shape):
            self.table = layers.Embedding(ITEMS, 4)
            self.table.build(shape)

        def call(self, history):
            x = self.table(history)
            x = x + ops.mean(x, 1, keepdims=True)
            return ops.matmul(x, ops.transpose(self.table.embeddings))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return items(Tied(), y=ids(STEPS), loss=loss)


@model
def convolutions_over_histories():
    def make(history):
        x = layers.Embedding(ITEMS, 4)(history)
        parts = [layers.GlobalMaxPooling1D()(layers.Conv1D(2, k)(x)) for k in (2, 3, 4)]
        return layers.Dense(ITEMS)(layers.Concatenate()(parts))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return items(make, y=ids(), loss=loss)


@model
def recurrent_recommendations():
    def make(history):
        return layers.Dense(ITEMS)(
            layers.GRU(4)(layers.Embedding(ITEMS, 4, mask_zero=True)(history))
        )

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return items(make, y=ids(), loss=loss)


@model
def pairs_of_products():
    # A factorisation machine by the squares of sums.
    def make(tables, inputs):
        x = ops.stack(tables, 1)
        return 0.5 * ops.sum(
            ops.square(ops.sum(x, 1)) - ops.sum(ops.square(x), 1), -1, keepdims=True
        )

    return features(make)


# Tables, points and functions.
@model
def transformer_of_tables():
    inputs = keras.Input((ROW,))
    tokens = layers.EinsumDense("bf,fd->bfd", output_shape=(ROW, 4), bias_axes="fd")(inputs)
    return (
        keras.Model(inputs, layers.Dense(1)(block(tokens)[:, 0])),
        numbers(ROW),
        numbers(1),
        "mse",
    )


@model
def gated_residuals():
    inputs = keras.Input((ROW,))
    h = layers.Dense(ROW, "elu")(inputs)
    h = layers.LayerNormalization()(inputs + layers.Dense(ROW, "sigmoid")(h) * layers.Dense(ROW)(h))
    return keras.Model(inputs, layers.Dense(3)(h)), numbers(ROW), numbers(3), "huber"


@model
def clouds_of_points():
    inputs = keras.Input((STEPS, 3))
    h = layers.GlobalMaxPooling1D()(layers.Conv1D(6, 1, activation="relu")(inputs))
    turn = layers.Reshape((3, 3))(layers.Dense(9)(h))
    h = layers.GlobalMaxPooling1D()(layers.Conv1D(6, 1)(ops.matmul(inputs, turn)))
    return keras.Model(inputs, layers.Dense(1)(h)), numbers(STEPS, 3), numbers(1), "mse"


@model
def waves_of_coordinates():
    inputs = keras.Input((2,))
    waves = [f(2.0**k * inputs) for k in range(3) for f in (ops.sin, ops.cos)]
    out = layers.Dense(1)(layers.Concatenate()(waves))
    return keras.Model(inputs, out), numbers(2), numbers(1), "mse"


@model
def capsules():
    inputs = keras.Input((STEPS, 4))
    votes = ops.einsum("bid,bjd->bijd", inputs, layers.Dense(4)(inputs)[:, :3])
    routing = ops.zeros_like(votes[..., :1])
    for _ in range(2):
        poses = ops.sum(ops.softmax(routing, 2) * votes, 1)
        poses = poses / (1 + ops.sqrt(ops.sum(ops.square(poses), -1, keepdims=True) + 1e-6))
        routing = routing + ops.sum(votes * poses[:, None], -1, keepdims=True)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(poses))), numbers(STEPS, 4), \
        numbers(1), "mse"  # fmt: skip


@model
def sorted_and_largest():
    inputs = keras.Input((STEPS, 4))
    h = layers.Dense(4)(inputs)
    largest = ops.reshape(ops.top_k(ops.transpose(h, (0, 2, 1)), 2)[0], (-1, 8))
    joined = layers.Concatenate()([largest, ops.sort(h, 1)[:, 0], ops.median(h, 1)])
    return keras.Model(inputs, layers.Dense(1)(joined)), numbers(STEPS, 4), numbers(1), "mse"


# Losses.
@model
def quantiles():
    def loss(y, p):
        return ops.mean(ops.maximum(0.9 * (y - p), -0.1 * (y - p)), -1)

    return rows(layers.Dense(4, "relu"), layers.Dense(1), loss=loss)


@model
def densities_of_mixtures():
    def loss(y, p):
        logits, means, scales = ops.split(p, 3, -1)
        terms = ops.log_softmax(logits) - ops.softplus(scales) - ops.square(y - means) / 2
        return -ops.logsumexp(terms, -1)

    return rows(layers.Dense(9), loss=loss)


@model
def focal():
    return rows(layers.Dense(3, "softmax"), loss=keras.losses.CategoricalFocalCrossentropy(),
                y=np.eye(3, dtype="float32")[ids(high=3)])  # fmt: skip


@model
def weighted_pairwise_terms():
    def loss(y, p):  # all pairs of one example's scores
        return ops.mean(ops.softplus(p[:, :, None] - p[:, None]) * (y[:, :, None] < y[:, None]),
                        (1, 2))  # fmt: skip

    return rows(layers.Dense(4), loss=loss, y=numbers(4))


@model
def cosine_and_poisson():
    inputs = keras.Input((ROW,))
    outputs = [layers.Dense(3)(inputs), layers.Dense(1, "exponential")(inputs)]
    return keras.Model(inputs, outputs), numbers(ROW), [numbers(3), np.abs(numbers(1))], \
        ["cosine_similarity", "poisson"]  # fmt: skip


@model
def contrast_of_two_views():
    one, two = keras.Input((ROW,)), keras.Input((ROW,))
    tower = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(3), layers.UnitNormalization()])
    near = ops.sum(tower(one) * tower(two), -1, keepdims=True)

    def loss(y, p):
        return ops.mean(y * ops.square(1 - p) + (1 - y) * ops.square(ops.relu(p)), -1)

    return keras.Model([one, two], near), [numbers(ROW), numbers(ROW)], \
        ids(1, high=2).astype("float32"), loss  # fmt: skip


@model
def reconstruction_with_samples():
    class Sample(layers.Layer):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(1)

        def call(self, moments):
            mean, log_variance = ops.split(moments, 2, -1)
            noise = keras.random.normal(ops.shape(mean), seed=self.seed)
            return mean + ops.exp(log_variance / 2) * noise

    data = numbers(ROW)
    return rows(layers.Dense(6), Sample(), layers.Dense(ROW), x=data, y=data)
