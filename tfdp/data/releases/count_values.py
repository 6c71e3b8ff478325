"""The counts of a click log as values of a feature."""

import tensorflow as tf

#: The name of the counts of a click log, and of how many values a count is made.
INTEGERS, INTEGER_VALUES = "integers", 40


def value_of_count(counts):
    """Which of the 40 values a count has: 0 up to 0, then two for each unit of log(1 + count).

    Args:
        counts: tensor or array of numbers.

    Returns:
        int64 tensor of the same shape; what is not a number has value 0.
    """
    counts = tf.cast(counts, tf.float32)
    known = tf.where(counts > 0, counts, 0.0)
    values = 1.0 + tf.floor(2.0 * tf.math.log1p(known))
    return tf.cast(tf.where(counts > 0, tf.minimum(values, INTEGER_VALUES - 1.0), 0.0), tf.int64)
