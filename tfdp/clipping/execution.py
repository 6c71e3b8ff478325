"""The recorded forward pass of a step: the model's own computation, with gradients probed."""

import dataclasses

import tensorflow as tf

from tfdp.clipping import fallback
from tfdp.clipping.planning import PlannedCall
from tfdp.clipping.probes import Probe, copy_of, with_probes
from tfdp.clipping.recording import (
    Recorder,
    call_model,
    is_seed_state,
)
from tfdp.clipping.refusals import CALLS_DIFFER
from tfdp.errors import PrivacyError
from tfdp.runtime.strategies import compiled_by_xla


@dataclasses.dataclass(eq=False)
class RecordedCall:
    """A planned call, as it ran: its inputs, where gradients are needed, and what its rule kept."""

    planned: PlannedCall
    args: tuple
    kwargs: dict
    probes: list
    kept: list = dataclasses.field(default_factory=list)
    seeds: list = dataclasses.field(default_factory=list)
    drawn_at_once: bool = False
    training: bool | None = None


class Execution(Recorder):
    """A forward pass that keeps what planned calls need: `recorded`, beside the calls."""

    def __init__(self, model, plan, tape, batch_size):
        super().__init__(model)
        self.plan = plan
        self.tape = tape
        self.batch_size = batch_size
        self.recorded = []
        self._opaque = False

    def run(self, call, run):
        planned = None if self._opaque else self.plan.calls.get(call.key)
        if planned is None:
            return run(*call.args, **call.kwargs)
        recorded = RecordedCall(planned, call.args, call.kwargs, [], training=call.training)
        self.recorded.append(recorded)

        def mark(tensor):
            if planned.broadcast:
                shape = [self.batch_size, *tensor.shape[-2:]]
                tensor = tf.broadcast_to(tensor, shape)
            tensor = copy_of(tensor)
            self.tape.watch(tensor)
            recorded.probes.append(tensor)
            return tensor

        if planned.rule is not None:
            probe = Probe(mark)
            recorded.kept = probe.kept
            return planned.rule.call(call.layer, run, call.args, call.kwargs, probe)
        self._opaque = True
        try:
            outputs = fallback.run(recorded, run, self.batch_size, compiled_by_xla(self.model))
        finally:
            self._opaque = False
        return with_probes(outputs, mark)


def record_forward(model, plan, tape, x, batch_size):
    """Runs the training-mode forward pass once, recording what the plan needs.

    The states of random generators advance as in any forward pass; no other state changes.

    Args:
        model: the Keras model.
        plan: from `make_clipping_plan`.
        tape: a `tf.GradientTape(watch_accessed_variables=False)` that is recording.
        x: inputs.
        batch_size: number of examples, static or scalar tensor.

    Returns:
        (outputs of the model, list of `RecordedCall`).
    """
    execution = Execution(model, plan, tape, batch_size)
    return run_recorded(execution, x), execution.recorded


def run_recorded(execution, x):
    """The outputs of the model that an `Execution` is made for; see `record_forward`."""
    model = execution.model
    with execution.recording() as scope:
        outputs = call_model(model, x)
    recorded = {id(one.planned) for one in execution.recorded}
    if recorded != {id(planned) for planned in execution.plan.calls.values()}:
        raise PrivacyError(f"Model {model.name!r} {CALLS_DIFFER}")
    for variable, value in scope.updates.values():
        if is_seed_state(variable):
            variable.assign(value)
    return outputs
