"""Looking at what private training would do: norms of single examples, and the plan."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tfdp.clipping.engine import backward, squared_norms
from tfdp.clipping.losses import PerExampleLoss, example_mask_of
from tfdp.clipping.plan.planning import make_clipping_plan
from tfdp.clipping.recording import input_structure


def per_example_gradient_norms(
    model: keras.Model,
    x: Any,
    y: Any,
    loss: str | keras.losses.Loss | Callable,
    sample_weight: ArrayLike | None = None,
) -> np.ndarray:
    """The l2 norm of each example's own gradient over all trainable variables.

    Runs one forward pass and one backward pass, with dropout and other random layers active as in
    training. The result is raw data about the examples: inspect it, never release it.

    Args:
        model: a built Keras model with one loss.
        x: inputs, leading axis B, any nesting.
        y: targets.
        loss: a Keras loss, its name, or a function `(y_true, y_pred) -> (B, ...)`; each example's
            loss is the mean over its own positions.
        sample_weight: (B,) or (B, T), optional.

    Returns:
        float32 array (B,).
    """
    x = tf.nest.map_structure(lambda t: t if tf.is_tensor(t) else tf.convert_to_tensor(t), x)
    plan = make_clipping_plan(model, x)
    per_example = PerExampleLoss(loss)

    @tf.function(autograph=False)
    def norms(x, y, sample_weight):
        batch_size = tf.nest.flatten(x)[0].shape[0]
        result = backward(
            model,
            plan,
            x,
            lambda outputs: per_example(y, outputs, sample_weight),
            example_mask_of(sample_weight, batch_size),
        )
        squared, _, _ = squared_norms(result)
        return tf.sqrt(tf.maximum(tf.add_n(squared), 0.0))

    return np.asarray(norms(x, y, sample_weight), np.float32)


def explain(model: keras.Model, x: Any = None) -> str:
    """Shows the clipping rule of each layer.

    Args:
        model: a built Keras model.
        x: a batch of inputs; may be omitted for a model with defined inputs.

    Returns:
        A table as text, with one line for each layer call: its rule, the number of variables that
            it covers, and the number of their parameters. A layer without a rule shows "exact
            fallback", and about how many times longer a step on a batch of 64 examples then takes.

    Raises:
        PrivacyError: as `make_private` does.
    """
    if x is None:
        x = tf.nest.map_structure(
            lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), input_structure(model)
        )
    plan = make_clipping_plan(model, x)
    lines = [f"{'layer':32}{'rule':28}{'variables':>10}{'parameters':>12}"]
    for planned in plan.calls.values():
        rule = type(planned.rule).__name__
        if planned.rule is None:
            rule = f"exact fallback (~{planned.slowdown:.1f}x)"
        if planned.broadcast:
            rule += " (broadcast)"
        if planned.uses:
            rule += " (shared)"
        if planned.scores:
            rule += " (shared, in parts)"
        size = sum(int(np.prod(v.shape)) for v in planned.variables)
        lines.append(f"{planned.layer.name:32}{rule:28}{len(planned.variables):>10}{size:>12,}")
    for variable in plan.unused:
        behind = any(variable is one for one in plan.behind)
        where = "behind noised vectors" if behind else "not used by the model"
        lines.append(f"{variable.path:32}{where:28}")
    return "\n".join(lines)
