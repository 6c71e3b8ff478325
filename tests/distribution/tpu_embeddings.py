"""What stands in for TPUs in the tests: TensorFlow's own embeddings where they run, and doubles."""

import contextlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tpu_emulation
from tensorflow.python.tpu import tpu_embedding_v1, tpu_embedding_v2, tpu_embedding_v2_utils

from tfdp.distribution import self_check
from tfdp.experimental.tpu import engines as tpu_engines
from tfdp.experimental.tpu import resident_table

KINDS = tf.tpu.experimental.HardwareFeature.EmbeddingFeature
SPARSE_CORES = 2


@contextlib.contextmanager
def hardware(kind):
    """Pretends to be on a TPU of this kind: the real TPUEmbeddingV0, doubles of the others."""
    with contextlib.ExitStack() as stack:
        patch = lambda *args: stack.enter_context(mock.patch.object(*args))  # noqa: E731
        patch(resident_table, "embedding_feature", lambda: kind)
        # The only replacement in TensorFlow's code that runs: its check for a TPU.
        patch(tpu_embedding_v1.tpu_strategy, "TPUStrategyV2", tf.distribute.Strategy)
        patch(tf.tpu.experimental.embedding, "TPUEmbedding", DoubleV1)
        patch(tf.tpu.experimental.embedding, "TPUEmbeddingV2", DoubleV2)
        patch(tpu_engines, "_sparse_cores", lambda: SPARSE_CORES)
        yield


def program_of(kind, train):
    """What `fit` gives to the TPU compiler where the tables are in TensorFlow's own classes.

    Args:
        kind: of the hardware.
        train: function of a TPUStrategy of two replicas that calls `fit`.

    Returns:
        List of the program's operations; it is not run.
    """
    strategy = tpu_emulation.strategy(2)
    feature = mock.Mock(embedding_feature=kind, num_embedding_devices_per_chip=SPARSE_CORES)
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as monkeypatch:

        def patch(*args):
            stack.enter_context(mock.patch.object(*args))

        programs = []
        tpu_emulation.emulate(monkeypatch, programs)
        patch(tpu_emulation, "_Copies", mock.Mock(side_effect=_Traced))
        patch(self_check, "check_once", lambda model: None)
        patch(self_check, "refuse_unchecked", lambda model: None)
        patch(type(strategy.extended), "num_hosts", 1)
        patch(type(strategy.extended), "tpu_hardware_feature", feature)
        # Calls of the engine itself.
        patch(tpu_embedding_v2_utils, "get_list_of_hosts", lambda strategy: ["/cpu:0"])
        patch(tpu_embedding_v2.tpu_ops, "is_tpu_embedding_initialized", lambda: False)
        patch(tpu_embedding_v2.tpu, "initialize_system_for_tpu_embedding", lambda config: None)
        patch(tpu_embedding_v2, "_load_variables_impl", lambda *args: None)
        with pytest.raises(_Traced):
            train(strategy)
    return programs[-1].get_operations()


class _Traced(Exception):
    pass


