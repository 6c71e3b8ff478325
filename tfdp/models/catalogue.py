"""Vectors of a whole catalogue: made in parts, ranked in parts, and asked for the best of them."""

import keras
import numpy as np
import tensorflow as tf

#: Items whose vectors are made, or scored, at once.
PART = 1 << 16


def vectors_of_all(item_vectors, num_items, part=PART):
    """float32 (M, d) array of the vectors of all items.

    Args:
        item_vectors: function of int64 ids (part,) to vectors (part, d).
        num_items: M.
        part: how many of them are made at once.
    """
    part = min(part, num_items)
    traced = tf.function(item_vectors, autograph=False)
    found = None
    for start in range(0, num_items, part):
        ids = np.minimum(np.arange(start, start + part), num_items - 1)  # one trace for all parts
        vectors = traced(tf.constant(ids, tf.int64)).numpy()[: num_items - start]
        if found is None:
            found = np.empty((num_items, vectors.shape[1]), np.float32)
        found[start : start + len(vectors)] = vectors
    return found


def better_and_tied(users, vectors, items, part=PART):
    """How many other items score above each user's own, and how many the same.

    Args:
        users: (B, d).
        vectors: (M, d).
        items: (B,) ids.
        part: how many items are scored at once: B × part scores are held.

    Returns:
        int32 (B,), int32 (B,).
    """
    users, vectors = tf.cast(users, tf.float32), tf.convert_to_tensor(vectors, tf.float32)
    items = tf.cast(items, tf.int64)
    num_items = vectors.shape[0]
    # By the same product as the others: a vector of its own would round otherwise.
    own = tf.linalg.tensor_diag_part(users @ tf.transpose(tf.gather(vectors, items)))
    own = own[:, tf.newaxis]
    better = tied = tf.zeros(tf.shape(items), tf.int32)
    for start in range(0, num_items, part):
        scores = tf.matmul(users, vectors[start : start + part], transpose_b=True)
        others = items[:, tf.newaxis] != tf.range(start, start + scores.shape[1], dtype=tf.int64)
        # "Not below" instead of "above": what is not a number then ranks its target last.
        same = tf.equal(scores, own) & others
        not_below = ~tf.less(scores, own) & others
        tied += tf.reduce_sum(tf.cast(same, tf.int32), axis=1)
        better += tf.reduce_sum(tf.cast(not_below & ~same, tf.int32), axis=1)
    return better, tied


@keras.saving.register_keras_serializable(package="tfdp")
class Catalogue(keras.layers.Layer):
    """The vectors of all items, which score them for each user.

    Args:
        vectors: (M, d).
        k: how many items are returned.

    Call arguments:
        users: (B, d).

    Returns:
        Dict of "items" (B, k) int32, best first, and their "scores" (B, k).
    """

    def __init__(self, vectors, k, **kwargs):
        super().__init__(**kwargs)
        self.k = k
        vectors = np.asarray(vectors, np.float32)
        self.vectors = self.add_weight(
            name="vectors",
            shape=vectors.shape,
            initializer=lambda shape, dtype: keras.ops.convert_to_tensor(vectors, dtype),
            trainable=False,
            autocast=False,
        )
        self.built = True

    def call(self, users):
        users = tf.cast(users, tf.float32)
        scores = tf.matmul(users, self.vectors.value, transpose_b=True)
        scores, items = tf.math.top_k(scores, self.k)
        return {"items": items, "scores": scores}
