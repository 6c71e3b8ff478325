"""Noise on the representation of each example, in training only."""

import keras
import tensorflow as tf

from tfdp import accounting
from tfdp._validate import not_negative, one_of, positive
from tfdp.fixed_settings import FixedSettings
from tfdp.noise import Grid, ReplicaNoiseSource

GRADIENTS = ("stop", "propagate")
_ANY_NUMBER = 1 << 40  # stands for the coordinates of an example where an axis has no fixed size
#: Attribute of tensors that a layer clipped and added noise to.
NOISED = "_tfdp_noised"


@keras.saving.register_keras_serializable(package="tfdp")
class DPForwardNoise(FixedSettings, keras.layers.Layer):
    """Clips each example's representation and adds Gaussian noise to it, in training only.

    For a representation h of one example, whatever its axes,

        y = h · min(1, clip_norm / ‖h‖₂) + N(0, (noise_multiplier·clip_norm)² I)

    so that all later layers see only noisy vectors. In a `tfdp.models.DPModel` (or
    `tfdp.make_private(model)`) compiled with any Keras optimizer, the layer's releases are charged
    to the model's ledger. In any other model they are not counted, and there is no guarantee.

    Formal guarantees: in a `DPModel`, every step releases one noisy vector for each example of its
    batch, and each copy of a record costs. With `tfdp.data.shuffled_epochs` there is exactly one
    copy for each epoch: the cost is that of E Gaussian mechanisms, of noise multiplier
    `noise_multiplier` if a record's features are blanked out ("zero_out"), and of half of it if
    they are replaced by others ("replace_one"). Sampling does not amplify this, because everybody
    sees who is in a batch. Labels and sample weights are not covered. With `gradient="propagate"`
    the layers below are trained on raw data: no ε holds for the whole model, and the statement
    names their variables.

    | input | in training | in inference |
    |---|---|---|
    | norm ≤ C | noise added | unchanged |
    | norm > C | scaled to C, noise added | unchanged |
    | not finite | only noise | unchanged |
    | masked positions | count as zeros; no mask is passed on | no mask is passed on |

    Args:
        clip_norm: C, the largest l2 norm of one example's representation.
        noise_multiplier: the noise's standard deviation as a multiple of `clip_norm`; see
            `tfdp.accounting.calibrate_forward_noise`.
        gradient: "stop" (the layers below receive no gradient) or "propagate" (the paper's
            version).
        adjacency: the adjacency of the statement's ε: "zero_out" or "replace_one".
        seed: integer for tests only; `None` draws from the operating system's entropy.

    Call arguments:
        inputs: float tensor (batch, k), or (batch, ..., k), each example clipped as a whole.
        training: whether to clip and add noise.

    Returns:
        A tensor of the same shape. In inference its values are those of the input.

    Raises:
        ValueError: if an argument is out of range, or an input has only the batch axis.

    Source: "DP-FP: Differentially Private Forward Propagation for Large Models", equations 8 and
        9; MATH.md section 5.

    Example:

    >>> layer = DPForwardNoise(clip_norm=1.0, noise_multiplier=1.41)
    >>> layer(tf.ones([2, 3]), training=False)[0, 0].numpy()
    1.0
    """

    fixed = ("clip_norm", "noise_multiplier", "gradient", "adjacency", "seed")

    def __init__(
        self,
        clip_norm: float,
        noise_multiplier: float,
        gradient: str = "stop",
        adjacency: str = "zero_out",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        hint = "find one with `tfdp.accounting.calibrate_forward_noise(budget, copies)`"
        self.clip_norm = positive("clip_norm", clip_norm)
        self.noise_multiplier = not_negative("noise_multiplier", noise_multiplier, hint)
        one_of("gradient", gradient, GRADIENTS)
        possible = accounting.forward_noise.FORWARD_ADJACENCIES
        if adjacency not in possible:
            raise ValueError(
                f"Argument `adjacency` must be one of {possible}: adding or removing a record "
                "changes the number of noisy vectors, which everybody sees. Received: "
                f"adjacency={adjacency!r}"
            )
        self.gradient = gradient
        self.adjacency = adjacency
        self.seed = seed
        self.supports_masking = True  # taken into account in `call`, and not handed on
        self._noise = ReplicaNoiseSource(seed)

    def call(self, inputs, training=None, mask=None):
        if not training:
            return tf.identity(inputs)  # a new tensor: Keras hangs the mask on the old one
        if len(inputs.shape) < 2:
            raise ValueError(
                f"Layer {self.name!r} takes inputs of shape (batch, ..., k), one representation "
                f"for each example. Received: shape {inputs.shape}"
            )
        clipped = clip_examples(inputs, self.clip_norm, mask)
        size = clipped.shape[1:].num_elements() or _ANY_NUMBER
        grid = Grid(self.noise_multiplier * self.clip_norm, self.clip_norm, size)
        # The gradient is that of the clipping: noise and grid depend on nothing.
        noisy = tf.grad_pass_through(lambda h: self._noise.release(h, grid))(clipped)
        if self.gradient == "stop":
            noisy = tf.stop_gradient(noisy)
        noisy = tf.cast(noisy, self.compute_dtype)
        setattr(noisy, NOISED, True)
        return noisy

    def compute_mask(self, inputs, previous_mask=None):
        return None  # computed from the raw input: the length of a text is private, too

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return super().get_config() | {name: getattr(self, name) for name in self.fixed}


def clip_examples(inputs, clip_norm, mask=None):
    """Scales each example, over all of its axes together, to an l2 norm of at most `clip_norm`.

    Formal guarantees: no example's norm exceeds clip_norm·(1 + 1e-6), whatever the input: an
    example with a value that is not finite becomes zero.

    Args:
        inputs: float tensor (batch, ...).
        clip_norm: C.
        mask: optional bool tensor of the leading axes, False where positions count as zero.

    Returns:
        float32 tensor of the same shape.
    """
    values = tf.cast(inputs, tf.float64)  # squares of float32 values cannot overflow there
    if mask is not None:
        missing = len(values.shape) - len(mask.shape)
        mask = tf.reshape(mask, tf.concat([tf.shape(mask), [1] * missing], 0))
        values = tf.where(mask, values, tf.zeros_like(values))
    axes = list(range(1, len(values.shape)))
    finite = tf.reduce_all(tf.math.is_finite(values), axis=axes, keepdims=True)
    # Selected, not multiplied: 0·NaN is NaN.
    values = tf.where(finite, values, tf.zeros_like(values))
    squared = tf.reduce_sum(values * values, axis=axes, keepdims=True)
    # The constant keeps the root's gradient finite at zero; it changes no norm by 1e-6.
    norm = tf.sqrt(tf.maximum(squared, 1e-300))
    factor = tf.minimum(tf.constant(1.0, tf.float64), clip_norm / norm)
    return tf.cast(values * factor, tf.float32)
