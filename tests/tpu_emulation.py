"""TensorFlow's own TPUStrategy over CPU devices.

Everything above the compiler is TensorFlow's: variables, replica contexts, the one trace of a
step. What stands in for the TPUs is `_replicate`: instead of handing the traced program to a TPU
compiler it makes a copy of its operations for each replica, in which sums and exchanges between
replicas read the other copies.
"""

import collections
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import tpu_strategy
from tensorflow.python.framework import func_graph
from tensorflow.python.tpu import tpu, tpu_system_metadata

_REPLICATE = tpu.replicate
_DEVICE = collections.namedtuple("Device", "name")


_NAME = "/job:localhost/replica:0/task:0/device:{}:{}".format


def strategy(count):
    """A tf.distribute.TPUStrategy whose `count` TPU cores are logical CPU devices."""
    made = tf.distribute.TPUStrategy(resolver(count))
    put_on_cpus(made, count)
    return made


def resolver(count):
    """What finds `count` TPU cores."""
    metadata = tpu_system_metadata.TPUSystemMetadata(
        num_cores=count, num_hosts=1, num_of_cores_per_host=count, topology=None,
        devices=[_DEVICE(_NAME("TPU", i)) for i in range(count)],
    )  # fmt: skip
    found = mock.Mock()
    found.get_tpu_system_metadata.return_value = metadata
    found.cluster_spec.return_value = tf.train.ClusterSpec({})
    return found


def put_on_cpus(made, count):
    """Gives a TPUStrategy logical CPU devices in place of its TPU cores."""
    devices = [_NAME("CPU", i) for i in range(count)]
    made.extended._tpu_devices = np.array([[d] for d in devices], dtype=object)
    made.extended._device_input_worker_devices = collections.OrderedDict({devices[0]: devices})
    made.extended._host_input_worker_devices = collections.OrderedDict(
        {devices[0]: devices[:1] * count}
    )
    made._enable_packed_variable_in_eager_mode = False  # one handle for each replica


def products_of(monkeypatch, float32):
    """TensorFlow says whether a TPU is to multiply in float32, or in bfloat16 as by default."""
    monkeypatch.setattr(
        tf.config.experimental, "tensor_float_32_execution_enabled", lambda: not float32
    )


def emulate(monkeypatch, programs=None):
    """From here on TPUStrategy runs on CPUs.

    Args:
        monkeypatch: pytest's.
        programs: a list that gets the graph of each program that was traced.
    """

    def replicate(computation, inputs, **kwargs):
        graph = func_graph.FuncGraph("program")
        with graph.as_default():
            outputs = _REPLICATE(computation, inputs, **kwargs)
        if programs is not None:
            programs.append(graph)
        return _Copies(graph, len(inputs)).of(outputs)

    monkeypatch.setattr(tpu_strategy.tpu, "replicate", replicate)
    products_of(monkeypatch, float32=True)


def operations_of_program(graph):
    """The operations that a TPU would have to run, those of loops and branches included."""
    pending = [[op for op in graph.get_operations() if _in_program(op)]]
    seen = set()
    while pending:
        for op in pending.pop():
            yield op
            for name in _called(op) - seen:
                seen.add(name)
                pending.append(graph._get_function(name).graph.get_operations())


class _Copies:
    """Copies of a program's operations in the current graph, one of each for each replica."""

    def __init__(self, graph, count):
        self._count = count
        self._strategy = tf.distribute.get_strategy()
        self._tensors = [{} for _ in range(count)]
        self._operations = [{} for _ in range(count)]
        target = tf.compat.v1.get_default_graph()
        for function in graph._functions.values():
            target._add_function_recursive(function)
        for outside, inside in graph.captures:
            self._set(inside, [outside] * count)
        captured = {inside.op for _, inside in graph.captures}
        for op in graph.get_operations():
            if op not in captured:
                self._copy(target, op)

    def of(self, structure):
        """The copies of what `tpu.replicate` returned."""
        return tf.nest.map_structure(self._of_first, structure)

    def _of_first(self, found):
        if isinstance(found, tf.Operation):
            return self._operations[0][found][0]
        return self._tensors[0][found.ref()]

    def _copy(self, target, op):
        given = [[copies[t.ref()] for t in op.inputs] for copies in self._tensors]
        if op.type == "TPUReplicatedInput":
            # Each replica has its own input; what stands outside of the program is the same.
            self._set(op.outputs[0], [given[0][i] for i in range(self._count)])
        elif op.type == "TPUReplicatedOutput":
            for i, output in enumerate(op.outputs):
                self._set(output, [given[i][0]] * self._count)
        elif op.type in ("TPUReplicateMetadata", "TPUCompilationResult"):
            pass
        elif op.type == "CrossReplicaSum":
            self._set(op.outputs[0], [tf.add_n([g[0] for g in given])] * self._count)
        elif op.type == "AllToAll":
            self._set(op.outputs[0], self._exchanged(op, [g[0] for g in given]))
        else:
            for i in range(self._count):
                if i and (not _in_program(op) or op.type == "Const"):
                    made = self._operations[0].get(op)
                else:
                    with (
                        tf.device(self._device(i, op)),
                        tf.control_dependencies(self._waits(i, op)),
                    ):
                        made = _made(target, op, given[i])
                self._operations[i][op] = made
                for old, new in zip(op.outputs, made[1], strict=True):
                    self._tensors[i][old.ref()] = new

    def _device(self, replica, op):
        return self._strategy.extended.worker_devices[replica] if _in_program(op) else None

    def _waits(self, replica, op):
        found = [self._operations[replica].get(c) for c in op.control_inputs]
        return [made[0] for made in found if made is not None]

    def _exchanged(self, op, given):
        axis, other = op.get_attr("split_dimension"), op.get_attr("concat_dimension")
        parts = [tf.split(g, self._count, axis) for g in given]
        return [tf.concat([p[i] for p in parts], other) for i in range(self._count)]

    def _set(self, tensor, copies):
        for found, copy in zip(self._tensors, copies, strict=True):
            found[tensor.ref()] = copy


def _made(target, op, inputs):
    """(Operation, outputs) of one copy; what XLA leaves out or clamps a CPU would refuse."""
    if op.type in ("ResourceScatterSub", "ResourceScatterUpdate"):
        resource, indices, updates = inputs
        shape = tf.raw_ops.VariableShape(input=resource, out_type=indices.dtype)
        exist = indices < shape[0]
        call = getattr(tf.raw_ops, op.type)
        made = call(
            resource=resource,
            indices=tf.boolean_mask(indices, exist),
            updates=tf.boolean_mask(updates, exist),
        )
        return made, []
    if op.type == "GatherV2":
        params, indices, axis = inputs
        last = tf.gather(tf.shape(params, out_type=indices.dtype), axis) - 1
        inputs = [params, tf.clip_by_value(indices, tf.zeros_like(last), last), axis]
    attributes = {
        k: v for k, v in op.node_def.attr.items() if k not in ("_tpu_replicate", "_class")
    }
    types = [t.dtype for t in op.outputs]
    made = target.create_op(op.type, inputs, types, attrs=attributes, name=op.name)
    for old, new in zip(op.outputs, made.outputs, strict=True):
        new.set_shape(old.shape)
        if old.dtype == tf.resource:
            new._handle_data = getattr(old, "_handle_data", None)
    return made, made.outputs


def _in_program(op):
    return "_tpu_replicate" in op.node_def.attr


def _called(op):
    values = [op.node_def.attr[key] for key in op.node_def.attr]
    functions = [v.func.name for v in values] + [f.name for v in values for f in v.list.func]
    return {name for name in functions if name}
