"""Which tensors of a call have the batch axis, by its traces for two sizes of the batch."""

import keras
import tensorflow as tf

from tfdp.clipping.plan.dataflow import BATCH_SIZES, has_batch_axis
from tfdp.clipping.plan.refusals import CALLS_DIFFER
from tfdp.errors import PrivacyError


def pairs_of(model, first, second):
    """Dict of a call's place in the call tree to that call in both traces."""
    calls, others = ({call.key: call for call in root.subtree()} for root in (first, second))
    tensors = [
        {key: len(tensors_of((c.args, c.kwargs, c.outputs))) for key, c in found.items()}
        for found in (calls, others)
    ]
    if tensors[0] != tensors[1]:
        raise PrivacyError(f"Model {model.name!r} {CALLS_DIFFER}")
    return {key: (call, others[key]) for key, call in calls.items()}


def alignment(call, pairs, get):
    """Whether each tensor has the batch axis first."""
    return [
        has_batch_axis(a, b)
        for a, b in zip(*(tensors_of(get(c)) for c in pairs[call.key]), strict=True)
    ]


def divides_by_example(calls):
    """Whether every argument has the batch axis first, or is the same for batches of any size.

    The fallback hands each example its part of the first and all of the second. What holds several
    examples in another way (ragged, sparse, transposed, flattened, of unknown length) would mix
    their gradients.
    """
    first, second = (tf.nest.flatten((c.args, c.kwargs)) for c in calls)
    tensors = [(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, tf.Tensor)]
    return not composites(first) and all(
        has_batch_axis(a, b) or (a.shape.is_fully_defined() and a.shape == b.shape)
        for a, b in tensors
    )


def composites(structure):
    """Ragged tensors, sparse ones, and others that hold several."""
    return [
        t for t in tf.nest.flatten(structure)
        if tf.is_tensor(t) and not isinstance(t, (tf.Tensor, tf.Variable, keras.Variable))
    ]  # fmt: skip


def is_shared(call, pairs):
    """Whether an output (T, d) or (1, T, d), the same for any batch, may be copied per example.

    Only if all that happens to it is elementwise arithmetic with tensors (B, T, d): there the
    copies meet the examples one by one. Anything else (an index, a mean, a transposition) would
    mean something else on the copies.
    """
    a, b = (tensors_of(c.outputs) for c in pairs[call.key])
    if len(a) != 1 or a[0].shape != b[0].shape:
        return False
    shape = a[0].shape
    if len(shape) != 2 and not (len(shape) == 3 and shape[0] == 1):
        return False
    pending, met = [t for t in (a[0], b[0])], []
    while pending:
        tensor = pending.pop()
        for op in tensor.consumers():
            if op.type in ("Identity", "Cast"):
                pending += op.outputs
            elif op.type in ("AddV2", "Add", "Sub", "Mul"):
                if all(t is tensor for t in op.inputs):
                    return False
                met += [(t.shape, tensor.shape) for t in op.inputs if t is not tensor]
            else:
                return False
    # Two traces, so half of what it met has the first batch size and half the second.
    sizes = [other[0] for other, own in met
             if len(other) == 3 and other[1:] == own[len(own) - 2 :]]  # fmt: skip
    return len(sizes) == len(met) > 0 and sorted(set(sizes)) == sorted(BATCH_SIZES)


def tensors_of(structure):
    return [t for t in tf.nest.flatten(structure) if isinstance(t, tf.Tensor)]
