"""Adam's update by one operation is that of Keras, and other optimizers keep Keras' own."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.optimizers.fused_adam import one_operation
from tfdp.runtime import xla

Adam, AdamW = keras.optimizers.Adam, keras.optimizers.AdamW
FUSED = "ResourceApplyAdam"


class OwnAdam(Adam):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, 2 * learning_rate)


def trained(optimizer, context, dtypes=("float32", "float32"), compiled=True):
    """(values of all variables after five updates, types of the operations of one)."""
    generator, sizes = np.random.default_rng(0), ((7,), (300, 40))
    variables = [
        keras.Variable(generator.normal(size=size), dtype=dtype)
        for size, dtype in zip(sizes, dtypes, strict=True)
    ]
    optimizer.build(variables)

    @tf.function(autograph=False)
    def update(gradients):
        with context(optimizer):
            optimizer.apply(gradients, variables)

    called = update if compiled else update.python_function
    for _ in range(5):
        called([tf.constant(generator.normal(size=v.shape), v.dtype) for v in variables])
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    operations = update.get_concrete_function(specs).graph.get_operations() if compiled else []
    assert "update_step" not in vars(optimizer)
    return [np.array(v, "float64") for v in variables + optimizer.variables], [
        operation.type for operation in operations
    ]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Adam(0.1),
        lambda: Adam(0.1, beta_1=0.5, beta_2=0.9, epsilon=0.01, use_ema=True, clipnorm=1.0),
        lambda: Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
        lambda: AdamW(0.1, weight_decay=0.3),
    ],
)
def test_updates_are_those_of_keras(make, compiled):
    wanted, apart = trained(make(), contextlib.nullcontext, compiled=compiled)
    found, operations = trained(make(), one_operation, compiled=compiled)
    assert operations.count(FUSED) == (2 if compiled else 0) and FUSED not in apart
    for a, b in zip(found, wanted, strict=True):
        # In float32 1 - β₂ is 0.001 to Keras, and 1.3e-5 of itself less to the operation.
        np.testing.assert_allclose(a, b, rtol=5e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make", [lambda: Adam(0.1, amsgrad=True), lambda: OwnAdam(0.1), lambda: keras.optimizers.SGD()]
)
def test_other_formulas_keep_their_own_operations(make):
    wanted, _ = trained(make(), contextlib.nullcontext)
    found, operations = trained(make(), one_operation)
    assert FUSED not in operations
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_update_that_somebody_replaced_is_kept():
    optimizer, called = Adam(0.1), []
    vars(optimizer)["update_step"] = own = lambda *arguments: called.append(arguments)
    with one_operation(optimizer):
        assert optimizer.update_step is own
    assert vars(optimizer).pop("update_step") is own


def test_variables_of_other_types_keep_their_own_operations():
    found, operations = trained(Adam(0.1), one_operation, ("bfloat16", "float32"))
    wanted, _ = trained(Adam(0.1), contextlib.nullcontext, ("bfloat16", "float32"))
    assert operations.count(FUSED) == 1
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("context", [lambda: xla.compiling(True), lambda: xla.for_platform("TPU")])
def test_steps_that_xla_compiles_keep_keras_operations(context):
    with context():
        assert FUSED not in trained(Adam(0.1), one_operation)[1]


def test_an_update_that_fails_leaves_the_optimizer_as_it_was():
    optimizer = Adam(0.1)
    with pytest.raises(ZeroDivisionError), one_operation(optimizer):
        assert "update_step" in vars(optimizer)
        raise ZeroDivisionError
    assert "update_step" not in vars(optimizer)
