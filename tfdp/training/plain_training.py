"""Training with any Keras optimizer: what protects the data then, and how it is charged."""

import math

import keras
import tensorflow as tf

from tfdp import accounting
from tfdp.accounting.charges.notes import Notes
from tfdp.clipping.recording import ensure_built
from tfdp.data.provenance.released_datasets import is_release, released_by
from tfdp.distribution import checks
from tfdp.errors import BudgetError, PrivacyError
from tfdp.optimizers.from_data import steps_of
from tfdp.runtime import replicas
from tfdp.training.checks import caveats, preflight
from tfdp.training.checks.data_paths import find_data_paths, forward_noise_layers
from tfdp.training.checks.first_rows import first_batch
from tfdp.training.checks.noise_inputs import notes_of_noise


def mechanism_of_fit(model, x, y, notes, kwargs):
    """What the steps of a fit cost in a model that is not compiled with a DPOptimizer.

    - Data of a release (`tfdp.data.release_once`, `release_mixtures`) are private already: the
      release is charged, once, and the steps cost nothing.
    - With `DPForwardNoise` layers, the steps release noisy copies of the records of their batches.
    - Anything else is training without privacy.

    Args:
        model: a compiled `DPModel`.
        x, y, kwargs: as given to `fit`.
        notes: `Notes` of its callbacks.

    Returns:
        A mechanism of `tfdp.accounting`.

    Raises:
        PrivacyError: for forward noise on data of unknown origin, or in a model whose
            representations mix examples.
    """
    notes |= caveats.of_model(model)
    origin = released_by(x)
    if origin is not None:
        ensure_built(model, keras.utils.unpack_x_y_sample_weight(_batch(x, y, None))[0])
        notes |= _of_weights(model)
        for entry in origin.releases:
            model.charge_history.charge(entry)
        notes |= Notes(assumptions=origin.assumptions)
        if not is_release(x):
            notes |= Notes(assumptions=("operations on released data used no other data",))
        return accounting.charges.mechanisms.ReleasedData(notes)
    if forward_noise_layers(model):
        return _forward_noise(model, x, y, kwargs, notes)
    return accounting.charges.mechanisms.NoPrivacy(notes | _of_weights(model))


def _of_weights(model):
    # When the model is built: `build` of a layer may load weights.
    return Notes(assumptions=model.weight_origin.assumption())


def refuse_beyond_budget(model, mechanism, kwargs):
    """Refuses a fit with forward noise that would end beyond the budget its noise was made for.

    Args:
        model: a `DPModel`; its attribute `budget`, if it has one, is a `PrivacyBudget`.
        mechanism: what its steps cost; they were begun.
        kwargs: as given to `fit`.

    Raises:
        BudgetError: if it would.
    """
    budget, sampling = getattr(model, "budget", None), getattr(mechanism, "sampling", None)
    if budget is None or sampling is None:
        return
    epochs = (kwargs.get("epochs") or 1) - (kwargs.get("initial_epoch") or 0)
    steps = steps_of(sampling, epochs, kwargs.get("steps_per_epoch"))
    if steps is None:
        return
    spent = model.plain_charging.epsilon_after(steps, budget.delta)
    if spent > budget.epsilon:
        raise BudgetError(
            f"After {epochs} more epochs, ε would be {spent:.4g} at δ = {budget.delta:.3g}, "
            "beyond the budget. Fit for fewer epochs, or make a new model with `copies=` set to "
            f"the total number of epochs. Received: budget={budget}, {len(model.ledger)} "
            "mechanisms charged before"
        )


def change_by_release(model, release, change):
    """Sets weights from a release: charges it, and notes what its making took to be public.

    Args:
        model: a `DPModel` that is built.
        release: a release of data, such as a `tfdp.data.Release`.
        change: called without arguments; sets the weights.
    """
    model.join_histories()
    for entry in release.privacy_releases:
        model.charge_history.charge(entry)
    assumptions = (*model.weight_origin.assumption(), *release.privacy_assumptions)
    step = model.charge_history.start(
        accounting.charges.mechanisms.ReleasedData(Notes(assumptions=assumptions))
    )
    model.charge_history.count(step, 1)
    model.weight_origin.begin()
    try:
        change()
    finally:
        model.weight_origin.end()


def refuse_noise_alone(model, x, y, kwargs):
    """Under a DPOptimizer, variables that no gradient reaches would be trained by its noise alone.

    Raises:
        PrivacyError: if a `DPForwardNoise` layer stops the gradient of trainable variables.
    """
    if not forward_noise_layers(model):
        return
    batch = keras.utils.unpack_x_y_sample_weight(_batch(x, y, kwargs.get("sample_weight")))
    below = find_data_paths(model, *batch).below
    if below:
        raise PrivacyError(
            "A DPOptimizer adds noise to every trainable variable, but no gradient reaches the "
            'variables below a DPForwardNoise layer. Freeze them, or use gradient="propagate" '
            f"(the DPOptimizer then covers them). Received: trainable variables {list(below)}"
        )


