"""What a DPOptimizer accepts: each check names the argument, the value, and what to do."""

import math

import keras

from tfdp import accounting
from tfdp._validate import count, is_number, one_of, positive
from tfdp.argument_names import called, explains
from tfdp.clipping.sums.factors import CLIPPING

_BUDGET = "Pass `budget=tfdp.PrivacyBudget(epsilon=..., delta=...)`."
_MICROBATCHES = "Each example is clipped separately. To save memory, pass `microbatch_size`."
_SCHEDULE = "Pass `steps`, or nothing: with a budget, `fit` sets them."
_INNER = "Give it to the wrapped optimizer, as in `DPOptimizer(keras.optimizers.Adam({}=...))`."
_OF_KERAS = (
    "learning_rate", "beta_1", "beta_2", "momentum", "nesterov", "weight_decay", "clipnorm",
    "clipvalue", "global_clipnorm", "use_ema", "ema_momentum", "amsgrad",
)  # fmt: skip
#: For arguments of Keras' optimizers, TF Privacy, Opacus and JAX-Privacy.
explained = explains(
    {name: _INNER.format(name) for name in _OF_KERAS}
    | dict.fromkeys(("l2_norm_clip", "max_grad_norm", "clipping_norm"), called("clip_norm"))
    | dict.fromkeys(("target_epsilon", "target_delta", "epsilon", "delta"), _BUDGET)
    | dict.fromkeys(("num_microbatches", "gradient_accumulation_steps"), _MICROBATCHES)
    | dict.fromkeys(("train_steps", "epochs"), _SCHEDULE)
    | {"batch_size": called("expected_batch_size"), "train_size": called("num_examples")}
)


def check_optimizer(optimizer):
    """Refuses optimizers that change gradients before the noise, or add it more than once."""
    if hasattr(optimizer, "apply_clipped_sums"):
        raise ValueError(
            "Argument `optimizer` is already a DPOptimizer. Pass the optimizer that it wraps. "
            f"Received: optimizer={optimizer}"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "Argument `optimizer` scales the loss, which would change the clipping. Use the "
            "`mixed_bfloat16` policy, which needs no loss scale. Received: "
            f"optimizer={optimizer}"
        )
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            "Argument `optimizer` accumulates gradients, which would add noise in every "
            "micro-step. Use `microbatch_size` of the DPOptimizer instead. Received: "
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}"
        )
    if optimizer.loss_scale_factor:
        raise ValueError(
            "Argument `optimizer` scales the loss, which would change the clipping. Use the "
            "`mixed_bfloat16` policy, which needs no loss scale. Received: "
            f"loss_scale_factor={optimizer.loss_scale_factor}"
        )


def check_amount(budget, noise_multiplier, steps):
    """Checks what decides how much noise there is."""
    if (budget is None) == (noise_multiplier is None):
        raise ValueError(
            "Exactly one of the arguments `budget` and `noise_multiplier` must be given. "
            f"Received: budget={budget}, noise_multiplier={noise_multiplier}"
        )
    if budget is not None and not isinstance(budget, accounting.PrivacyBudget):
        raise ValueError(
            f"Argument `budget` must be a tfdp.PrivacyBudget. Received: budget={budget}"
        )
    if noise_multiplier is not None and not (
        is_number(noise_multiplier) and 0 <= noise_multiplier < float("inf")
    ):
        raise ValueError(
            "Argument `noise_multiplier` must be a finite number ≥ 0. "
            f"Received: noise_multiplier={noise_multiplier!r}"
        )
    if steps is not None and not _is_positive_integer(steps):
        raise ValueError(f"Argument `steps` must be a positive integer. Received: steps={steps!r}")


def check_data(num_examples, expected_batch_size, max_records_per_unit, num_records, period):
    """Checks what the data are said to be, and how they are drawn."""
    _positive_integer_or_none("num_examples", num_examples, "the number of training records")
    _positive_integer_or_none(
        "num_records", num_records, "the number of records, if each is sampled separately"
    )
    drawn_from = "num_examples" if num_records is None else "num_records"
    most = num_examples if num_records is None else num_records
    batch = expected_batch_size
    if batch is not None and not (is_number(batch) and 0 < batch <= (most or float("inf"))):
        raise ValueError(
            f"Argument `expected_batch_size` must lie in (0, {drawn_from}]. Received: "
            f"expected_batch_size={expected_batch_size!r}, {drawn_from}={most}"
        )
    if max_records_per_unit is not None:
        count("max_records_per_unit", max_records_per_unit)
    elif num_records is not None:
        raise ValueError(
            "Argument `num_records` applies if single records are sampled and the person is the "
            "unit, and needs `max_records_per_unit`. Pass the value that you gave to the sampler "
            f'with `sampling_unit="record"`. Received: num_records={num_records}, '
            "max_records_per_unit=None"
        )
    elif period is not None:
        raise ValueError(
            "Argument `period` needs `max_records_per_unit`: tfdp can check that periods are "
            "disjoint only if records have ids of persons. Pass the value that you gave to the "
            f"sampler. Received: period={period!r}, max_records_per_unit=None"
        )


def checked_layer_shares(clipping, layer_shares):
    """Shares of C² as floats; checks them, as far as they do not depend on the model."""
    one_of("clipping", clipping, CLIPPING)
    if layer_shares is None:
        return None
    if clipping != "per_layer":
        raise ValueError(
            'Argument `layer_shares` needs `clipping="per_layer"`; otherwise all layers are '
            f"clipped together. Received: layer_shares={layer_shares}, clipping={clipping!r}"
        )
    if not isinstance(layer_shares, dict) or not all(isinstance(n, str) for n in layer_shares):
        raise ValueError(
            "Argument `layer_shares` must be a dict from layer names to shares of C². Received: "
            f"layer_shares={layer_shares!r}"
        )
    shares = {n: positive(f"layer_shares[{n!r}]", share) for n, share in layer_shares.items()}
    if math.fsum(shares.values()) > 1:
        raise ValueError(
            "Argument `layer_shares` must have values that add up to at most 1; otherwise the "
            f"layers together could exceed `clip_norm`. Received: layer_shares={layer_shares}"
        )
    return shares


def check_clipping(clip_norm, microbatch_size, max_records_per_unit, num_records):
    """Checks the clip norm, and that no person is divided among micro-batches.

    Of single records (`num_records`) each is clipped by itself, in whichever micro-batch.
    """
    if not (is_number(clip_norm) and 0 < clip_norm < float("inf")):
        raise ValueError(
            f"Argument `clip_norm` must be a finite number > 0. Received: clip_norm={clip_norm!r}"
        )
    _positive_integer_or_none("microbatch_size", microbatch_size)
    together = max_records_per_unit if num_records is None else None
    if microbatch_size is not None and microbatch_size % (together or 1):
        raise ValueError(
            "Argument `microbatch_size` must be a multiple of `max_records_per_unit`, because "
            "the records of a person are clipped together, in one micro-batch. Received: "
            f"microbatch_size={microbatch_size}, max_records_per_unit={max_records_per_unit}"
        )


def plain_number(value):
    """An int, or else a float, or None: numbers of numpy would be lost on the way through JSON."""
    if value is None:
        return None
    return int(value) if value == int(value) else float(value)


def _positive_integer_or_none(name, value, meaning=None):
    if value is not None and not _is_positive_integer(value):
        what = f", {meaning}, or None" if meaning else " or None"
        raise ValueError(
            f"Argument `{name}` must be a positive integer{what}. Received: {name}={value!r}"
        )


def _is_positive_integer(value):
    return is_number(value) and value >= 1 and value == value // 1
