"""Writing a SavedModel that plain TensorFlow can load, beside the privacy statement it needs."""

from __future__ import annotations

import json
import math
import os
import pathlib
import warnings

import keras

from tfdp._compat.keras import all_layers, export_signature
from tfdp._compat.saved_model import one_trace_per_endpoint
from tfdp.experimental.tpu import resident_models
from tfdp.layers import PrivateAttention
from tfdp.models import DPModel
from tfdp.models.endpoint import Endpoint
from tfdp.optimizers import DPOptimizer
from tfdp.serving.inference_releases import inference_releases
from tfdp.training.statements import is_protected

STATEMENT = "privacy_statement.json"


def export(
    model: keras.Model, path: str | os.PathLike, k: int | None = None, delta: float | None = None
) -> pathlib.Path:
    """Writes `path/` as a SavedModel, with `privacy_statement.json` inside.

    Load the SavedModel by `tf.saved_model.load(path)`, without tfdp. Its `serve` signature (also
    "serving_default") computes in inference mode:

    - for a recommender (`TransitionRecommender`, `DPFormer`, `SequenceBaseline`): from raw
      histories to the `k` best next `items` (B, k) and their `scores`. Histories are an int (B, any
      length) array `sequences` of item ids, oldest first; 0 means no item (before, after or between
      items);
    - for a `TwoTower`: from features of users to the same; the signatures "user_vectors" and
      "item_vectors" are the towers;
    - for a `TextClassifier`: from a string array `sentences` (B,) to `labels` (B,) and
      `probabilities` (B, classes); loading it needs `import tensorflow_text`;
    - for any other model: from its inputs to its outputs, with the signature that
      `keras.Model.export` writes.

    It writes no training state: no optimizer, no noise, no ledger beyond the statement.
    `PrivateAttention` layers release something at every call. The file states this separately from
    training, under "releases_at_inference": it protects the inputs of the calls, and costs per
    call. There, each layer has its "calls_in_one_request", and "release_of_one_request" states
    their total. A call on several windows of one input, folded into the batch axis, counts as
    several calls.

    It warns about a model with a `DPOptimizer` or forward noise that has no finite ε.

    Args:
        model: a built `DPModel`, or a Keras model with `PrivateAttention` layers.
        path: folder to write; it must not exist or must be a folder.
        k: number of items returned, for recommenders; default: 10, or all if there are fewer.
        delta: δ of the statement; defaults to the optimizer's.

    Returns:
        The path, as a `pathlib.Path`.

    Raises:
        ValueError: if the model is not a `DPModel`, is not built, or k is out of range.
        PrivacyError: if it cannot be told how many windows of one input a `PrivateAttention` layer
            is called on, or a call draws noise several times; while another thread trains the
            model.
        RuntimeError: if a TPU embedding holds tables of the model.
    """
    releasing = [layer for layer in all_layers(model) if isinstance(layer, PrivateAttention)]
    if not isinstance(model, DPModel) and not releasing:
        raise ValueError(
            "Argument `model` must be a tfdp.models.DPModel or contain PrivateAttention layers, "
            "because other models have no privacy statement. Export them with `model.export`. "
            f"Received: model={model}"
        )
    if not model.built:
        raise ValueError(
            "Argument `model` is not built, so there is nothing to export. Train it first. "
            f"Received: model={model.name!r}"
        )
    resident_models.refuse_export(model)
    if isinstance(model, DPModel):
        model.charge_history.refuse_other_thread()
    statement = _training_statement(model, delta)
    endpoint = model.serving_endpoint(k) if isinstance(model, DPModel) else None
    endpoint = endpoint or _of_keras(getattr(model, "model", model))
    if releasing:
        statement |= inference_releases(releasing, endpoint)
    path = pathlib.Path(path)
    # An export that fails half way leaves no statement: certainly not that of another model.
    (path / STATEMENT).unlink(missing_ok=True)
    with one_trace_per_endpoint():
        _write(endpoint, path)
    written = path / f"{STATEMENT}.part"
    written.write_text(json.dumps(statement, indent=2, allow_nan=False))
    written.replace(path / STATEMENT)
    return path


def _of_keras(model):
    """The endpoint of a model that has none of its own."""

    def serve(*args):
        # `args` names the signature's inputs, as Keras does. `keras.Model.export` leaves
        # `training` to the layers, and for some it is True by default.
        return model(*args, training=False)

    return Endpoint(serve, export_signature(model), tracked=[model])


def _write(endpoint, path):
    archive = keras.export.ExportArchive()
    for one in endpoint.tracked:
        archive.track(one)
    archive.add_endpoint("serve", endpoint.function, input_signature=endpoint.signature)
    for name, (function, signature) in endpoint.others.items():
        archive.add_endpoint(name, function, input_signature=signature)
    archive.write_out(str(path), verbose=False)


def _training_statement(model, delta):
    if isinstance(getattr(model, "optimizer", None), DPOptimizer) or is_protected(model):
        statement = model.privacy_statement(delta)
        if math.isinf(statement.epsilon):
            reasons = " ".join(statement.unstated) or "Its training is not private."
            warnings.warn(
                f"The exported model has no finite epsilon. {reasons} `{STATEMENT}` in the export "
                "says so too; `print(model.privacy_statement())` shows all of it.",
                stacklevel=3,
            )
        return statement.to_dict()
    return {"epsilon": "infinity", "remarks": ["The model was trained without privacy."]}
