"""The frozen encoder with LoRA of layers of Keras 2 or 3: its workers say which."""

import sizes


def encoder(ids, layers, ops):
    """Logits (B, 2) of ids (B, T).

    Args:
        ids: symbolic input.
        layers: `keras.layers`.
        ops: has `reshape`, `einsum` and `softmax`.
    """

    def frozen(x, units=sizes.ENCODER_WIDTH, activation=None):
        return layers.Dense(units, activation, trainable=False)(x)

    def adapted(x):
        """A frozen layer with a low rank that is trained."""
        down = layers.Dense(sizes.RANK, use_bias=False)(x)
        up = layers.Dense(sizes.ENCODER_WIDTH, use_bias=False, kernel_initializer="zeros")
        return frozen(x) + up(down)

    def norm(x):
        return layers.LayerNormalization(trainable=False)(x)

    def attention(query, key, value):
        heads = (-1, ids.shape[1], sizes.HEADS, sizes.ENCODER_WIDTH // sizes.HEADS)
        query, key, value = (ops.reshape(v, heads) for v in (query, key, value))
        scores = ops.einsum("bqhd,bkhd->bhqk", query, key) / heads[-1] ** 0.5
        seen = ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores), value)
        return ops.reshape(seen, (-1, ids.shape[1], sizes.ENCODER_WIDTH))

    x = layers.Embedding(sizes.WORDS, sizes.ENCODER_WIDTH, trainable=False)(ids)
    for _ in range(sizes.ENCODER_BLOCKS):
        x = norm(x + frozen(attention(adapted(x), frozen(x), adapted(x))))
        x = norm(x + frozen(frozen(x, 4 * sizes.ENCODER_WIDTH, "gelu")))
    return layers.Dense(2)(x[:, 0])
