"""Where a weight goes: from each read of it in a traced forward pass to whatever uses it.

The gradient of a weight is taken at the probes of one call: at the outputs of its layer, or where
the layer's rule needs it. That is all of it only if nothing else of what the call made from the
weight is used outside: no derivative of the layer, no tensor that it keeps and another reads.
"""

import tensorflow as tf

from tfdp._compat.keras import mask_of
from tfdp.errors import PrivacyError
from tfdp.runtime.external_table import handles_of

#: Examples in the two traces from which a plan is made.
BATCH_SIZES = (3, 5)
# Through these no gradient flows.
_ENDS = frozenset({"StopGradient", "PreventGradient", "ZerosLike", "OnesLike"})
# What a handle is used for beside reading.
_NO_READS = frozenset({"VariableShape", "VarIsInitializedOp"})
_FUNCTIONS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


class DataFlow:
    """The reads of trained variables in the graph of a forward pass.

    Args:
        root: the `LayerCall` of the model.
        variables: its trained variables.
    """

    def __init__(self, root, variables):
        self.graph = root.graph
        operations = root.graph.get_operations()
        self._place = {op.name: i for i, op in enumerate(operations)}
        self._operations = operations
        owner = [None] * len(operations)
        for call in root.subtree():  # calls inside come later, and take their part
            if call.graph is root.graph:
                owner[call.operations.start : call.operations.stop] = [call] * len(call.operations)
        inner = {id(outer): inside for outer, inside in root.graph.captures}
        self._reads = [
            (variable, op, owner[self._place[op.name]])
            for variable in variables
            for handle in handles_of(variable)
            if id(handle) in inner
            for op in inner[id(handle)].consumers()
            if op.type not in _NO_READS
        ]

    def leaves(self, call, whole):
        """An operation outside of a call that uses what the call made of a weight past its probes.

        Args:
            call: a `LayerCall` in the graph.
            whole: whether the gradients of everything below the call are taken at its outputs;
                else those of what it reads itself, at the probes of its rule.

        Returns:
            A `tf.Operation`, or None.
        """
        probes = _names(tf.nest.flatten(call.outputs) if whole else call.probes)
        pending = [
            op for _, op, owner in self._reads
            if (self._place[op.name] in call.operations if whole else owner is call)
        ]  # fmt: skip
        seen = {op.name for op in pending}
        while pending:
            tensors = [t for t in pending.pop().outputs if flows(t) and t.name not in probes]
            for op in (op for t in tensors for op in t.consumers()):
                if op.type in _ENDS or op.name in seen:
                    continue
                if self._place[op.name] not in call.operations:
                    return op
                seen.add(op.name)
                pending.append(op)
        return None

    def takes_rows_from_elsewhere(self, calls):
        """Whether a call uses a tensor of the whole batch that is none of its arguments.

        Running it again for one example would hand that example all the others.

        Args:
            calls: the call in the traces for both batch sizes.
        """
        call, other = calls
        given = _names(_with_masks((call.args, call.kwargs)))
        here = call.operations
        for op in self._operations[here.start : here.stop]:
            for tensor in op.inputs:
                if tensor.name in given or self._place[tensor.op.name] in here:
                    continue
                if self.has_batch_size(tensor, other):
                    return True
        return False

    def has_batch_size(self, tensor, other):
        """Whether an axis of a tensor has the size of the batch.

        Args:
            tensor: of this graph.
            other: a call in the graph for the other batch size.
        """
        there = other.graph.get_operations()
        if len(there) == len(self._operations):
            twin = there[self._place[tensor.op.name]]
        else:
            twin = {op.name: op for op in there}.get(tensor.op.name)
        return twin is not None and _has_batch_size(tensor, twin.outputs[tensor.value_index])

    def refuse_unseen_reads(self):
        """Refuses reads that passed the recorder by, or whose gradients pass the tapes by.

        Raises:
            PrivacyError: for a variable that a `tf.function` reads inside a layer's call, and for
                one that `tf.recompute_grad` or another custom gradient hides.
        """
        for variable, op, owner in self._reads:
            seen = owner is not None and id(variable) in owner.subtree_reads()
            if not seen and not _is_constant(op):
                what = (
                    "by a `tf.function` that its `call` uses"
                    if op.type in _FUNCTIONS
                    else f"not through Keras, but by the operation {op.name!r} ({op.type})"
                )
                raise PrivacyError(
                    f"Variable {variable.path!r} is read {what}{_inside(owner)}. tfdp cannot "
                    "follow its gradient for each example there. Remove the `@tf.function` "
                    "(Keras compiles the whole step anyway), and read weights as attributes of "
                    "their layer."
                )
        reads = {op.name: (variable, owner) for variable, op, owner in self._reads}
        for op in self._operations:
            if op.type == "IdentityN" and "_gradient_op_type" in op.node_def.attr:
                hidden = _hidden_by(op, reads)
                if hidden is not None:
                    variable, owner = reads[hidden]
                    raise PrivacyError(
                        f"Variable {variable.path!r} is read{_inside(owner)} under a custom "
                        "gradient (`tf.recompute_grad`, `keras.RematScope` or "
                        "`tf.custom_gradient`), which hides its gradient for each example. "
                        "Remove the custom gradient. To save memory, give the DPOptimizer a "
                        "`microbatch_size`."
                    )


