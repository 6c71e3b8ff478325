"""Settings of the process by which float32 numbers would be computed with fewer bits."""

import os

import tensorflow as tf

from tfdp.errors import PrivacyError
from tfdp.runtime.strategies import traces_once

# They let oneDNN, which multiplies on CPUs, keep only some bits of float32 factors.
_ONEDNN_MODES = (
    "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "TF_SET_ONEDNN_FPMATH_MODE"
)  # fmt: skip


def refuse_fewer_bits(strategy):
    """Refuses what would make gradient norms, clip factors and clipped sums too inexact.

    Args:
        strategy: the model's `tf.distribute.Strategy`.

    Raises:
        PrivacyError: for TensorFloat-32, a graph rewrite into 16 bits, or a mode of oneDNN.
    """
    _refuse_tensor_float_32(strategy)
    _refuse_rewrites_to_16_bits()


def _refuse_tensor_float_32(strategy):
    """TensorFloat-32 keeps 10 bits of a factor: norms would be off by 1e-3. TPUs keep 8 bits."""
    allowed = tf.config.experimental.tensor_float_32_execution_enabled()
    devices = {d.device_type for d in tf.config.list_physical_devices()}
    if allowed and (devices & {"GPU", "TPU"} or traces_once(strategy)):
        raise PrivacyError(
            "With TensorFloat-32 (on a GPU) or bfloat16 (on a TPU), gradient norms would be too "
            "inexact for clipping. Call "
            "`tf.config.experimental.enable_tensor_float_32_execution(False)` first."
        )


def _refuse_rewrites_to_16_bits():
    """Norms, clip factors and sums would be rounded as well, to 8 or 11 bits."""
    options = tf.config.optimizer.get_experimental_options()
    for name, is_set in options.items():
        if name.startswith("auto_mixed_precision") and is_set:
            raise PrivacyError(
                f"TensorFlow's graph optimizer has the option {name!r} set to True. It computes "
                "float32 operations of a step in 16 bits, so gradient norms and clipped sums would "
                "be too inexact for clipping. Call "
                f"`tf.config.optimizer.set_experimental_options({{{name!r}: False}})` first. For "
                "layers in 16 bits use `keras.config.set_dtype_policy('mixed_bfloat16')`."
            )
    for name in _ONEDNN_MODES:
        mode = os.environ.get(name, "")
        if mode.strip().upper() not in ("", "STRICT"):
            raise PrivacyError(
                f"The environment variable {name} lets oneDNN multiply float32 numbers with fewer "
                "bits, so gradient norms and clipped sums would be too inexact for clipping. Unset "
                f"it, or set it to STRICT, before the process starts. Received: {name}={mode}"
            )
