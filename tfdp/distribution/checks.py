"""What a `tf.distribute` strategy must look like for a private step to be exact on it."""

import tensorflow as tf

from tfdp.data.provenance.padding_guard import map_batches
from tfdp.distribution.host_selection import SelectedInputs
from tfdp.distribution.precision import refuse_fewer_bits
from tfdp.errors import PrivacyError
from tfdp.runtime.replicas import is_multi_worker
from tfdp.runtime.strategies import traces_once
from tfdp.selection import NO_ROW


def check_strategy(strategy, optimizer):
    """Refuses strategies, and optimizers made outside of them, under which noise would be wrong.

    Args:
        strategy: the model's `tf.distribute.Strategy`.
        optimizer: the `DPOptimizer` that the model is compiled with.

    Raises:
        PrivacyError: for a strategy without synchronous replicas, TPUs of several hosts, or an
            optimizer whose state is not replicated; for settings by which numbers have fewer bits.
    """
    refuse_fewer_bits(strategy)
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise PrivacyError(
            "ParameterServerStrategy applies each worker's gradients separately, so there is no "
            "sum to which noise could be added once; Keras 3 does not train under it either. Use "
            "MirroredStrategy or MultiWorkerMirroredStrategy."
        )
    replicas = strategy.num_replicas_in_sync
    single_trace = traces_once(strategy)
    if single_trace:
        _check_hosts(strategy)
    elif replicas == 1:
        return
    inner = [optimizer.inner_optimizer, optimizer.embedding_optimizer]
    state = [one.iterations.value for one in inner if one is not None]
    if single_trace:
        state += optimizer.hidden_variables
    if not all(isinstance(v, tf.distribute.DistributedValues) for v in state):
        raise PrivacyError(
            f"The model was made for {replicas} replicas of {type(strategy).__name__}, but the "
            "optimizer was made outside the strategy: each replica would update its state once, "
            "or could not read it. Make the DPOptimizer, and the optimizers in it, inside `with "
            "strategy.scope():`, like the model."
        )


def refuse_compilation(strategy, jit_compile):
    """Refuses XLA over several replicas: neither sums nor step counters cross a compiled step.

    TPUStrategy compiles by itself what it starts; what starts it cannot be compiled.

    Args:
        strategy: the model's strategy.
        jit_compile: as given to `compile`.
    """
    replicas = strategy.num_replicas_in_sync
    if jit_compile is True and traces_once(strategy):
        raise PrivacyError(
            f"{type(strategy).__name__} compiles every step itself. `jit_compile=True` would "
            "compile the code that starts the step. Remove `jit_compile`."
        )
    if jit_compile is True and replicas > 1:
        raise PrivacyError(
            "`jit_compile=True` compiles a step for one device. Remove `jit_compile`. Received: "
            f"{replicas} replicas"
        )


def check_executions(strategy, steps_per_execution, steps):
    """Refuses executions on several replicas of which the last one finds fewer batches.

    Args:
        strategy: the model's strategy.
        steps_per_execution: as given to `compile`.
        steps: those of an epoch; None where they are not known.

    Raises:
        ValueError: if `steps_per_execution` does not divide them, which Keras cannot run.
    """
    if strategy.num_replicas_in_sync > 1 and steps and steps % steps_per_execution:
        raise ValueError(
            "Argument `steps_per_execution` must divide the number of steps of an epoch if there "
            f"are several replicas. Received: steps_per_execution={steps_per_execution}, for "
            f"{steps} steps on {strategy.num_replicas_in_sync} replicas"
        )


def check_data(strategy, x, sampling):
    """Refuses data of which replicas might see other parts than those of one draw.

    Args:
        strategy: the model's strategy.
        x: first argument of `fit`.
        sampling: its `tfdp.accounting.Sampling`.

    Raises:
        PrivacyError: for arrays on several replicas; for batches drawn anew by each worker; for
            batches of unknown size where XLA compiles the step.
    """
    if isinstance(x, tf.distribute.DistributedDataset):
        return
    if traces_once(strategy):
        _check_shapes(x)
    if strategy.num_replicas_in_sync == 1:
        return
    if not isinstance(x, tf.data.Dataset):
        raise PrivacyError(
            "Argument `x` must be a dataset made by tfdp.data when there are several replicas. "
            f"Received: x of type {type(x)} for {strategy.num_replicas_in_sync} replicas"
        )
    if any(isinstance(s, tf.RaggedTensorSpec) for s in tf.nest.flatten(x.element_spec)):
        raise PrivacyError(
            "Ragged batches cannot be divided among replicas. Pad the ids to a length that does "
            "not come from the data: `ragged.to_tensor(0, shape=(None, length))`. Received: "
            f"elements of spec {x.element_spec}"
        )
    if is_multi_worker(strategy) and not (sampling.rule.is_declared or sampling.seeded):
        raise PrivacyError(
            "Every worker would draw its own batches and train on a part of them: one record "
            "could take part twice in a step, and its sampling probability would not be q. Make "
            "the data with `tfdp.distribution.poisson_batches(strategy, data, ...)`: each worker "
            "then draws from its own share of the records."
        )


def _check_hosts(strategy):
    devices = strategy.extended.worker_devices
    hosts = {tf.DeviceSpec.from_string(d).replace(device_type=None, device_index=None).to_string()
             for d in devices}  # fmt: skip
    if len(hosts) > 1:
        raise PrivacyError(
            "Each host of a TPU pod would draw its own batches and train on a part of them: one "
            "record could take part twice in a step. Use the TPUs of one host. Received: "
            f"{type(strategy).__name__} over the hosts {sorted(hosts)}"
        )


def _check_shapes(x):
    spec = getattr(x, "element_spec", ())  # arrays have their shapes
    shapes = [s.shape for s in tf.nest.flatten(spec)]
    if not all(shape.is_fully_defined() for shape in shapes):
        raise PrivacyError(
            "A step under TPUStrategy is compiled for batches of one size. Make them with "
            "`tfdp.data.poisson_batches`, and pad ids to a length that does not come from the "
            f"data. Received: elements of shapes {shapes}"
        )


def padded(dataset, replicas, rows_per_unit=None):
    """Batches that can be divided among replicas, units as a whole; added rows have weight 0.

    Args:
        dataset: batches (x, y, sample_weight); anything else is returned as it is.
        replicas: a positive integer.
        rows_per_unit: number of rows that stay on one replica; None for 1.
    """
    if replicas == 1 or not isinstance(dataset, tf.data.Dataset):
        return dataset
    spec = dataset.element_spec
    if not (isinstance(spec, tuple) and len(spec) == 3 and spec[2] is not None):
        return dataset  # without weights, what is added would train
    rows = {t.shape[0] for t in tf.nest.flatten(spec)}
    multiple = replicas * (rows_per_unit or 1)
    if None in rows or not any(r % multiple for r in rows):
        return dataset

    def pad(*batch):
        def one(t, value=None):
            missing = -t.shape[0] % multiple
            value = tf.zeros([], t.dtype) if value is None else value
            paddings = [[0, missing]] + [[0, 0]] * (len(t.shape) - 1)
            return tf.pad(t, paddings, constant_values=value)

        rest = tf.nest.map_structure(one, batch)
        if not isinstance(batch[0], SelectedInputs):
            return rest
        # A zero would be the first row of the first table.
        filled = one(batch[0].survivors, NO_ROW)
        return rest[0]._replace(survivors=filled), *rest[1:]

    return map_batches(dataset, pad)
