"""The recorded forward pass of a step: the model's own computation, with gradients probed."""

import dataclasses

import tensorflow as tf

from tfdp.clipping import fallback
from tfdp.clipping.planning import Unit
from tfdp.clipping.recording import Recorder, call_model, is_seed_state


@dataclasses.dataclass(eq=False)
class RecordedUnit:
    """One unit of the plan, as it ran: its inputs and the tensors where gradients are needed."""

    unit: Unit
    args: tuple
    kwargs: dict
    probes: list
    seeds: object = None


class Execution(Recorder):
    """A forward pass that keeps what the plan's units need: `recorded`, beside the calls."""

    def __init__(self, model, plan, tape, batch_size):
        super().__init__(model)
        self.plan = plan
        self.tape = tape
        self.batch_size = batch_size
        self.recorded = []
        self._opaque = False

    def run(self, record, run):
        unit = None if self._opaque else self.plan.units.get(record.key)
        if unit is None:
            return run(*record.args, **record.kwargs)
        recorded = RecordedUnit(unit, record.args, record.kwargs, [])
        self.recorded.append(recorded)

        def probe(tensor):
            if unit.broadcast:
                shape = [self.batch_size, *tensor.shape[-2:]]
                tensor = tf.broadcast_to(tensor, shape)
            self.tape.watch(tensor)
            recorded.probes.append(tensor)
            return tensor

        if unit.rule is not None:
            return unit.rule.call(record.layer, run, record.args, record.kwargs, probe)
        self._opaque = True
        try:
            if unit.seeds:
                recorded.seeds = fallback.example_seeds(unit, self.batch_size)
                outputs = fallback.run_by_example(recorded)
            else:
                outputs = run(*record.args, **record.kwargs)
        finally:
            self._opaque = False
        return tf.nest.map_structure(lambda t: probe(t) if isinstance(t, tf.Tensor) else t, outputs)


def record_forward(model, plan, tape, x, batch_size):
    """Runs the training-mode forward pass once, recording what the plan needs.

    The states of random generators advance as in any forward pass; no other state changes.

    Args:
        model: the Keras model.
        plan: from `make_plan`.
        tape: a `tf.GradientTape(watch_accessed_variables=False)` that is recording.
        x: inputs.
        batch_size: number of examples, static or scalar tensor.

    Returns:
        (outputs of the model, list of `RecordedUnit`).
    """
    execution = Execution(model, plan, tape, batch_size)
    return run_recorded(execution, x), execution.recorded


def run_recorded(execution, x):
    """The outputs of the model that an `Execution` is made for; see `record_forward`."""
    model = execution.model
    with execution.recording() as scope:
        outputs = call_model(model, x)
    for variable, value in scope.updates.values():
        if is_seed_state(variable):
            variable.assign(value)
    return outputs
