"""Random draws whose number is only known inside the step, all in float64 and int64."""

import tensorflow as tf

_PHILOX = 1  # tf.random.Algorithm.PHILOX
_RANGE = 2**63 - 1


class AtOnce:
    """Bits of a `tfdp.noise.NoiseSource` for several draws, from one draw of it.

    Args:
        source: the `NoiseSource`.
        number: uint64 words, in all.
    """

    def __init__(self, source, number):
        self._words, self._used = source.bits((number,)), 0
        self._graph = tf.compat.v1.get_default_graph()

    def bits(self, shape):
        """uint64 tensor of shape (n,); no two calls share a bit.

        Raises:
            RuntimeError: past the last word, or inside of a loop or a branch: each turn of a loop
                would get the same bits.
        """
        first, self._used = self._used, self._used + shape[0]
        inside = tf.compat.v1.get_default_graph() is not self._graph
        if self._used > self._words.shape[0] or inside:
            raise RuntimeError(f"{shape[0]} more random words, {first} used, inside={inside}")
        return self._words[first : self._used]


def random_bits(source, count):
    """(count,) independent uniform uint64 values.

    Args:
        source: a `tfdp.noise.NoiseSource`; 192 fresh bits of it key these draws.
        count: scalar integer tensor.
    """
    words = source.bits((3,))
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.reshape(tf.cast(count, tf.int64), [1]),
        key=words[:1],
        counter=words[1:],
        alg=_PHILOX,
        dtype=tf.uint64,
    )


def standard_exponential(source, count):
    """(count,) float64 exponential values of mean 1, small ones at full precision."""
    return -tf.math.log1p(-tf.minimum(uniform(source, count), 1.0 - 2.0**-53))


def uniform(source, count):
    """(count,) float64 values in (0, 1], multiples of 2⁻⁶⁴ as far as float64 has them."""
    bits = tf.bitwise.right_shift(random_bits(source, count), tf.constant(1, tf.uint64))
    return (tf.cast(tf.cast(bits, tf.int64), tf.float64) + 0.5) * 2.0**-63


def binomial(source, count, probability):
    """A Binomial(count, probability) number, int64.

    Args:
        source: a `tfdp.noise.NoiseSource`.
        count: scalar int64 tensor, at most 2^53.
        probability: scalar float64 tensor in [0, 1].
    """
    return tf.random.stateless_binomial(
        [],
        seed=tf.bitcast(source.bits((2,)), tf.int64),
        counts=tf.cast(count, tf.float64),
        probs=probability,
        output_dtype=tf.int64,
    )


def each_with_probability(source, probability, bound):
    """A random set, which each integer in [0, bound) is in with a probability, independently.

    A Poisson number of uniform integers with replacement: how often each is drawn is then Poisson
    distributed, independently of the others. Memory and time are those of the result.

    Args:
        source: a `tfdp.noise.NoiseSource`, or `AtOnce` with 5 words.
        probability: scalar float64 tensor in [0, 1).
        bound: a Python integer, at most 2^53.

    Returns:
        (m,) int64, the members of the set, in any order; a few of them more than once.
    """
    # `_below` uses this share of what is drawn.
    share = _RANGE // bound * bound / 2**63
    number = tf.raw_ops.StatelessRandomPoisson(
        shape=tf.zeros([0], tf.int32),
        seed=tf.bitcast(source.bits((2,)), tf.int64),
        lam=-tf.math.log1p(-probability) * (bound / share),
        dtype=tf.int64,
    )
    return _below(source, number, bound)


def distinct_below(source, count, bound):
    """`count` distinct integers, uniform without replacement in [0, bound), sorted.

    Memory and time are those of `count`, whatever the bound.

    Args:
        source: a `tfdp.noise.NoiseSource`.
        count: scalar int64 tensor, between 0 and `bound`.
        bound: scalar int64 tensor.

    Returns:
        (count,) int64.
    """
    return tf.cond(
        2 * count > bound,
        lambda: _first_of_permutation(source, count, bound),
        lambda: _first_distinct(source, count, bound),
    )


def distinct_outside(source, count, excluded, bound):
    """`count` distinct integers, uniform without replacement in [0, bound), none excluded.

    Args:
        source: a `tfdp.noise.NoiseSource`.
        count: scalar int64 tensor.
        excluded: (m,) int64, sorted and distinct.
        bound: integer; m + count must not exceed it.

    Returns:
        (count,) int64, sorted.
    """
    num_excluded = tf.size(excluded, out_type=tf.int64)
    rank = distinct_below(source, count, bound - num_excluded)
    # The r-th integer that is not excluded is r plus the number of excluded ones before it.
    before = excluded - tf.range(num_excluded)
    return rank + tf.searchsorted(before, rank, side="right", out_type=tf.int64)


def _first_distinct(source, count, bound):
    # The first `count` distinct values of an independent uniform sequence are a uniform subset.
    # A round never draws more than are missing, so that none is ever thrown away by rank.
    def missing(found):
        return tf.size(found, out_type=tf.int64) < count

    def another_round(found):
        more = _below(source, count - tf.size(found, out_type=tf.int64), bound)
        return [tf.unique(tf.concat([found, more], 0)).y]

    (found,) = tf.while_loop(
        missing,
        another_round,
        [tf.zeros([0], tf.int64)],
        shape_invariants=[tf.TensorShape([None])],
        parallel_iterations=1,
    )
    return tf.sort(found)


def _below(source, count, bound):
    """At most `count` independent integers, exactly uniform in [0, bound)."""
    values, exact = below(random_bits(source, count), bound)
    return tf.boolean_mask(values, exact)


def below(bits, bound):
    """Integers in [0, bound) from uniform uint64 bits, and which of them may be used.

    Those that may are exactly uniform: without whole multiples of the bound, the remainder would
    favour small integers.
    """
    values = tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)
    return values % bound, values < (_RANGE // bound) * bound


def _first_of_permutation(source, count, bound):
    keys = tf.bitcast(random_bits(source, bound), tf.int64)
    return tf.sort(tf.cast(tf.argsort(keys)[:count], tf.int64))
