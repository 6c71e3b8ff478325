"""Checks and adjustments between `DPModel.fit` and Keras' own."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import all_layers
from tfdp._validate import is_integer, is_number
from tfdp.accounting import Sampling
from tfdp.accounting.charges.notes import Notes
from tfdp.accounting.charges.sampling import PERSON
from tfdp.data import sampling_of
from tfdp.data.provenance import dataset_tags
from tfdp.data.provenance.padding_guard import keeps_padding, map_batches
from tfdp.distribution import host_selection
from tfdp.errors import PrivacyError
from tfdp.layers.accounted_weights import EffectiveError
from tfdp.layers.item_embedding import PopularityPrior
from tfdp.training.checks import rule_check
from tfdp.training.checks.first_rows import as_batch, first_batch, first_rows, is_dataset
from tfdp.training.checks.mapped_batches import notes_of_maps


def refuse_by_layers(model, optimizer):
    """Refuses settings that a layer of the model contradicts."""
    layers = all_layers(model)
    if optimizer.gradient_scales and any(_corrects(one) for one in layers):
        raise PrivacyError(
            "Re-Attention corrects for noise that is the same in all variables, and "
            "`gradient_scales` make it different. Leave `gradient_scales` of the DPOptimizer out. "
            f"Received: model={model.name!r}, gradient_scales={optimizer.gradient_scales}"
        )
    if any(layer.dtype_policy.name == "mixed_float16" for layer in layers):
        raise PrivacyError(
            "The policy 'mixed_float16' scales the loss, which would change the clipping. Use "
            "`keras.config.set_dtype_policy('mixed_bfloat16')`."
        )


def _corrects(layer):
    # A prior of popularity is told the noise, too, and does not read it.
    return isinstance(layer, EffectiveError) and not isinstance(layer, PopularityPrior)


def sampling_of_fit(optimizer, x, y, kwargs):
    """How the batches of this `fit` are drawn, checked against what the optimizer assumes."""
    sampling = sampling_of_data(x, kwargs)
    if y is None and not isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        raise ValueError(
            "Argument `y` of `fit` must be given, because a loss compares outputs with targets. "
            "For an autoencoder call `fit(x, x)`. Received: y=None"
        )
    if sampling.microbatches > 1:
        raise PrivacyError(
            "A batch of `tfdp.data.microbatches` may contain one record several times, and each "
            "copy would be clipped separately. With a DPOptimizer use "
            "`tfdp.data.poisson_batches`."
        )
    of_units = ("period", "max_records_per_unit", "num_records")
    for name in (*of_units, "num_examples", "expected_batch_size"):
        if name not in optimizer.from_data.names:
            _compare(name, getattr(sampling, name), getattr(optimizer, name))
    # Last: what is taken is fixed, and data that are refused must fix nothing.
    optimizer.from_data.take(sampling, kwargs.get("epochs"), kwargs.get("steps_per_epoch"))
    return sampling


def sampling_of_data(x, kwargs):
    """How the batches of this `fit` are drawn.

    Raises:
        PrivacyError: if that is not known.
    """
    if isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        sampling = sampling_of(x)
        if sampling is None:
            raise PrivacyError(
                "Argument `x` of `fit` does not state how its batches were drawn, so tfdp cannot "
                "compute ε. Make them with `tfdp.data.poisson_batches` or "
                "`tfdp.data.shuffled_epochs` (only `map`, `prefetch` and similar operations may "
                "follow). Or declare the sampling with `tfdp.data.declare_sampling(dataset, "
                '"shuffled", num_examples=…, expected_batch_size=…)`; the statement lists it as '
                f"assumed. Received: x={x}"
            )
        if isinstance(x, tf.distribute.DistributedDataset):
            # It has no end, so that no worker waits for one that has reached it.
            kwargs["steps_per_epoch"] = kwargs.get("steps_per_epoch") or sampling.steps_per_epoch
        elif not sampling.rule.is_declared:
            _check_rows(x, sampling)
        if sampling.rule.charged_by == "pass" and sampling.steps_per_epoch is None:
            # Keras begins at most one pass in each epoch.
            epochs = (kwargs.get("epochs") or 1) - (kwargs.get("initial_epoch") or 0)
            longest = -(-sampling.num_examples // max(1, int(sampling.expected_batch_size)))
            if (kwargs.get("steps_per_epoch") or 0) <= longest:
                sampling = dataclasses.replace(sampling, passes=max(1, epochs))
    elif x is not None and all(hasattr(t, "shape") for t in tf.nest.flatten(x)):
        sampling = _sampling_of_arrays(x, kwargs)
    else:
        raise PrivacyError(
            "Argument `x` must be arrays or a tf.data.Dataset made by tfdp.data; tfdp does not "
            "know how other batches are drawn. Instead of a generator or a PyDataset, pass the "
            "data themselves to `tfdp.data.poisson_batches`: arrays, or an object with `__len__` "
            "and a `__getitem__` that returns one record. Such an object needs `parse`, too. "
            f"Received: x of type {type(x)}"
        )
    return sampling


def _check_rows(dataset, sampling):
    """What followed the sampling must have kept its rows and the weights that mark padding."""
    spec = dataset.element_spec
    weighted = isinstance(spec, tuple) and len(spec) == 3 and spec[2] is not None
    if not keeps_padding(dataset):
        raise PrivacyError(
            "An operation on the sampled dataset may have turned padding into records; padding "
            "has sample weight 0. Every `map` must return (x, y, sample_weight) with the same "
            "number of rows. Call `map`, `prefetch`, `take` and `with_options` as methods of the "
            "dataset that the sampler returned; they keep those weights at 0."
        )
    rows = {t.shape[0] if t.shape.rank else None for t in tf.nest.flatten(spec)}
    if not weighted or len(rows) != 1 or rows != {sampling.rows or rows.pop()}:
        raise PrivacyError(
            "An operation on the sampled dataset has lost its sample weights, which mark "
            "padding, or changed the number of rows: padding would train, or one record would "
            "count as several. A `map` must take and return (x, y, sample_weight) and treat each "
            f"row separately. Received: elements of spec {spec}"
        )


def _sampling_of_arrays(x, kwargs):
    count = tf.nest.flatten(x)[0].shape[0]
    if kwargs.get("validation_split") and kwargs.get("validation_data") is None:
        count = int(np.floor(count * (1.0 - kwargs["validation_split"])))
    batch_size = kwargs.get("batch_size") or 32
    if batch_size >= count:
        return Sampling("full_batch", count, count, steps_per_epoch=1)
    return Sampling("shuffled", count, batch_size, steps_per_epoch=-(-count // batch_size))


def notes_of_data(model, x):
    """What was done to a dataset after it was sampled, and taken to be public when it was made."""
    assumptions = dataset_tags.assumptions_of(x)
    return Notes(assumptions=assumptions) | notes_of_maps(x, model.validate_independence)


def refuse_other_data(releases, num_examples, unit, period=None):
    """Refuses releases about other records than those that are trained on.

    Args:
        releases: `LedgerEntry` list of what the model was made from.
        num_examples: n of the training data.
        unit: what one record of the training data is.
        period: (registry, name) of the training data's persons, or None.

    Raises:
        PrivacyError: if n differs, or the unit where the release names one; or must, since the
            training's is a person. Another period of the same registry has another n: its persons
            are none of these.
    """
    for entry in releases:
        registry = None if entry.period is None else entry.period[0]
        elsewhere = period is not None and registry == period[0] and entry.period != period
        n = entry.num_examples if elsewhere else num_examples
        for name, found, expected in (
            ("num_examples", entry.num_examples, n),
            ("unit", entry.details.get("unit"), unit),
        ):
            # A release that names no unit is about records.
            if (found is not None or expected == PERSON) and found != expected:
                raise PrivacyError(
                    f'The release "{entry.label}" is about {name}={found!r}, but the training '
                    f"data have {name}={expected!r}. tfdp cannot combine the costs of different "
                    "sets of records. Make the release from the records on which the model is "
                    "trained."
                )


def _compare(name, found, expected):
    numbers = is_number(found) and is_number(expected)
    if found != expected and not (numbers and abs(found - expected) <= 1e-9 * expected):
        raise PrivacyError(
            f"The data have {name}={found}, but the DPOptimizer has {name}={expected}, so it "
            f"would charge a wrong ε. Give the DPOptimizer {name}={found}, or use other data."
        )


def _is_class(key):
    return isinstance(key, bool | np.bool_) or (is_integer(key) and key >= 0)


def check_class_weight(class_weight):
    """Refuses class weights that are no dict from classes to numbers.

    Raises:
        ValueError: if they are none, but given.
    """
    if class_weight is None:
        return
    keys = list(class_weight) if isinstance(class_weight, dict) else [None]
    if not keys or not all(_is_class(key) for key in keys):
        raise ValueError(
            "Argument `class_weight` must be a dict from classes (integers from 0) to their "
            f"weights. Received: class_weight={class_weight}"
        )


def apply_class_weight(x, kwargs):
    """Multiplies class weights into a dataset's sample weights, which Keras would refuse."""
    class_weight = kwargs.get("class_weight")
    if class_weight is None or not isinstance(x, tf.data.Dataset):
        return x
    kwargs.pop("class_weight")
    size = int(max(class_weight)) + 1
    table = tf.constant([class_weight.get(i, 1.0) for i in range(size)], tf.float32)

    def weigh(x, y, sample_weight=None):
        if tf.nest.is_nested(y):
            raise ValueError(
                "Argument `class_weight` needs a model with one output. "
                f"Received: targets of structure {tf.nest.map_structure(lambda t: t.shape, y)}"
            )
        classes = tf.cast(y, tf.int64)
        if len(y.shape) > 1 and y.shape[-1] not in (None, 1) and y.dtype.is_floating:
            classes = tf.argmax(y, axis=-1, output_type=tf.int64)
        elif len(y.shape) > 1 and y.shape[-1] == 1:
            classes = tf.squeeze(classes, -1)
        weights = tf.where(
            classes < size, tf.gather(table, tf.clip_by_value(classes, 0, size - 1)), 1.0
        )
        if sample_weight is None:
            return x, y, weights
        missing = len(weights.shape) - len(sample_weight.shape)
        shape = tf.concat([tf.shape(sample_weight), [1] * max(missing, 0)], 0)
        return x, y, weights * tf.reshape(tf.cast(sample_weight, tf.float32), shape)

    return map_batches(x, weigh)


