"""Training with any Keras optimizer: what protects the data then, and how it is charged."""

import math

import keras
import tensorflow as tf

from tfdp.accounting.adjacency import strongest
from tfdp.data.provenance import is_as_sampled
from tfdp.data.releases import is_release, released_by
from tfdp.distribution import checks
from tfdp.errors import PrivacyError
from tfdp.runtime import replicas
from tfdp.training import preflight as fitting
from tfdp.training.data_paths import find_data_paths, forward_noise_layers
from tfdp.training.noise_inputs import validate_noise_inputs
from tfdp.training.step_charging import NO_PRIVACY
from tfdp.training.watched_examples import first_batch


def begin_fit(model, x, y, kwargs):
    """Starts a run of a model that is not compiled with a DPOptimizer, charged truthfully.

    - Data of a release (`tfdp.data.release_once`, `release_mixtures`) are private already: the
      release is charged, once, and the steps cost nothing.
    - With `DPForwardNoise` layers, the steps release noisy copies of the records of their batches.
    - Anything else is training without privacy.

    Args:
        model: a compiled `DPModel`.
        x, y, kwargs: as given to `fit`.

    Raises:
        PrivacyError: for forward noise on data of unknown origin, or in a model whose
            representations mix examples.
    """
    model._unite_records()
    model._charge_releases()
    releases = released_by(x)
    if releases is not None:
        for release in releases:
            model._record.charge(release)
        if not is_release(x):
            model._asserted.add("what was done to released data used no other data")
        settings = {"kind": "released data"}
    elif forward_noise_layers(model):
        settings = _forward_noise(model, x, y, kwargs)
    else:
        settings = NO_PRIVACY
    model._unite_records()  # again: the checks have built the model
    model._step_charging.begin(settings)


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
            "A DPOptimizer adds noise to every trainable variable, and no gradient reaches those "
            'below a DPForwardNoise layer: freeze them, or use gradient="propagate" (the '
            f"DPOptimizer covers them then). Received: trainable variables {list(below)}"
        )


def count_step(model, data):
    """Charges one step of a model that is not compiled with a DPOptimizer, in its graph."""
    if forward_noise_layers(model):
        replicas.refuse_shared_examples(tf.nest.flatten(data)[0])
    replicas.once(model._step_charging.count_step)


def settings_outside_fit(model):
    """How steps are charged whose batches nobody knows."""
    layers = forward_noise_layers(model)
    if not layers:
        return NO_PRIVACY
    return _settings(layers, None, (), ())


def _forward_noise(model, x, y, kwargs):
    sampling = fitting.sampling_of_data(x, kwargs)
    checks.check_data(model.distribute_strategy, x, sampling)
    if isinstance(x, tf.data.Dataset) and not is_as_sampled(x):
        model._asserted.add("what `map` did after sampling treats each row by itself")
    batch = _batch(x, y, kwargs.get("sample_weight"))
    paths = find_data_paths(model, *keras.utils.unpack_x_y_sample_weight(batch))
    _refuse_features_as_labels(batch)
    validate_noise_inputs(model, keras.utils.unpack_x_y_sample_weight(batch)[0])
    # A step that was compiled when other variables were trainable would still change those.
    model.train_function = None
    return _settings(paths.noise, sampling, paths.variables, paths.bypasses)


def _batch(x, y, sample_weight):
    """A few records, for their shapes and for the check that examples do not mix."""
    if isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        return tf.nest.map_structure(lambda t: t[:4], first_batch(x))
    batch = (x, y) if sample_weight is None else (x, y, sample_weight)
    return tf.nest.map_structure(lambda t: tf.convert_to_tensor(t[:4]), batch)


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


def _settings(layers, sampling, unprotected, bypasses):
    sigmas = [layer.noise_multiplier for layer in layers]
    # Several noisy views of one record compose to one Gaussian: the inverse variances add up.
    private = bool(sigmas) and min(sigmas) > 0
    precision = math.fsum(s**-2 for s in sigmas) if private else math.inf
    return {
        "kind": "forward noise",
        "noise_multiplier": precision**-0.5 if private else 0.0,
        "adjacency": strongest(["zero_out", *(layer.adjacency for layer in layers)]),
        "layers": [
            {
                "name": layer.name,
                "clip_norm": layer.clip_norm,
                "noise_multiplier": layer.noise_multiplier,
                "gradient": layer.gradient,
            }
            for layer in layers
        ],
        "seeded": any(layer.seed is not None for layer in layers),
        "sampling": sampling.to_dict() if sampling else None,
        "unprotected": list(unprotected),
        "bypasses": list(bypasses),
    }
