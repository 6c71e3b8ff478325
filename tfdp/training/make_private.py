"""Any Keras model, made private."""

from __future__ import annotations

import functools

import keras
import tensorflow as tf

from tfdp import accounting
from tfdp.argument_names import explains
from tfdp.clipping.plan.refusals import describe_tf_keras, is_tf_keras, refuse_named_layers
from tfdp.clipping.recording import input_structure
from tfdp.errors import PrivacyError
from tfdp.training.dp_model import DPModel

_IN_COMPILE = (
    "Pass the model alone, and `tfdp.optimizers.DPOptimizer(...)` to `compile` of what it returns."
)
_OF_OPACUS = (
    "module", "optimizer", "criterion", "data_loader", "noise_multiplier", "max_grad_norm",
    "target_epsilon", "target_delta", "epochs", "budget", "clip_norm",
)  # fmt: skip


@explains(dict.fromkeys(_OF_OPACUS, _IN_COMPILE))
def make_private(model: keras.Model, validate: bool = True) -> DPModel:
    """Wraps a Keras model so that a `DPOptimizer` can train it.

    The wrapper shares the model's layers and weights: after training, `model` itself holds the
    private weights.

    Args:
        model: any `keras.Model` that treats the examples of a batch independently.
        validate: whether to prove from the graph of each step that the model treats examples
            independently (`DPModel.validate_independence`). If False, the statement lists this as
            assumed.

    Returns:
        A `tfdp.models.DPModel`. The same model always gets the same wrapper, so that its ledger is
        kept.

    Raises:
        PrivacyError: for layers that are known to mix examples, layers that train past any
            optimizer, and models of tf_keras.
        ValueError: for anything that is not a Keras model.
    """
    if is_tf_keras(model):
        raise PrivacyError(f"Argument `model` is a {describe_tf_keras(model)}")
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Argument `model` must be a keras.Model. Received: model={model} "
            f"(of type {type(model)})"
        )
    if isinstance(model, DPModel):
        return model
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            f"Argument `model` has its own `train_step` ({type(model).__name__}), whose gradients "
            "tfdp cannot clip per example. Let `call` return what the losses need (for a VAE, "
            "also the divergence), and give `compile` a loss for each output. Or subclass "
            "`tfdp.models.DPModel`."
        )
    for name in ("compute_loss", "test_step", "predict_step", "compute_metrics", "compile"):
        if _is_own(model, name):
            one = ", and return one loss for each example, of shape (batch,)"
            raise ValueError(
                f"Argument `model` has its own `{name}` ({type(model).__name__}), which the "
                "wrapper would never call. Subclass `tfdp.models.DPModel`, and define it there"
                f"{one if name == 'compute_loss' else ''}."
            )
    refuse_named_layers(model)
    # One ledger for the weights, however often they are wrapped. Kept in the instance's
    # dictionary inside a plain object, where Keras neither tracks nor saves it.
    known = vars(model).get(_KEY)
    private = known.model if known else PrivateModel(model)
    vars(model)[_KEY] = _Wrapped(private)
    private.validate_independence = validate
    return private


def _is_own(model, name):
    """Whether a model has a method of its own in place of that of `keras.Model`."""
    if getattr(type(model), name) is getattr(keras.Model, name):
        return False
    # Models of keras_hub give `compile` defaults, which the wrapper's replace.
    owner = next(c for c in type(model).__mro__ if name in vars(c))
    return name != "compile" or owner.__module__.split(".")[0] != "keras_hub"


_KEY = "_tfdp_private_model"


class _Wrapped:
    def __init__(self, model):
        self.model = model


@keras.saving.register_keras_serializable(package="tfdp")
class PrivateModel(DPModel):
    """The `DPModel` around a model; made by `make_private`.

    Args:
        model: the wrapped `keras.Model`, also available as `.model`.
    """

    def __init__(self, model: keras.Model, name: str | None = None, **kwargs):
        super().__init__(name=name or f"private_{model.name}", **kwargs)
        self.model = model
        self.privacy_assumptions = []
        steps = _StepsWithoutPrivacy(model, self.charge_history)
        if steps.public:
            self.privacy_assumptions.append(
                f"the {steps.public} steps that {model.name!r} was trained before `make_private` "
                "used public data"
            )
        if model.built:
            shapes = _input_shapes(model)
            if shapes is None:
                self.built = True
            else:
                self.build(shapes)  # remembered by Keras, for who exports the model

    def build(self, input_shape):
        # One without a `build` of its own is built by its first call; here Keras would warn.
        if not self.model.built and type(self.model).build is not keras.layers.Layer.build:
            self.model.build(input_shape)

    def call(self, inputs, training=None, mask=None):
        # Keras gives a nesting of None where inputs are nested and none has a mask.
        masked = any(m is not None for m in keras.tree.flatten(mask))
        kwargs = {"mask": mask} if masked else {}
        return self.model(inputs, training=training, **kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if type(self.model).compute_loss is not keras.Model.compute_loss:
            raise ValueError(
                f"Model {self.model.name!r} has its own `compute_loss`. Subclass "
                "`tfdp.models.DPModel` and return one loss for each example, of shape (batch,)."
            )
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def __getattr__(self, name):
        # Functional models name their inputs and outputs; Keras reads these where they exist.
        if name in ("input", "inputs", "output", "outputs", "output_names", "input_names"):
            return getattr(self.model, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def export(self, filepath, *args, **kwargs):
        """As `keras.Model.export`. `tfdp.serving.export` writes the statement beside it."""
        return self.model.export(filepath, *args, **kwargs)

    def get_layer(self, name=None, index=None):
        return self.model.get_layer(name, index)

    def get_config(self):
        return {"model": keras.saving.serialize_keras_object(self.model), "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        config["model"] = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return cls(**config)


def _input_shapes(model):
    """The shapes that a model was built for, in the structure of its inputs; None if unknown."""
    if getattr(model, "inputs", None):
        return tf.nest.map_structure(lambda t: tuple(t.shape), input_structure(model))
    return (model.get_build_config() or {}).get("input_shape")


class _StepsWithoutPrivacy:
    """Counts the steps of plain optimizers that the wrapped model is compiled with.

    Attributes:
        run: their run in the history.
        public: steps before the model was made private, which are taken to have used public data.
    """

    def __init__(self, model, history):
        self._model = model
        self._history = history
        self.run = history.start(accounting.charges.mechanisms.NoPrivacy())
        self.public = self._steps()
        self._counted = -self.public  # by optimizers that were replaced since
        self._watch_compile(model.compile)
        history.attach(self)

    def flush(self):
        """Writes the steps into the history."""
        steps = self._counted + self._steps()
        if steps > 0:
            self._history.count(self.run, steps)

    def _steps(self):
        optimizer = getattr(self._model, "optimizer", None)
        return int(optimizer.iterations) if getattr(optimizer, "built", False) else 0

    def _watch_compile(self, compile):
        @functools.wraps(compile)
        def counting(*args, **kwargs):
            self._counted += self._steps()
            try:
                return compile(*args, **kwargs)
            finally:
                self._counted -= self._steps()  # of an optimizer that was used before

        # Past Keras' tracking of attributes.
        vars(self._model)["compile"] = counting
