"""Keras: what has no public way."""

import functools

import keras
from keras.src.backend import in_stateless_scope  # noqa: F401
from keras.src.export.export_utils import get_input_signature, make_tf_tensor_spec
from keras.src.layers.rnn.conv_lstm import ConvLSTMCell  # noqa: F401
from keras.src.legacy.saving import legacy_h5_format


def all_layers(model):
    """The model and every layer below it."""
    return model._flatten_layers(include_self=True, recursive=True)


def takes_training(model):
    """Whether the model's `call` has an argument `training`."""
    return model._call_has_training_arg


def mask_of(tensor):
    """The mask that Keras keeps on a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor, mask):
    """Puts a mask onto a tensor, as Keras' layers do."""
    tensor._keras_mask = mask


def logits_of(tensor):
    """The logits that an activation kept on its probabilities, or None."""
    return getattr(tensor, "_keras_logits", None)


def set_logits(tensor, logits):
    """Puts the logits of probabilities onto them, where Keras' losses look."""
    tensor._keras_logits = logits


def training_of_call(layer):
    """The argument `training` of the calls around, which layers without one of their own inherit.

    Args:
        layer: the layer that is being called.
    """
    return layer._get_call_context().get_value("training")


def means_of_losses(model):
    """The metrics that follow the loss of each output of a compiled model with several."""
    losses = getattr(model, "_compile_loss", None)
    return list(losses.metrics) if losses is not None else []


def calls_of_graph(model):
    """The nodes of a functional model in the order in which Keras runs them; none of others."""
    by_depth = getattr(model, "_nodes_by_depth", {})
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def has_strategy(model):
    """Whether the model was made in the scope of a `tf.distribute.Strategy`."""
    return model._distribute_strategy is not None


def build_from_specification(model, batch):
    """Makes the variables of model, optimizer and metrics from a symbolic batch."""
    model._symbolic_build(data_batch=batch)


def variable_index(optimizer, variable):
    """The place of a variable among those that the optimizer was built with."""
    return optimizer._get_variable_index(variable)


def is_tracked(optimizer, variable):
    """Whether an optimizer was built with a variable."""
    try:
        variable_index(optimizer, variable)
    except KeyError:
        return False
    return True


def is_decayed(optimizer, variable):
    """Whether the optimizer's weight decay acts on a variable."""
    return optimizer._use_weight_decay(variable)


def export_signature(model):
    """The `input_signature` with which `keras.Model.export` traces a model."""
    return keras.tree.map_structure(make_tf_tensor_spec, get_input_signature(model))


def file_of(store):
    """The open HDF5 file behind the store of `save_own_variables`, or None."""
    return getattr(store, "h5_file", None)


def check_legacy_saving(check):
    """Calls `check(model, filepath)` before Keras writes a whole model in the legacy HDF5 format.

    `Model.save`, `keras.saving.save_model` and `keras.models.save_model` come together there.
    """
    save = legacy_h5_format.save_model_to_hdf5

    @functools.wraps(save)
    def save_model_to_hdf5(model, filepath, *args, **kwargs):
        check(model, filepath)
        return save(model, filepath, *args, **kwargs)

    legacy_h5_format.save_model_to_hdf5 = save_model_to_hdf5


class ModelHooks(keras.Model):
    """A Keras model whose private hooks have public names.

    Attributes:
        not_exported: names of attributes that a SavedModel leaves out.
    """

    not_exported = ()

    def gather_results(self, logs, gather):
        """The results of a step, for logs; `gather` is Keras' own way, for results it knows."""
        return gather(logs)

    def batch_to_build_from(self, batches):
        """A batch to build the model from, or None to let Keras take one of the dataset."""
        return None

    def _get_metrics_result_or_logs(self, logs):
        return self.gather_results(logs, super()._get_metrics_result_or_logs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None and has_strategy(self):
            found = self.batch_to_build_from(iterator)
            if found is not None:
                iterator, data_batch = None, found
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        if save_type != "savedmodel":
            return children
        return {name: child for name, child in children.items() if name not in self.not_exported}


def schedule_of(optimizer):
    """What computes an optimizer's learning rate, a `LearningRateSchedule` or a function, or None.

    Keras gives only its value.
    """
    schedule = getattr(optimizer, "_learning_rate", None)
    is_number = isinstance(schedule, keras.Variable) or not callable(schedule)
    return None if is_number else schedule


def moments_of(adam, variable):
    """The first and the second moment of a variable, tf.Variables of an Adam that is built."""
    place = adam._get_variable_index(variable)
    return adam._momentums[place].value, adam._velocities[place].value
