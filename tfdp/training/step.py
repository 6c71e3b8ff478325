"""A private step from the batch to the sums that the optimizer noises."""

import contextlib

import tensorflow as tf

from tfdp._compat.keras import means_of_losses
from tfdp.clipping.engine import backward, clipped_sums
from tfdp.clipping.losses import example_mask_of
from tfdp.clipping.plan.counts import OfOneStep
from tfdp.clipping.plan.side_effects import no_writes
from tfdp.clipping.recording import trained_variables
from tfdp.clipping.sums.surviving_rows import SurvivorSums
from tfdp.optimizers.gradient_scales import scales_of
from tfdp.runtime.wide_sums import dense, wide
from tfdp.training.checks import independence, preflight
from tfdp.training.present_rows import MetricsOfPresentRows, has_metrics
from tfdp.training.row_selection import restrict_to_survivors, vector_rows


def sums_of_batch(model, x, y, sample_weight, survivors=None):
    """Forward, backward, norms, factors and clipped sums of one batch; updates the metrics.

    Args:
        model: a `DPModel` compiled with a `DPOptimizer`.
        x, y, sample_weight: the examples; weight 0 is padding.
        survivors: from `preselect_rows`.

    Returns:
        For each trainable variable what `DPOptimizer.apply_clipped_sums` takes.
    """
    example_mask = example_mask_of(sample_weight, preflight.batch_size_of(x))
    # Once the budget is spent, or in another model's run, every example is absent: what remains
    # is noise alone.
    example_mask = example_mask & model.optimizer.charging.active(model)

    traced = independence.Step(model, x, y, sample_weight)
    if not traced.is_known:
        independence.examine_on_paper(model, x, y, sample_weight)
    result = backward(
        model, model.clipping_plan(x), x, traced.losses_of, example_mask,
        model.optimizer.rows_per_unit, check=traced.examine if traced.is_known else None,
    )  # fmt: skip
    result = restrict_to_survivors(model, result, survivors)
    optimizer = model.optimizer
    sums = clipped_sums(
        model, result, optimizer.clip_norm, optimizer.clipping, optimizer.layer_shares,
        scales_of(trained_variables(model), optimizer.gradient_scales),
    )  # fmt: skip
    _update_metrics(model, x, y, sample_weight, result)
    return sums


def _count_present_only(model, example_mask):
    """Takes padding, which Keras counts, out of the mean loss of each output."""
    absent = tf.reduce_sum(tf.cast(~example_mask, tf.float32))
    for mean in means_of_losses(model):  # each weighted by the rows of the batch
        mean.count.assign_sub(tf.cast(absent, mean.count.dtype))


def sums_of_microbatches(model, x, y, sample_weight, survivors=None):
    """The same over micro-batches, one after another, noise added by nobody yet.

    Args:
        model, x, y, sample_weight: as for `sums_of_batch`.
        survivors: from `preselect_rows`; every micro-batch is restricted to these same rows.
    """
    size = model.optimizer.microbatch_size
    data = tf.nest.map_structure(
        lambda t: t if t is None else _in_microbatches(t, size),
        (x, y, preflight.weights_or_ones(x, sample_weight)),
    )
    variables = trained_variables(model)
    plan = model.clipping_plan(x)
    unused = {id(v) for v in plan.unused}
    pieces = [i for i, v in enumerate(variables) if id(v) not in unused]
    rows = {**(survivors or {}), **vector_rows(model)}
    advances = OfOneStep(plan.advances)

    def zeros(i):
        shape = variables[i].shape
        return wide(tf.zeros([tf.size(rows[i]), *shape[1:]] if i in rows else shape, tf.float32))

    def body(i_batch, totals):
        advances.begin_again()
        part = tf.nest.map_structure(lambda t: t if t is None else t[i_batch], data)
        sums = sums_of_batch(model, *part, survivors)
        return i_batch + 1, [
            t + tf.cast(dense(sums[i].values if i in rows else sums[i]), t.dtype)
            for i, t in zip(pieces, totals, strict=True)
        ]

    flat_weights = tf.nest.map_structure(
        lambda t: t if t is None else tf.reshape(t, [tf.shape(t)[0] * size, -1]), data[2]
    )
    example_mask = example_mask_of(flat_weights, tf.shape(tf.nest.flatten(flat_weights)[0])[0])
    last = tf.reduce_max(tf.where(example_mask, tf.range(1, tf.size(example_mask) + 1), 0))
    _, totals = tf.while_loop(
        # Padding stands at the end of a batch: whole micro-batches of it are skipped, but one.
        lambda i_batch, _: (i_batch == 0) | (i_batch * size < last),
        body,
        (tf.constant(0), [zeros(i) for i in pieces]),
        parallel_iterations=1,
    )
    advances.end()
    sums = [None] * len(variables)
    for i, total in zip(pieces, totals, strict=True):
        total = tf.cast(total, tf.float32)
        sums[i] = SurvivorSums(rows[i], total) if i in rows else total
    return sums


def regularization(variables):
    """Gradients of the weight regularizers: they depend on no example and carry no noise."""
    gradients = []
    for variable in variables:
        if variable.regularizer is None:
            gradients.append(None)
            continue
        with tf.GradientTape() as tape:
            value = tf.convert_to_tensor(variable.value)
            tape.watch(value)
            penalty = variable.regularizer(value)
        gradients.append(tape.gradient(penalty, value))
    return gradients


def _update_metrics(model, x, y, sample_weight, result):
    weights = tf.cast(result.example_mask, tf.float32)
    _count_present_only(model, result.example_mask)
    penalties = tf.add_n(model.losses) if model.losses else 0.0  # they depend on no example
    for metric in model.metrics:
        if metric.name == "loss":
            metric.update_state(result.losses + penalties, sample_weight=weights)
    own = type(model).compute_metrics is not MetricsOfPresentRows.compute_metrics
    with contextlib.ExitStack() as stack:
        if own or has_metrics(model):
            held = [*model.weights, *model.optimizer.variables]
            stack.enter_context(no_writes(held, f"A metric of model {model.name!r}"))
        model.compute_metrics(x, y, result.outputs, sample_weight=sample_weight)


def _in_microbatches(tensor, size):
    """(B, ...) to (k, size, ...); what is missing is filled with zeros, so its weight is zero."""
    missing = -tf.shape(tensor)[0] % size
    rank = len(tensor.shape)
    padded = tf.pad(tensor, tf.concat([[[0, missing]], tf.zeros([rank - 1, 2], tf.int32)], 0))
    count = -1 if tensor.shape[0] is None else -(-tensor.shape[0] // size)
    rest = [d if d is not None else tf.shape(tensor)[i + 1] for i, d in
            enumerate(tensor.shape[1:])]  # fmt: skip
    return tf.reshape(padded, [count, size, *rest])
