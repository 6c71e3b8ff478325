"""One step of private training, from clipped sums to the wrapped optimizers."""

import tensorflow as tf

from tfdp.clipping.sums.surviving_rows import SurvivorSums, table_name
from tfdp.errors import PrivacyError
from tfdp.noise import Grid, sum_rounding
from tfdp.optimizers.fused_adam import one_operation
from tfdp.optimizers.gradient_scales import scales_of
from tfdp.optimizers.rows.row_optimizer import DistinctRows
from tfdp.optimizers.sparse_training import release_rows
from tfdp.runtime import replicas
from tfdp.runtime.external_table import VectorTable, is_external
from tfdp.selection import NO_ROW


def run(optimizer, sums, variables, regularization):
    """Sums over the replicas, a charge, noise, divisions, and the updates.

    Args:
        optimizer: a `DPOptimizer`.
        sums, variables, regularization: as `DPOptimizer.apply_clipped_sums`.

    Returns:
        Scalar float32: the scalars of sparse tables that received noise, |S|·d.
    """
    sums = _over_replicas(sums)
    tables = [i for i, s in enumerate(sums) if isinstance(s, SurvivorSums)]
    dense = [i for i, s in enumerate(sums) if s is not None and i not in tables]
    coordinates = sum(_size(variable.shape) for variable in variables)
    means = replicas.run_once_on_sums(
        lambda totals: charged_and_noised(
            optimizer, totals, [(variables[i], sums[i].rows) for i in tables], coordinates
        ),
        [sums[i].values for i in tables] + [sums[i] for i in dense],
    )
    scales = scales_of(variables, optimizer.gradient_scales)
    if scales is not None:
        means = [mean / scales[i] for i, mean in zip(tables + dense, means, strict=True)]
    rows = [(variables[i], sums[i].rows, mean) for i, mean in zip(tables, means, strict=False)]
    found = dict(zip(dense, means[len(tables) :], strict=True))
    vectors = [update for update in rows if isinstance(update[0], VectorTable)]
    size = _update_rows(optimizer, [u for u in rows if not isinstance(u[0], VectorTable)])
    found = _with_towers(optimizer, found, variables, vectors)
    _update_dense(
        optimizer,
        [(variables[i], found[i]) for i in sorted(found)],
        [regularization[i] for i in sorted(found)],
    )
    return size


def _with_towers(optimizer, means, variables, vectors):
    """Noisy means, and what follows for the weights of towers from noisy means at their vectors.

    Args:
        optimizer: a `DPOptimizer`.
        means: dict of place among the variables to noisy mean.
        variables: all trained variables.
        vectors: list of (`VectorTable`, its rows, their noisy means).
    """
    place = {id(variable): i for i, variable in enumerate(variables)}
    found = {i: [mean] for i, mean in means.items()}
    for table, rows, values in vectors:
        for variable, gradient in table.pull_back(rows, values):
            if optimizer.selection is not None and table_name(variable) is not None:
                raise PrivacyError(
                    f"Table {table_name(variable)!r} is in a tower that gets its noise at its "
                    'output vectors (`noise_at="vectors"`). A step therefore changes rows that the '
                    "`selection` did not select. Use keras.layers.Embedding there, or leave out "
                    '`selection` or `noise_at="vectors"`.'
                )
            found.setdefault(place[id(variable)], []).append(gradient)
    return {
        i: parts[0] if len(parts) == 1 else tf.add_n([tf.convert_to_tensor(p) for p in parts])
        for i, parts in found.items()
    }


def charged_and_noised(optimizer, sums, tables, coordinates):
    """The sums of a step with noise, divided; the only place that adds noise to gradients.

    Args:
        optimizer: a `DPOptimizer`.
        sums: list of float32 tensors, or tf.IndexedSlices, over all examples: first surviving rows
            of tables.
        tables: list of (table, its surviving rows) of these.
        coordinates: scalars of all variables, those of tables included: more than a step
            releases, and known without its data.
    """
    # Not before there is a batch: where the data have ended, the step fails and costs nothing.
    with tf.control_dependencies(sums):
        stddev = optimizer.charging.charge_step()
    if optimizer.selection is not None:
        stddev = optimizer.selection.gradient_noise_multiplier(stddev)
    rounding = sum_rounding(optimizer.expected_batch_size)
    rows, dense = sums[: len(tables)], sums[len(tables) :]
    source, divisor = optimizer.noise_source, optimizer.expected_batch_size
    chain = optimizer.noise_chain
    if chain is not None:
        grid = chain.grid(stddev, optimizer.clip_norm, coordinates, rounding)
        chosen = [(*table, r) for table, r in zip(tables, rows, strict=True)]
        return chain.release(dense, grid, divisor, rows=chosen)
    grid = Grid(stddev, optimizer.clip_norm, coordinates, rounding)
    means = [r / divisor for r in release_rows(rows, grid, source)]
    return means + source.release(dense, grid, divisor=divisor)


def _over_replicas(sums):
    """Clipped sums over the replicas; of sparse tables only the surviving rows cross over."""
    used = [i for i, s in enumerate(sums) if s is not None]
    found = [sums[i].values if isinstance(sums[i], SurvivorSums) else sums[i] for i in used]
    summed = replicas.all_reduce_sum([tf.cast(t, tf.float32) for t in found])
    totals = list(sums)
    for i, t in zip(used, summed, strict=True):
        totals[i] = SurvivorSums(sums[i].rows, t) if isinstance(sums[i], SurvivorSums) else t
    return totals


def _update_dense(optimizer, updates, regularization):
    """Hands noisy means to the wrapped optimizer, weight penalties added.

    Args:
        updates: list of (variable, noisy mean).
        regularization: for each of them the gradient of its penalty, or None.
    """
    inner = optimizer.inner_optimizer
    if not updates:
        inner.iterations.assign_add(1)
        return
    gradients = [
        tf.cast(mean if penalty is None else mean + tf.cast(penalty, tf.float32), variable.dtype)
        for (variable, mean), penalty in zip(updates, regularization, strict=True)
    ]
    with replicas.already_summed(inner), one_operation(inner):
        inner.apply(gradients, [variable for variable, _ in updates])


def _update_rows(optimizer, updates):
    """Hands noisy rows to the row optimizer, and those of external tables to their holder.

    Args:
        updates: list of (variable, its surviving rows, their noisy means).

    Returns:
        The number of scalars that received noise, float32.
    """
    if not updates:
        return tf.constant(0.0)
    external = {v: (rows, values) for v, rows, values in updates if is_external(v)}
    if external:
        (holder,) = {table.holder for table in external}
        holder.update({table.name: update for table, update in external.items()})
    own = [update for update in updates if not is_external(update[0])]
    rows_optimizer = optimizer.embedding_optimizer
    if own:
        gradients = [DistinctRows(tf.cast(values, v.dtype), rows) for v, rows, values in own]
        with replicas.already_summed(rows_optimizer):
            rows_optimizer.apply(gradients, [v for v, _, _ in own])
    else:
        rows_optimizer.iterations.assign_add(1)
    return tf.add_n(
        [
            tf.cast(tf.math.count_nonzero(rows < NO_ROW) * values.shape[1], tf.float32)
            for _, rows, values in updates
        ]
    )


def _size(shape):
    size = 1
    for d in shape:
        size *= d
    return size
