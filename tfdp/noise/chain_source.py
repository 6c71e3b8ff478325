"""Noise of training steps that later steps partly cancel (MATH.md section 13)."""

import functools

import tensorflow as tf

from tfdp.noise import grid as on_grid
from tfdp.noise.correlated_source import CorrelatedSource, hidden
from tfdp.noise.gaussian import block_of, counter_of, counters_of_pairs, keys_of_rounds, words_of
from tfdp.noise.joined import LARGEST_JOINED, in_joined_parts
from tfdp.noise.pairs import apart, by_pairs, together
from tfdp.noise.training_source import ADVANCING, FEW, SMALL_DRAW, compiled_size
from tfdp.runtime.xla import is_compiling, platform

# Turns of one table, or steps, in the upper words of counters.
_LOG_TURNS = 48


class ChainSource(CorrelatedSource):
    """Adds the step's own draw to its sums, and a part of the draws of earlier steps.

    y_t = r(x_t) + d_t + r(Σ_{i≥1} m_i·d_{t−i}), with d_t = r(z_t + γ·w_t) the draw of an
    independent release. Earlier draws are not kept: they are drawn again from their counters, whose
    upper word is the number of the step. So every step must release tensors of the same shapes with
    the same σ.

    Rows of tables that a step selected have chains of their own: row r's j-th selection in a chain
    gets draw (r, j), and parts of the draws (r, j − 1), …. Only a count for each row is kept. It is
    public, because selections are.

    Formal guarantees: the key is the operating system's, new for each chain, and in no variable
    that is saved. No two steps share a counter. After the last step of a chain, and outside a
    chain, noise is independent, with the standard deviation of a chain's noise.

    Args:
        bands: b, how many draws make the noise of a step.
        seed: as for `NoiseSource`.
    """

    _purpose = "chain/"

    def __init__(self, bands: int, seed: int | None = None):
        super().__init__(bands, seed)
        self._tables = []
        with tf.init_scope():
            self._position = hidden(0, tf.int64, "step_of_chain")
            self._length = hidden(0, tf.int64, "steps_of_chain")
        self.end()

    @property
    def variables(self):
        counts = [count for _, count in self._tables]
        return [*super().variables, self._position, self._length, *counts]

    def build(self, tables):
        for table in tables:
            zeros = tf.zeros([table.shape[0]], tf.int32)
            self._tables.append((table, tf.Variable(zeros, trainable=False, name="turns_of_rows")))

    def begin(self, correlation, strategy=None):
        # What is taken back is off by a unit at most in each of two runs, and by as many as its
        # coefficients where another program has drawn earlier steps, and rounded otherwise.
        units = 1.0 + sum(map(abs, correlation.coefficients[1:]))
        carried = 2.0 * units * correlation.carried
        self._begin(correlation.coefficients, correlation.sensitivity, carried, strategy)
        self._position.assign(0)
        self._length.assign(correlation.steps)
        for _, count in self._tables:
            count.assign(tf.zeros_like(count))

    def release(self, tensors, grid, divisor=1.0, dtype=tf.float32, rows=()):
        self._check(tensors)
        step, coefficients = self._next()
        key = tf.bitcast(self._key.read_value(), tf.uint64)
        first = tf.bitcast(self._counter.read_value(), tf.uint64)
        divisor = tf.constant(divisor, dtype)
        noisy_rows = [
            self._release_rows(one, grid.public, (key, first, coefficients, divisor), dtype)
            for one in rows
        ]
        # The upper word of a counter is that of the step, in which the lower one goes on. It begins
        # again at 0 and carries nothing: all values of a step share the upper one.
        steps = tf.cast(step - _backward(self._bands), tf.uint64)
        own, used = tf.where(_backward(self._bands) <= step, coefficients, 0.0), 0

        def one_part(values):
            nonlocal used
            size = values.shape[0]
            whole = size if is_compiling() else compiled_size(size)
            values = tf.pad(values, [[0, whole - size]]) if whole > size else values
            counter = tf.stack([first[0] + tf.constant(used, tf.uint64), first[1]])
            # Alike in all programs that make steps of this chain, whatever they fill up.
            used += on_grid.WORDS * compiled_size(size) + 1
            draw = _compiled(self._bands, dtype)
            drawn = by_pairs(draw, values, dtype, grid.public, key, counter, steps, own, divisor)
            return drawn[:size]

        return noisy_rows + in_joined_parts(tensors, LARGEST_JOINED, one_part)

    def _next(self):
        """Moves on a step: the number of this one, and the coefficients of its draws."""
        with ADVANCING:
            step = self._position.read_value()
            self._position.assign(step + 1)
        m = self._numbers.read_value()[: self._bands]
        # After the chain's last step nothing is taken back.
        return step, tf.where(step < self._length.read_value(), m, tf.zeros_like(m))

    def _release_rows(self, one, public, arguments, dtype):
        """Rows of a table with the noise of their own chains, divided."""
        table, rows, sums = one
        (place,) = (i for i, (known, _) in enumerate(self._tables) if known is table)
        counts, size = self._tables[place][1], table.shape[0]
        turns = tf.gather(counts, tf.minimum(rows, size - 1))
        counts.scatter_update(tf.IndexedSlices(turns + 1, rows))
        # Rows that hold nothing draw beside the table, what no other row draws.
        rows, turns = tf.minimum(rows, size), tf.cast(turns, tf.int64)
        # The upper word of a counter is that of table and turn: 2⁴⁸ turns a table, those of no
        # table being the steps of dense weights. All tables share the program: no constant of it.
        arguments = (tf.constant((place + 1) << _LOG_TURNS, tf.uint64), *arguments)
        release, (number, width) = _compiled_rows(self._bands, dtype), sums.shape
        if number is None:
            of_width = _rows_of_any_number(release, dtype, width)
            return of_width(sums, rows, turns, public, *arguments)
        if number == 0:  # an eager step in which no row was selected
            return tf.cast(sums, dtype)
        # In blocks, as far as rows hold something: which ones do is public.
        block = min(number, max(1, SMALL_DRAW // width))
        blocks = -(-number // block)
        parts = [_filled_up(t, blocks * block) for t in (sums, rows, turns)]

        def one_block(i):
            part = [tf.slice(t, [i * block] + [0] * (t.shape.rank - 1), [block, *t.shape[1:]])
                    for t in parts]  # fmt: skip
            return by_pairs(release, part[0], dtype, public, *part[1:], *arguments)

        held = tf.where(rows < size, tf.range(1, number + 1), 0)
        needed = -(-tf.reduce_max(held) // block)
        return _stacked(one_block, needed, blocks, dtype, [block, width])[:number]


def _backward(bands):
    """(b,) how many steps before this one each draw of a step was made."""
    return tf.range(bands, dtype=tf.int64)


def _units(numbers, keys, counters):
    """A draw of pairs in units of the grid, from the counters of their first and second blocks.

    Each counter is four words as of `words_of`; the first word has the shape of the draw.

    In a trace of its own, made once: a step has a draw for each of its bands, tables and sizes.
    """
    first, second = counters
    units = _traced_units(platform(), is_compiling())(*numbers, *first, *second, *keys)
    for one in units:
        one.set_shape(first[0].shape)
    return units


@functools.cache
def _traced_units(*_):
    """`drawn_units` of blocks, for a platform and whether XLA compiles them: `log` differs."""
    number, words = tf.TensorSpec([], tf.float64), tf.TensorSpec(None, tf.uint64)

    @tf.function(input_signature=[*[number] * 3, *[words] * 28], autograph=False)
    def units(step, stddev, window, *words_and_keys):
        first, second, keys = words_and_keys[:4], words_and_keys[4:8], words_and_keys[8:]
        blocks = block_of(keys, first), block_of(keys, second)
        return on_grid.drawn_units(step, stddev, window, blocks)

    return units


def _released(values, draw, coefficients, numbers, divisor, dtype):
    """Values as of `apart`, with the noise of a step: of what `draw(i)` gives for i steps ago."""
    drawn = [draw(i) for i in range(len(coefficients))]
    step, stddev, _ = numbers
    noisy = []
    for value, own, *earlier in zip(apart(values), *drawn, strict=True):
        if earlier:
            taken = zip(coefficients[1:], earlier, strict=True)
            own += tf.round(tf.add_n([coefficient * one for coefficient, one in taken]))
        noisy.append(on_grid.on_grid(value, own, step, stddev, dtype))
    return together(*[n / divisor for n in noisy], values)


@functools.cache
def _compiled(bands, dtype):
    # One loop for all draws of a value: none of them is written to memory.
    @tf.function(jit_compile=True, autograph=False)
    def run(values, public, key, counter, steps, coefficients, divisor):
        numbers, number = on_grid.numbers_of(*public), apart(values)[0].shape[0]
        counters, keys = counters_of_pairs(counter, number), keys_of_rounds(key)

        def draw(i):
            of_step = counter[1] + steps[i]
            return _units(numbers, keys, [words_of(low, of_step) for low, _ in counters])

        coefficients = tf.unstack(coefficients, bands)
        return _released(values, draw, coefficients, numbers, divisor, dtype)

    return run


@functools.cache
def _compiled_rows(bands, dtype):
    @tf.function(jit_compile=True, autograph=False)
    def run(values, public, rows, turns, table, key, first, coefficients, divisor):
        """(S, d) sums of the rows (S,), of which each was selected `turns` (S,) times before."""
        numbers, pairs = on_grid.numbers_of(*public), apart(values)[0].shape[1]
        places = 2 * (rows[:, tf.newaxis] * pairs + tf.range(pairs, dtype=tf.int64))
        counters = [counter_of(first, tf.cast(places + one, tf.uint64)) for one in (0, 1)]
        own = tf.where(_backward(bands) <= turns[:, tf.newaxis], coefficients, 0.0)
        keys = keys_of_rounds(key)

        def draw(i):
            turn = table + tf.cast(turns - i, tf.uint64)[:, tf.newaxis]
            return _units(numbers, keys, [words_of(low, high + turn) for low, high in counters])

        coefficients = tf.unstack(own[:, :, tf.newaxis], bands, axis=1)
        return _released(values, draw, coefficients, numbers, divisor, dtype)

    return run


def _stacked(block, needed, number, dtype, shape):
    """The first `needed` of `number` blocks, one below another, and zeros for the others."""
    drawn = tf.TensorArray(dtype, number, element_shape=shape)
    _, drawn = tf.while_loop(
        lambda i, _: i < needed,
        lambda i, drawn: (i + 1, drawn.write(i, block(i))),
        (0, drawn),
        parallel_iterations=1,
    )
    return tf.reshape(drawn.stack(), [-1, *shape[1:]])


def _filled_up(rows, number):
    """Rows, and zeros below them up to a number."""
    beside = [[0, 0]] * (rows.shape.rank - 1)
    return tf.pad(rows, [[0, number - rows.shape[0]], *beside])


@functools.cache
def _rows_of_any_number(release, dtype, width):
    """A function as `release`, of a number of rows that is not known when it is traced.

    One for each width: a function that is called with several ones takes none for known.
    """

    def run(sums, rows, turns, public, *arguments):
        count = tf.shape(sums)[0]

        def block(i, size):
            start = i * size
            part = [t[start : start + size] for t in (sums, rows, turns)]
            missing = size - tf.shape(part[1])[0]
            part = [
                tf.ensure_shape(
                    tf.pad(t, [[0, missing]] + [[0, 0]] * (t.shape.rank - 1)), [size, *t.shape[1:]]
                )
                for t in part
            ]
            return by_pairs(release, part[0], dtype, public, *part[1:], *arguments)

        def many():
            size = max(1, SMALL_DRAW // width)
            number = count // size + 1
            return _stacked(lambda i: block(i, size), number, number, dtype, [size, width])

        few = max(1, FEW // width)
        return tf.cond(count <= few, lambda: block(0, few), many)[:count]

    return tf.function(run, reduce_retracing=True, autograph=False)