def count_step(model, data):
    """Charges one step of a model that is not compiled with a DPOptimizer, in its graph."""
    if forward_noise_layers(model):
        replicas.refuse_shared_examples(tf.nest.flatten(data)[0])
    # Not before there is a batch: where the data have ended, the step fails and costs nothing.
    with tf.control_dependencies([t for t in tf.nest.flatten(data) if t is not None]):
        replicas.run_once_per_step(model.plain_charging.charge_step)


def mechanism_outside_fit(model):
    """What steps cost whose batches nobody knows."""
    layers = forward_noise_layers(model)
    if not layers:
        return accounting.charges.mechanisms.NoPrivacy(caveats.of_model(model))
    return _mechanism(model, layers, None, (), (), caveats.of_model(model))


def _forward_noise(model, x, y, kwargs, notes):
    sampling = preflight.sampling_of_data(x, kwargs)
    if sampling.max_records_per_unit is not None:
        raise PrivacyError(
            "Forward noise releases a noisy copy of every record of a batch, and each copy "
            f"costs: a person would cost as much as {sampling.max_records_per_unit} records, "
            "which tfdp cannot account for. Sample records (leave `privacy_ids` out), or train "
            "with a DPOptimizer."
        )
    checks.check_data(model.distribute_strategy, x, sampling)
    notes |= Notes(not_covered=(caveats.TRAINING_METRICS,)) | preflight.notes_of_data(model, x)
    preflight.refuse_other_data(
        model.privacy_charges(), sampling.num_examples, model.privacy_unit, sampling.period
    )
    batch = _batch(x, y, kwargs.get("sample_weight"))
    data = keras.utils.unpack_x_y_sample_weight(batch)
    paths = find_data_paths(model, *data, batch_size=_batch_size(model, x))
    _refuse_features_as_labels(batch)
    notes |= notes_of_noise(model, paths.passes, data[0])
    # A step that was compiled when other variables were trainable would still change those.
    model.train_function = None
    notes |= _of_weights(model)
    return _mechanism(model, paths.noise, sampling, paths.variables, paths.bypasses, notes)


def _batch(x, y, sample_weight):
    """A few records, for their shapes and for checks of values."""
    if isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        return tf.nest.map_structure(lambda t: t[:4], first_batch(x))
    batch = (x, y) if sample_weight is None else (x, y, sample_weight)
    return tf.nest.map_structure(lambda t: tf.convert_to_tensor(t[:4]), batch)


def _batch_size(model, x):
    """Rows that a replica gets of every batch; None if that is not known, or not the same."""
    spec = getattr(x, "element_spec", None)  # of arrays, the last batch is smaller
    shape = getattr(tf.nest.flatten(spec)[0], "shape", None) if spec is not None else None
    size = None if shape is None else tf.TensorShape(shape)[0]
    count = model.distribute_strategy.num_replicas_in_sync
    return None if size is None or size % count else size // count


def _refuse_features_as_labels(batch):
    """Labels are not protected: the features must not be among them."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    for feature in tf.nest.flatten(x):
        for label in tf.nest.flatten(y):
            same = feature.dtype == label.dtype and feature.shape == label.shape
            # A single column may equal the labels by chance; a vector does not.
            if same and len(feature.shape) > 1 and bool(tf.reduce_all(tf.equal(feature, label))):
                raise PrivacyError(
                    "The labels are the features themselves (an autoencoder). Forward noise does "
                    "not protect labels: train with a DPOptimizer instead."
                )


def _mechanism(model, layers, sampling, unprotected, bypasses, notes):
    sigmas = [layer.noise_multiplier for layer in layers]
    # Several noisy views of one record compose to one Gaussian: the inverse variances add up.
    private = bool(sigmas) and min(sigmas) > 0
    precision = math.fsum(s**-2 for s in sigmas) if private else math.inf
    if any(layer.seed is not None for layer in layers):
        notes |= Notes(
            remarks=(
                "The forward noise was drawn from a fixed seed: anybody who knows the seed can "
                "remove the noise. This run is a test, not a private one.",
            )
        )
    return accounting.charges.mechanisms.ForwardNoise(
        noise_multiplier=precision**-0.5 if private else 0.0,
        adjacency=accounting.events.adjacency.strongest(
            ["zero_out", *(layer.adjacency for layer in layers)]
        ),
        sampling=sampling,
        num_examples=sampling.num_examples if sampling else None,
        unit=model.privacy_unit,
        layers=tuple(
            {
                "name": layer.name,
                "clip_norm": layer.clip_norm,
                "noise_multiplier": layer.noise_multiplier,
                "gradient": layer.gradient,
            }
            for layer in layers
        ),
        unprotected=tuple(unprotected),
        bypasses=tuple(bypasses),
        notes=notes,
    )
