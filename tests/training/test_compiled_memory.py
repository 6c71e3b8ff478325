"""A private step that XLA compiles holds no more tensors of the logits' size than a plain one."""

import functools
import math
import re

import keras
import pytest
import tensorflow as tf

import tfdp

BATCH, LENGTH, VOCABULARY = 4, 6, 20_000
LOGITS = BATCH * LENGTH * VOCABULARY
# Results that are no memory of their own.
VIEWS = {"bitcast", "get-tuple-element", "tuple"}


def compiler_of_step(private):
    keras.utils.clear_session()
    optimizer = keras.optimizers.SGD(0.1)
    if private:
        optimizer = tfdp.optimizers.DPOptimizer(
            optimizer, noise_multiplier=1.0, num_examples=10_000, expected_batch_size=BATCH
        )
    model = tfdp.models.DPFormer(VOCABULARY - 1, LENGTH, dim=8, num_blocks=1)
    model.build((None, LENGTH))
    model.compile(optimizer, jit_compile=True)
    optimizer.build(model.trainable_variables)
    ids = tf.ones([BATCH, LENGTH], tf.int32)
    step = tf.function(lambda *data: model.train_step(data), jit_compile=True, autograph=False)
    return step.experimental_get_compiler_ir(ids, ids, tf.ones([BATCH]))


def instructions(hlo):
    """(name, shapes, kind, operands) of the instructions of a module's entry, in their order."""
    pattern = r"^ +(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(([^)]*)\)"
    found = re.findall(pattern, hlo[hlo.index("\nENTRY") :], re.MULTILINE)
    for name, shape, kind, operands in found:
        shapes = [[int(d) for d in s.split(",") if d] for s in re.findall(r"\[([\d,]*)\]", shape)]
        yield name, shapes, kind, re.findall(r"%?([a-zA-Z_][\w.\-]*)", operands)


def most_alive(hlo):
    """The largest number of values of the logits' size that wait for their last use at once."""
    assert "is_scheduled=true" in hlo
    values, behind, program = {}, {}, list(instructions(hlo))
    for i, (name, shapes, kind, operands) in enumerate(program):
        used = set().union(*(behind.get(o, set()) for o in operands))
        for value in used:
            values[value][1] = i
        if kind in VIEWS:
            behind[name] = used
        elif any(math.prod(s) >= LOGITS for s in shapes):
            values[name], behind[name] = [i, i], {name}
    return max(
        sum(first <= i <= last for first, last in values.values()) for i in range(len(program))
    )


@pytest.fixture(scope="module")
def steps():
    """Function: whether private -> what compiles the step, made when it is first asked for."""
    return functools.cache(compiler_of_step)


@pytest.mark.evidence
def test_as_many_tensors_of_the_logits_size_are_alive_as_in_a_plain_step(steps):
    plain, private = (most_alive(steps(p)(stage="optimized_hlo")) for p in (False, True))
    assert plain >= 2  # the pattern still reads what XLA writes
    assert private <= plain


@pytest.mark.thorough
def test_logits_are_never_laid_out_flat(steps):
    # Free on a CPU; on a TPU a copy of the logits' gradients in another layout.
    shapes = [s for _, shapes, _, _ in instructions(steps(True)(stage="hlo")) for s in shapes]
    assert [BATCH, LENGTH, VOCABULARY] in shapes
    assert [LOGITS] not in shapes


@pytest.mark.thorough
def test_products_of_logits_gradients_are_made_one_example_at_a_time(steps):
    # For products of the whole batch XLA for TPUs copies them, each time into another layout.
    large, products = set(), []
    for name, shapes, kind, operands in instructions(steps(True)(stage="hlo")):
        if any(math.prod(s) >= LOGITS for s in shapes):
            large.add(name)
        elif kind in ("dot", "gather") and [BATCH, LENGTH, LENGTH] in shapes:
            products.append(large & set(operands))
    assert large and products == [set()] * len(products)