def has_batch_axis(a, b):
    """Whether a tensor of the two traces has the batch axis first."""
    return bool(a.shape.rank) and (a.shape[0], b.shape[0]) == BATCH_SIZES


def _names(tensors):
    """Names of those of the graph; what was made outside of it, a constant, has none."""
    return {t.name for t in tensors if tf.is_symbolic_tensor(t)}


def _with_masks(structure):
    tensors = [t for t in tf.nest.flatten(structure) if isinstance(t, tf.Tensor)]
    return tensors + [m for m in map(mask_of, tensors) if m is not None]


def _has_batch_size(a, b):
    """Whether an axis has the size of the batch in both traces."""
    if a.shape.rank is None or a.shape.rank != b.shape.rank:
        return False
    return BATCH_SIZES in zip(a.shape, b.shape, strict=True)


def called_by(node):
    """Names of the functions that are attributes of a node of a `GraphDef`."""
    return {f.name for a in node.attr.values() for f in (a.func, *a.list.func)}


def gradient_ends(op):
    """Whether no gradient flows through an operation."""
    return op.type in _ENDS


def flows(tensor):
    """Whether gradients may flow through a tensor; a variant may be a list of tensors."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex or tensor.dtype == tf.variant


def _is_constant(op):
    """Whether a read goes nowhere but into `tf.stop_gradient`, or nowhere at all."""
    pending, seen = [(op, True)], {op.name}
    while pending:
        op, is_copy = pending.pop()
        is_copy &= op.type in ("ReadVariableOp", "Identity", "Cast")
        for tensor in filter(flows, op.outputs):
            consumers = tensor.consumers()
            # What was computed and has no consumer may be an output of the model.
            if not consumers and not is_copy:
                return False
            new = [c for c in consumers if c.type not in _ENDS and c.name not in seen]
            pending += [(c, is_copy) for c in new]
            seen |= {c.name for c in new}
    return True


def _hidden_by(identities, reads):
    """The name of a read that the results of a custom gradient depend on past its arguments.

    The operation has the results first, then the arguments, which nobody uses from it.
    """
    used = [bool(t.consumers()) for t in identities.outputs]
    inputs = list(zip(identities.inputs, used, strict=True))
    arguments = {t.name for t, is_result in inputs if not is_result}
    pending = [t for t, is_result in inputs if is_result and t.name not in arguments]
    seen = set()
    while pending:
        op = pending.pop().op
        if op.name in seen or op.type in _ENDS:
            continue
        seen.add(op.name)
        if op.name in reads:
            return op.name
        pending += [t for t in op.inputs if flows(t) and t.name not in arguments]
    return None


def _inside(call):
    return "" if call is None else f" inside layer {call.layer.name!r}"