class _Double:
    """Does on the CPU what TensorFlow documents of its TPU embeddings.

    Every row that was looked up is updated once, by the sum of its gradients over all features and
    replicas; without gradient accumulation, once for each of its look-ups.
    """

    def __init__(self, feature_config, optimizer, pipeline_execution_with_tensor_core=False):
        assert not pipeline_execution_with_tensor_core
        self.features, self.optimizer = feature_config, optimizer
        self.replicas = tf.distribute.get_strategy().num_replicas_in_sync
        self.looked_up, self.received, self.updates = {}, {}, 0

    def build(self):
        configs = {f.table.name: f.table for f in tf.nest.flatten(self.features)}
        self.tables = {name: self.initial(c) for name, c in configs.items()}
        self.slots = {
            name: np.full_like(t, getattr(self.optimizer, "initial_accumulator_value", 0))
            for name, t in self.tables.items()
        }

    def initial(self, config):
        return np.array(config.initializer((config.vocabulary_size, config.dim), tf.float32))

    def read(self, features):
        flat = tf.nest.flatten(self.features)
        names = [f.table.name for f in flat]

        def look_up(replica, *ids):
            self.looked_up[int(replica)] = ids
            return [self.tables[n][i[..., 0]] for n, i in zip(names, ids, strict=True)]

        inputs = [_replica(), *tf.nest.flatten(features)]
        rows = tf.numpy_function(look_up, inputs, [tf.float32] * len(flat))
        for value, feature in zip(rows, flat, strict=True):
            value.set_shape((*feature.output_shape, feature.table.dim))
        return tf.nest.pack_sequence_as(self.features, rows)

    def write(self, gradients):
        flat = tf.nest.flatten(self.features)
        tf.nest.assert_same_structure(self.features, gradients)
        values = tf.nest.flatten(gradients)
        for value, feature in zip(values, flat, strict=True):
            assert value.shape == (*feature.output_shape, feature.table.dim)
        rate = self.optimizer.learning_rate()

        def receive(replica, rate, *values):
            self.received[int(replica)] = values
            if len(self.received) == self.replicas:
                self.update(rate)
                self.received = {}
            return np.int32(0)

        tf.numpy_function(receive, [_replica(), rate, *values], tf.int32)

    def update(self, rate):
        self.updates += 1
        by_table = {}
        for replica, values in sorted(self.received.items()):
            flat = tf.nest.flatten(self.features)
            for feature, ids, value in zip(flat, self.looked_up[replica], values, strict=True):
                given = by_table.setdefault(feature.table.name, ([], []))
                given[0].append(ids.reshape(-1))
                given[1].append(value.reshape(-1, value.shape[-1]))
        for name, (ids, gradients) in by_table.items():
            ids, gradients = np.concatenate(ids), np.concatenate(gradients)
            if self.optimizer.use_gradient_accumulation:
                rows, places = np.unique(ids, return_inverse=True)
                sums = np.zeros((len(rows), gradients.shape[1]), gradients.dtype)
                np.add.at(sums, places, gradients)
                self.change(name, rows, sums, rate)
            else:
                for i, g in zip(ids, gradients, strict=True):
                    self.change(name, i, g, rate)

    def change(self, name, rows, g, rate):
        if isinstance(self.optimizer, tf.tpu.experimental.embedding.Adagrad):
            self.slots[name][rows] += g * g
            g = g / np.sqrt(self.slots[name][rows])
        self.tables[name][rows] -= rate * g


def _replica():
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group)


class DoubleV1(_Double):
    def enqueue(self, features, training):
        assert training
        self.rows = self.read(features)

    def dequeue(self):
        return self.rows

    def apply_gradients(self, gradients):
        self.write(gradients)

    def _retrieve_variables(self):
        whole = {n: [t[:7], t[7:]] for n, t in self.tables.items()}  # two hosts
        self._variables = {
            n: {"parameters": mock.Mock(variables=[tf.constant(p) for p in parts])}
            for n, parts in whole.items()
        }


class DoubleV2(_Double):
    def __init__(self, feature_config, optimizer, sparse_core_embedding_config):
        super().__init__(feature_config, optimizer)
        assert not sparse_core_embedding_config.allow_id_dropping
        assert sparse_core_embedding_config.disable_table_stacking

    def initial(self, config):
        # As TensorFlow lays tables out: padded, row r on core r % cores, the cores of a device
        # one after another.
        cores = SPARSE_CORES * self.replicas
        rows, width = -(-config.vocabulary_size // cores) * cores, 8
        length = rows // self.replicas
        table = np.zeros((rows, width), "float32")
        for device in range(self.replicas):
            shard = mock.Mock(shape=(length, width), offset=(device * length, 0))
            values = np.array(config.initializer((rows, width), tf.float32, shard_info=shard))
            for k, part in enumerate(np.split(values, SPARSE_CORES)):
                table[device * SPARSE_CORES + k :: cores] = part
        return table[: config.vocabulary_size, : config.dim].copy()

    def __call__(self, features):
        return self.read(features), "preserved"

    def apply_gradients(self, gradients, preserved_outputs):
        assert preserved_outputs == "preserved"
        self.write(gradients)

    @property
    def embedding_tables(self):
        found = {}
        for name, table in self.tables.items():
            cores = SPARSE_CORES * self.replicas
            padded = np.zeros((-(-len(table) // cores) * cores, 8), "float32")
            padded[: len(table), : table.shape[1]] = table
            shards = [padded[k::cores] for k in range(cores)]
            devices = [
                tf.constant(np.concatenate(shards[d * SPARSE_CORES : (d + 1) * SPARSE_CORES]))
                for d in range(self.replicas)
            ]
            found[name] = mock.Mock(values=devices)
        return found
