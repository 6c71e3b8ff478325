"""The tensors at which a step takes gradients, and copies of them for whoever comes after."""

import tensorflow as tf

from tfdp._compat.keras import logits_of, mask_of, set_logits, set_mask


class Probe:
    """What a rule marks tensors with: `probe(tensor)` is a copy at which gradients are taken.

    Args:
        mark: function that takes a tensor, and returns its copy.

    Attributes:
        kept: list of what the rule needs of its call beside the gradients.
    """

    def __init__(self, mark):
        self._mark = mark
        self.kept = []

    def __call__(self, tensor):
        return self._mark(tensor)

    def keep(self, value):
        """Keeps what the call computed for `Rule.contributions_from`."""
        self.kept.append(value)


def with_probes(outputs, probe):
    """The outputs of a call, each of them and the logits of probabilities through a probe.

    Whoever uses them comes past the probes: also Keras' losses, which look for the logits behind
    probabilities.

    Args:
        outputs: any nesting; what is no floating-point tensor stays.
        probe: function that marks a tensor and returns a copy of it.
    """
    kept = [(t, logits_of(t)) for t in differentiable(outputs)]
    copies = iter([probe(t) for t, _ in kept])
    copies_of_logits = iter([probe(z) for _, z in kept if z is not None])

    def replace(tensor):
        if not is_differentiable(tensor):
            return tensor
        copy, logits = next(copies), logits_of(tensor)
        if logits is not None:
            set_logits(copy, next(copies_of_logits))
        return copy

    return tf.nest.map_structure(replace, outputs)


def copy_of(tensor):
    """The same tensor for whoever comes after; what was made from the original stays behind."""
    copy = tf.identity(tensor)
    if mask_of(tensor) is not None:
        set_mask(copy, mask_of(tensor))
    return copy


def differentiable(structure):
    """The tensors that have gradients, in order."""
    return [t for t in tf.nest.flatten(structure) if is_differentiable(t)]


def is_differentiable(value):
    return isinstance(value, tf.Tensor) and (value.dtype.is_floating or value.dtype.is_complex)
