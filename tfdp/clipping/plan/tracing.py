"""Forward passes on paper: the call tree of a model on some number of symbolic examples."""

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import corrupting_convolution, corrupting_product, tapes_record
from tfdp.clipping.plan.counts import advances_of
from tfdp.clipping.plan.side_effects import refuse_results_of_metrics, refuse_side_effects
from tfdp.clipping.probes import Probe, copy_of, with_probes
from tfdp.clipping.recording import (
    Recorder,
    call_model,
    current_graph,
    is_patched,
)
from tfdp.clipping.rules.registry import find_rule
from tfdp.errors import PrivacyError


class _Tracer(Recorder):
    """Probes as a step does, but at every call: which of them are needed is not known yet."""

    def run(self, call, run):
        def mark(tensor):
            call.probes.append(copy_of(tensor))
            return call.probes[-1]

        if current_graph() is not self.root.graph:
            return run(*call.args, **call.kwargs)
        rule = None if is_patched(call.layer) else find_rule(call.layer)
        if rule is not None and rule.accepts(call.layer, call.args, call.kwargs):
            call.rule = rule
            outputs = rule.call(call.layer, run, call.args, call.kwargs, Probe(mark))
        else:
            at = call.graph.version  # what a rule made of the arguments, to refuse them, is before
            call.operations = range(at, at)
            outputs = run(*call.args, **call.kwargs)
        return with_probes(outputs, copy_of)


def trace(model, x, batch_size, tracer=_Tracer):
    """The call tree of a forward pass on `batch_size` symbolic examples.

    Args:
        model: a built Keras model.
        x: a batch of its inputs (tensors or specs), any nesting.
        tracer: the class of its `Recorder`.

    Returns:
        (`LayerCall` of the model, variables that the pass moves on by itself).

    Raises:
        PrivacyError: for what the pass does beside computing.
    """
    specs = tf.nest.map_structure(lambda t: _spec(t, batch_size), x)
    tracer, advances = tracer(model), []

    def forward(x):
        with tracer.recording() as scope:
            call_model(model, x)
        _refuse_added_losses(model, scope)
        advances[:] = advances_of(model, scope)

    try:
        with tapes_record():  # those in the model: a plan is made in `tf.init_scope`
            traced = tf.function(forward, autograph=False).get_concrete_function(specs)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        if not isinstance(error, PrivacyError):
            error.add_note(
                f"tfdp called model {model.name!r} on {batch_size} examples. If a layer needs "
                "another number, such as one row for each node of a graph, it mixes examples: "
                "such a model cannot be trained privately by examples."
            )
        raise
    where = f"Model {model.name!r}"
    refuse_side_effects(traced.graph, where)
    outputs = tf.nest.flatten(tracer.root.outputs, expand_composites=True)
    refuse_results_of_metrics(traced.graph, outputs, variables_of_metrics(model), where)
    _refuse_corruption(model, traced.graph)
    return tracer.root, advances


def variables_of_metrics(model):
    """The variables that metrics have to themselves: none that is also a weight."""
    weights = {id(v) for v in model.weights}
    # Keras lists those given to `compile` once they are built, in the first step.
    given = getattr(model, "_compile_arguments", {})
    given = tf.nest.flatten([given.get("metrics"), given.get("weighted_metrics")])
    metrics = [*model.metrics, *(m for m in given if isinstance(m, keras.metrics.Metric))]
    return [v for metric in metrics for v in metric.variables if id(v) not in weights]


def _spec(tensor, batch_size):
    if isinstance(tensor, (tf.SparseTensor, tf.SparseTensorSpec)) or getattr(
        tensor, "sparse", False
    ):
        raise PrivacyError(
            "Sparse tensors cannot be split into examples. Pass padded or ragged tensors: "
            f"`tf.RaggedTensor.from_sparse(x)`. Received: {kind(tensor)}"
        )
    shape = (batch_size, *tensor.shape[1:])
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank, tensor.row_splits.dtype)
    return tf.TensorSpec(shape, tensor.dtype)


def loop_steps(operations):
    """The most steps that a loop makes: 0 without loops, infinity if that depends on the data."""
    steps = [0.0]
    for op in operations:
        if op.type in ("While", "StatelessWhile"):
            limit = op.inputs[1]  # the second of a loop's own two variables
            if limit.op.type == "Max":  # Keras' recurrent layers give that of a constant
                limit = limit.op.inputs[0]
            limit = tf.get_static_value(limit)
            steps.append(np.inf if limit is None or np.max(limit) < 0 else float(np.max(limit)))
    return max(steps)


def kind(tensor):
    """What a tensor is, for error messages."""
    return f"{type(tensor).__name__} of shape {tensor.shape}"


def _refuse_corruption(model, graph):
    product = corrupting_product(graph)
    if product is not None:
        raise PrivacyError(
            f"Model {model.name!r} multiplies {product.inputs[0].shape} by one matrix of "
            f"{product.inputs[1].shape[-2:]} ({product.name}). On CPUs, this version of "
            "TensorFlow then writes beyond its buffer (tensorflow issue 117700): gradients, norms, "
            "and so ε, could be wrong. Remove the axis of size 1, for example by "
            "`keras.ops.squeeze(x, 1)`, or set the environment variable TF_ENABLE_ONEDNN_OPTS=0 "
            "before you import TensorFlow."
        )


def refuse_corrupting_derivatives(call):
    """Refuses a call on the fallback that needs a derivative which corrupts memory."""
    found = corrupting_convolution(call.made())
    if found is not None:
        raise PrivacyError(
            f"Layer {call.layer.name!r} has no clipping rule and computes a convolution of size "
            f"1x1 and strides {found.get_attr('strides')[1:3]} ({found.name}). On CPUs, this "
            "version of TensorFlow writes beyond its buffer when it computes the gradient of this "
            "convolution: norms, and so ε, could be wrong. Slice first (`x[:, ::2, ::2]`) and "
            "convolve with strides of 1, or set the environment variable TF_ENABLE_ONEDNN_OPTS=0 "
            "before you import TensorFlow."
        )


def _refuse_added_losses(model, scope):
    if scope.losses:
        raise PrivacyError(
            f"Model {model.name!r} calls `add_loss` in its forward pass: a loss of the whole "
            "batch cannot be clipped per example. Return the term as an output of shape (batch, "
            "...) with its own loss. Weight regularizers are allowed."
        )
