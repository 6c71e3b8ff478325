"""The sparse tables' part of a DPOptimizer: which rows, which noise, which optimizer."""

import tensorflow as tf

from tfdp.clipping.sums.surviving_rows import table_name
from tfdp.optimizers.rows import RowOptimizer
from tfdp.runtime import replicas
from tfdp.selection import FEST, NO_ROW, RowSelection, TableActivity


class SparseTraining:
    """Rows are selected with σ₁, gradients noised with σ₂, tables updated by a row optimizer.

    Formal guarantees: σ₁ and σ₂ are the selection's split of the step's σ, so that a step costs
    one Gaussian of noise multiplier σ. Rows that do not survive are neither read nor written.

    Args:
        selection: a `RowSelection`.
        embedding_optimizer: a `RowOptimizer`.
        microbatch_size: of the optimizer; None, or rows must be known before the gradients.

    Raises:
        ValueError: for arguments of other types, or one without the other.
    """

    def __init__(self, selection, embedding_optimizer, microbatch_size):
        if selection is None:
            raise ValueError(
                "Argument `embedding_optimizer` trains only rows that a `selection` selects. "
                "Give both arguments, or neither: without a selection every row is noised, and "
                f"`optimizer` trains it. Received: embedding_optimizer={embedding_optimizer}, "
                "selection=None"
            )
        if not isinstance(selection, RowSelection):
            raise ValueError(
                "Argument `selection` must be a tfdp.selection.AdaFEST, FEST or "
                f"ExponentialSelection. Received: selection={selection}"
            )
        fest = selection if isinstance(selection, FEST) else getattr(selection, "within", None)
        if fest is not None and not fest.is_chosen:
            raise ValueError(
                "Argument `selection` holds a FEST that has not chosen rows. Call its `adapt` "
                "first; its cost is part of the budget."
            )
        if not isinstance(embedding_optimizer, RowOptimizer):
            raise ValueError(
                "Argument `embedding_optimizer` must be given with `selection` and must update "
                "only the given rows. Use a tfdp.optimizers.RowSGD, RowAdagrad or LazyAdam. "
                f"Received: embedding_optimizer={embedding_optimizer}"
            )
        if microbatch_size is not None:
            _check_known_ahead(selection, microbatch_size)
        self.selection = selection
        self.optimizer = embedding_optimizer

    def split(self, variables):
        """(tables, other variables).

        Raises:
            ValueError: if there is no table, or one that a step would have to update as a whole.
        """
        tables = [v for v in variables if table_name(v) is not None]
        if not tables:
            raise ValueError(
                "Argument `selection` selects rows of SparseEmbedding layers, but the model "
                "trains none. Use tfdp.layers.SparseEmbedding, or leave `selection` out. If the "
                "tables are in keras_rs layers, build the model before `compile`. Received: "
                f"variables {[v.path for v in variables]}"
            )
        names = [table_name(v) for v in tables]
        if len(set(names)) < len(names):
            raise ValueError(
                "Give the SparseEmbedding layers, and the tables of keras_rs, distinct names. "
                f"Received: {names}"
            )
        for table in tables:
            if table.regularizer is not None or table.constraint is not None:
                raise ValueError(
                    f"Table {table_name(table)!r} has a regularizer or a constraint, which would "
                    "update all of its rows. Remove it; the row optimizers have a lazy "
                    "`weight_decay` instead."
                )
        self.selection.check({table_name(v): v.shape[0] for v in tables})
        known = {id(v) for v in tables}
        return tables, [v for v in variables if id(v) not in known]

    def select(self, activated, variables, example_mask, noise_multiplier, bounds, source, static):
        """Surviving rows of one step, as `RowSelection.select`.

        Args:
            activated: dict of place among the variables to `RowGradients`.
            variables: the trainable variables.
            example_mask: (B,) bool, of this replica's examples, as the gradients.
            noise_multiplier: σ, a scalar tensor.
            bounds: for each of the variables the longest gradient that clipping leaves whole.
            source: a `tfdp.noise.NoiseSource`.
            static: whether the rows must have a size that is known before the step; the largest
                int64 then fills them up.

        Returns:
            Dict of the same places to sorted int64 rows.
        """
        parts = [gradient.ids for gradient in activated.values()]
        if self.selection.reads_gradients:
            parts += [gradient.row_norms() / bounds[i] for i, gradient in activated.items()]

        def select(example_mask, *parts):
            ids, norms = parts[: len(activated)], parts[len(activated) :]
            tables = [
                TableActivity(
                    table_name(variables[i]),
                    variables[i].shape[0],
                    ids[k],
                    relative_norms=(lambda k=k: norms[k]) if norms else None,
                )
                for k, i in enumerate(activated)
            ]
            if self.selection.capacity is None:
                return self.selection.select(tables, example_mask, noise_multiplier, source)
            rows = self.selection.select_padded(tables, example_mask, noise_multiplier, source)
            return rows if static else [tf.boolean_mask(r, r < NO_ROW) for r in rows]

        rows = replicas.run_once_per_step(select, example_mask, *parts)
        return dict(zip(activated, rows, strict=True))


def release_rows(sums, grid, source):
    """Clipped sums of surviving rows with noise.

    Args:
        sums: list of (S, d) float32.
        grid: the `tfdp.noise.Grid` of the step.
        source: a `tfdp.noise.NoiseSource`.

    Returns:
        List of (S, d) float32.
    """
    if all(s.shape.is_fully_defined() for s in sums):
        return source.release(sums, grid)
    flat = tf.concat([tf.reshape(s, [-1]) for s in sums], 0)
    parts = tf.split(source.release_any(flat, grid), tf.stack([tf.size(s) for s in sums]))
    return [tf.reshape(p, [-1, s.shape[1]]) for p, s in zip(parts, sums, strict=True)]


def _check_known_ahead(selection, microbatch_size):
    """Micro-batches need rows that were chosen from the whole batch before any of its gradients.

    Raises:
        ValueError: for a selection that cannot choose them so.
    """
    if selection.reads_gradients:
        raise ValueError(
            f"Argument `microbatch_size` cannot be combined with {type(selection).__name__}, "
            "which reads the gradients of the whole batch. Leave it out, or select rows by ids: "
            f"AdaFEST(..., capacity=...). Received: microbatch_size={microbatch_size}"
        )
    if selection.reads_batch and selection.capacity is None:
        raise ValueError(
            "Argument `microbatch_size` needs rows that are selected when the batches are made. "
            "Give the selection a `capacity`, for example AdaFEST(..., capacity=20_000), and "
            "give `fit` the result of `tfdp.distribution.select_on_host(batches, model, ids)`. "
            f"Received: microbatch_size={microbatch_size}, selection without a capacity"
        )