def check_rules(model, x, y=None, sample_weight=None):
    """Builds a model, plans its step, and compares the clipping rules that tfdp does not bring.

    Args:
        model: a compiled `DPModel`.
        x, y, sample_weight: as given to `fit` or `train_on_batch`.

    Returns:
        `Notes` of what is assumed.

    Raises:
        PrivacyError: for a model that cannot be clipped, and for a rule that is wrong.
    """
    given = x, y, sample_weight
    if is_dataset(x):
        batch = x.element_spec if isinstance(x, tf.data.Dataset) else first_batch(x)
        x, _ = host_selection.unpack(keras.utils.unpack_x_y_sample_weight(batch)[0])
    else:
        x = tf.nest.map_structure(as_batch, x)
    model.clipping_plan(x)
    rules = rule_check.assumptions_without_check(model)
    if rules and model.validate_independence:
        rows = first_rows(*given, rule_check.ROWS)
        rules = rules if rows is None else rule_check.compare_foreign_rules(model, *rows)
    return Notes(assumptions=rules)


def weights_or_ones(x, sample_weight):
    if sample_weight is not None:
        return sample_weight
    return tf.ones([batch_size_of(x)], tf.float32)


def batch_size_of(x):
    """Number of rows of a batch of inputs: static where it is known, else a scalar tensor."""
    first = tf.nest.flatten(x)[0]
    if first.shape[0] is not None:
        return first.shape[0]
    return first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]
