"""Sums of many variables are released at once: each value in its place, and no table copied."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfdp.noise import Grid, NoiseSource
from tfdp.noise.joined import Joined, in_joined_parts

RNG = np.random.default_rng(0)


def dense(*shape):
    return tf.constant(RNG.normal(size=shape).astype(np.float32))


def rows(count, *shape):
    """Some rows of a table, several of them twice."""
    ids = RNG.integers(0, shape[0], count)
    return tf.IndexedSlices(dense(count, *shape[1:]), tf.constant(ids), tf.constant(shape))


CASES = {
    "dense alone": lambda: [dense(3, 5), dense(7), dense(16)],
    "one": lambda: [dense(5, 3)],
    "one table": lambda: [rows(9, 50, 24)],
    "tables of one width": lambda: [rows(9, 50, 24), dense(3), rows(4, 31, 24), dense(10, 10)],
    "tables of several": lambda: [rows(9, 50, 24), rows(9, 40, 16), rows(3, 11, 2, 20), dense(3)],
    "a narrow table": lambda: [rows(9, 50, 3), rows(9, 50, 24)],
    "few rows beside much else": lambda: [dense(100, 100), rows(9, 50, 16)],
}


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_each_value_has_its_place(case, jit_compile):
    tensors = CASES[case]()

    @tf.function(jit_compile=jit_compile, autograph=False)
    def there_and_back():
        return in_joined_parts(tensors, 1 << 24, lambda values: values)

    for found, tensor in zip(there_and_back(), tensors, strict=True):
        np.testing.assert_allclose(found, tf.convert_to_tensor(tensor), rtol=1e-6, atol=1e-6)


def test_parts_share_the_memory_of_the_draw():
    joined = Joined(CASES["tables of several"]()[:3])
    assert joined.values.shape[0] % 16 == 0 and joined._unit % 16 == 0


def test_a_released_mean_is_the_released_sum_over_the_divisor():
    grid = Grid(1.0, 1.0, 1000)
    tensors = [rows(9, 50, 24), dense(33)]
    sums, means = (NoiseSource(5).release(tensors, grid, divisor=d) for d in (1.0, 7.0))
    for total, mean in zip(sums, means, strict=True):
        np.testing.assert_array_equal(total / 7.0, mean)


def computations(program):
    return re.split(r"\n\s*\n", program)


@pytest.mark.thorough
@pytest.mark.parametrize("tensors", [[(2048, 8)] * 3, [(300, 40), (40,)]])
def test_a_compiled_draw_chooses_no_tensor_for_each_value(tensors):
    """XLA for CPUs would make a loop of single values of it, 4 times as slow."""
    source, grid = NoiseSource(), Grid(1.0, 1.0, 10)

    @tf.function(jit_compile=True, autograph=False)
    def step(*sums):
        return source.release(list(sums), grid)

    program = step.experimental_get_compiler_ir(*map(tf.zeros, tensors))("optimized_hlo")
    draws = [c for c in computations(program) if f"constant({0xD2511F53})" in c]
    assert len(draws) == 1 and "concatenate(" not in draws[0]


@pytest.mark.thorough
def test_no_table_is_made_by_itself():
    """Twelve tables of zeros, copies of them and their concatenation were most of a step."""
    source, grid = NoiseSource(), Grid(1.0, 1.0, 10)

    @tf.function(jit_compile=True, autograph=False)
    def step(values, ids):
        shape = tf.constant([2000, 24])
        tables = [tf.IndexedSlices(v, i, shape) for v, i in zip(values, ids, strict=True)]
        return source.release(tables, grid)

    arguments = [tf.zeros([9, 24])] * 3, [tf.zeros([9], tf.int32)] * 3
    program = step.experimental_get_compiler_ir(*arguments)("optimized_hlo")
    assert program.count(" scatter(") == 1
    made = r"f32\[(2000,24|48000)\]\S* (scatter|copy|concatenate|broadcast)\("
    assert not re.search(made, program)
