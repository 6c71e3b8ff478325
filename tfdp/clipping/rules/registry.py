"""The rules, by layer type. A rule turns a recorded layer call into per-example gradients."""

import threading
from collections.abc import Callable

from tfdp.runtime.threads import holding

_RULES = {}
_LOOK_UP = threading.local()
# What a subclass may define without changing what its parent computes.
_HARMLESS = {
    "__init__", "__module__", "__doc__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__annotations__", "get_config", "from_config",
}  # fmt: skip


class Rule:
    """Per-example gradients of one type of layer, without materialising them.

    Subclass it, implement `variables` and `contributions`, and register the subclass with
    `register_rule`. Implement `call`, too, if the gradient is needed at another tensor than the
    layer's output.
    """

    #: Whether outputs that lack the batch axis (shared by the whole batch) may be broadcast to it.
    broadcasts_shared_outputs = False

    def variables(self, layer, args, kwargs):
        """The trainable variables that this rule covers in this call."""
        raise NotImplementedError

    def accepts(self, layer, args, kwargs):
        """Whether the rule covers this call; if not, the exact fallback does."""
        return True

    def call(self, layer, run, args, kwargs, probe):
        """Runs the layer and probes the tensors at which the gradient is needed.

        Args:
            run: its original `call`.
            args, kwargs: what it was called with.
            probe: a `Probe`, which marks a tensor of shape (B, ...) and returns it.

        Returns:
            The layer's outputs.
        """
        return probe(run(*args, **kwargs))

    def contributions_from(self, layer, args, kwargs, gradients, kept):
        """As `contributions`, for rules whose `call` stores values by `probe.keep(value)`.

        Args:
            layer, args, kwargs, gradients: as for `contributions`.
            kept: list of the stored values, in order.
        """
        return self.contributions(layer, args, kwargs, gradients)

    def contributions(self, layer, args, kwargs, gradients):
        """List of (variable, contribution) for one call.

        Args:
            layer, args, kwargs: the call.
            gradients: the gradients of the summed losses at the probed tensors, in order.

        Returns:
            Pairs of a Keras variable and an `OuterProduct`, `Rows` or `PerExampleGradients`.
        """
        raise NotImplementedError

    def takes_positions(self, layer, args, kwargs):
        """Whether `contributions` also holds of arguments (B, N, ...), N calls of an example.

        Then a call on what all examples share, (N, ...), may be seen as one on B copies of that.
        """
        return False

    #: Whether the probe of a call on what all examples share is linear in its first argument, and
    #: each row of it follows from the same row of that: then `shared_input` is defined.
    hands_on_factors = False

    def accepts_shared(self, layer, args, kwargs):
        """Whether `shared_contributions` covers this call, on what all examples share."""
        return False

    def gates_shared(self, layer, args, kwargs):
        """Whether the output of a shared call is an elementwise function of its probe."""
        return False

    def shared_gate(self, layer, at_probe):
        """Its derivative, (N, h), at the value (N, h) of the probe."""
        raise NotImplementedError

    def takes_gates(self, layer, args, kwargs):
        """Whether `shared_contributions` also holds of a gradient with a gate and a kernel.

        Rows of equal ids must then be equal.
        """
        return False

    def shared_contributions(self, layer, args, kwargs, gradient):
        """As `contributions`, of a call on what all examples share, of N rows.

        Args:
            layer, args, kwargs: the call.
            gradient: the `SharedGradient` at the probe.
        """
        raise NotImplementedError

    def shared_input(self, layer, args, kwargs, gradient):
        """The `SharedGradient` at the call's first argument (N, p), from that at its probe."""
        raise NotImplementedError


class ScoresRule(Rule):
    """The rule of a layer in which each example meets rows that all share, by products alone.

    The layer has no weights. Its one output, the only probe, is (B, N) scores.
    """

    def variables(self, layer, args, kwargs):
        return []

    def contributions(self, layer, args, kwargs, gradients):
        return []

    def shared_argument(self, args, kwargs):
        """The (N, d) rows that all examples share."""
        raise NotImplementedError

    def factors(self, layer, args, kwargs, gradient):
        """(left (B, T, N), right (B, T, d)) of the gradients at the shared rows, as in `Rule`.

        Args:
            layer, args, kwargs: the call.
            gradient: (B, N), at its scores.
        """
        raise NotImplementedError


def register_rule(*layer_classes: type) -> Callable:
    """Decorator: uses a `Rule` class for these layer types (MATH.md section 2).

    A subclass of a registered layer inherits the rule only if it defines nothing beyond its
    constructor and configuration. Any other subclass uses the exact fallback, because tfdp does not
    know what its `call` computes.

    Example:

    ```python
    @tfdp.clipping.register_rule(MyScale)
    class MyScaleRule(tfdp.clipping.Rule):
        def variables(self, layer, args, kwargs):
            return [layer.scale]

        def contributions(self, layer, args, kwargs, gradients):
            (s,) = gradients  # (B, T, d); docs/design.md has it for any rank and dtype
            values = tf.reduce_sum(s * args[0], axis=1)
            return [(layer.scale, tfdp.clipping.PerExampleGradients(values))]
    ```
    """
    for layer_class in layer_classes:
        if not isinstance(layer_class, type):
            raise ValueError(
                "Argument `layer_classes` must be layer classes. "
                f"Received: {layer_class} (of type {type(layer_class)})"
            )

    def decorate(rule_class):
        for layer_class in layer_classes:
            _RULES[layer_class] = rule_class()
        return rule_class

    return decorate


def find_rule(layer):
    """The rule registered for this layer, or None."""
    rule = inherited(layer, _RULES)
    return None if getattr(_LOOK_UP, "tfdp_alone", False) and is_foreign(rule) else rule


def inherited(layer, table):
    """What a dict of classes holds for a layer, if its class changes nothing of that; or None."""
    for cls in type(layer).__mro__:
        if cls in table:
            return table[cls]
        if not set(vars(cls)) <= _HARMLESS and not _is_generated(cls):
            return None
    return None


def is_foreign(rule):
    """Whether a rule is none that tfdp brings."""
    return rule is not None and type(rule).__module__.split(".")[0] != "tfdp"


def rules_of_tfdp_alone():
    """Within it, layers with rules of others take the exact fallback."""
    return holding(_LOOK_UP, "tfdp_alone", True)


def _is_generated(cls):
    # `@keras.saving.register_keras_serializable` adds attributes of this kind only.
    return all(name in _HARMLESS or name.startswith("_api_export") for name in vars(cls))
