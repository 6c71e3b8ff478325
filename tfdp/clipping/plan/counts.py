"""Variables that count: what a forward pass may assign, beside the states of random generators.

A layer may count its calls, or follow a schedule. What it assigns then is made of constants and of
such counts alone, so that it is the same whatever the data hold. Everything else that is assigned
may have seen raw data, and would keep it without noise.
"""

import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp.clipping.plan.side_effects import known_inside
from tfdp.clipping.recording import is_seed_state
from tfdp.errors import PrivacyError
from tfdp.runtime.external_table import handles_of


def advances_of(model, scope):
    """The variables that a forward pass moves on by itself: states of random generators, counts.

    To be called in the graph that the pass was traced in.

    Args:
        scope: the `RecordingScope` of the pass.

    Raises:
        PrivacyError: for an assignment of anything else, or to a weight that is trained.
    """
    metrics = {id(v) for layer in all_layers(model) for v in layer.metrics_variables}
    updates = [one for one in scope.updates.values() if id(one[0]) not in metrics]
    graph = tf.compat.v1.get_default_graph()
    handles = {id(h) for variable, _ in updates for h in handles_of(variable)}
    own = {id(v) for v in model.non_trainable_variables}
    for variable, value in updates:
        # A generator that draws in a loop is advanced in its fallback, by its own call.
        counts = is_seed_state(variable) or (id(variable) in own and _is_made_in(graph, value))
        if not (counts and _follows_alone(handles, value)):
            raise PrivacyError(
                f"Variable {variable.path!r} is updated from the batch during the forward pass, "
                "without noise: it would publish raw data. Freeze or remove the layer. A layer "
                "may keep a count that depends on constants and its own counts only: "
                "`self.calls.assign_add(1)`, outside branches, loops and `tf.function`."
            )
    return [variable for variable, _ in updates]


def _is_made_in(graph, value):
    return not tf.is_symbolic_tensor(value) or value.graph is graph


def _follows_alone(handles, value):
    """Whether a value is made of constants and of the variables of these handles alone."""
    pending, seen, states = [value], set(), {}
    while pending:
        tensor = pending.pop()
        if not tf.is_symbolic_tensor(tensor):
            continue  # Python's number
        op, key = tensor.op, (id(tensor.graph), tensor.op.name)
        if key[0] not in states:
            states[key[0]] = known_inside(tensor.graph, handles)
        if key in seen or op.name in states[key[0]]:
            continue
        seen.add(key)
        if op.type != "ReadVariableOp" and (op.type == "Placeholder" or op.op_def.is_stateful):
            return False
        pending += op.inputs
    return True


class OfOneStep:
    """What a step of several micro-batches leaves in variables that each of them moves on.

    It must not tell how many there were, which follows the number of examples that were drawn. A
    count ends as after one of them; a random generator goes on from numbers that follow from
    where it was before the step.

    Args:
        variables: from `advances_of`; the step begins here, and runs one micro-batch at least.
    """

    def __init__(self, variables):
        self._before = [(v, tf.identity(tf.convert_to_tensor(v.value))) for v in variables]

    def begin_again(self):
        """Called before each micro-batch."""
        for variable, value in self._before:
            if not is_seed_state(variable):
                variable.assign(value)

    def end(self):
        """Called after the last one."""
        for variable, value in self._before:
            if is_seed_state(variable):
                drawn = tf.random.stateless_uniform(
                    [2], tf.cast(value, tf.int64), minval=None, maxval=None, dtype=tf.int32
                )
                variable.assign(tf.cast(drawn, value.dtype))
