"""Warnings of what cannot work or is slow, from public settings and what is private already.

Nothing here looks at a record, a loss or a gradient before its noise: a warning may be shown to
anybody who may see the statement.
"""

from __future__ import annotations

import math
import warnings

import keras

from tfdp._validate import is_number
from tfdp.clipping.recording import trained_variables
from tfdp.clipping.rules.embedding import EmbeddingRule
from tfdp.clipping.sums import cost
from tfdp.clipping.sums.surviving_rows import table_name
from tfdp.optimizers import DPOptimizer

# Weights begin at about 0.1: a walk of this length by noise alone leaves nothing of what they were.
_LONGEST_WALK = 3.0
# So little in all steps together, whatever the data, that nothing can have been learned.
_SHORTEST_WAY = 1e-2
# Noise that takes less than so many seconds of a step is not worth other layers.
_SHORT_NOISE = 4e-3
# So many layers are named.
_NAMED = 3
_ADAPTIVE = ("Adam", "AdamW", "Adamax", "Nadam", "RMSprop")


def warn_before_training(model, steps: int | None):
    """Warns of a learning rate, a clip norm or a threshold that cannot work, and of slow tables.

    Args:
        model: a `DPModel` compiled with a `DPOptimizer`, whose noise is known.
        steps: steps that will be run, or None if nobody knows.
    """
    optimizer = model.optimizer
    found = step_sizes(optimizer, steps) if steps else []
    explain = getattr(optimizer.selection, "explain", None)
    tables = {table_name(v): v.shape[0] for v in trained_variables(model) if table_name(v)}
    if explain is not None and tables:
        forecast = explain(tables, optimizer.noise_multiplier, optimizer.expected_batch_size)
        found += forecast.warnings
    found += dense_tables(list(model._plans.values()), optimizer.expected_batch_size)
    for text in found:
        warnings.warn(f"{text}.", stacklevel=2)


def dense_tables(plans, batch_size: float) -> list[str]:
    """Which tables are better sparse; sentences without a full stop.

    Args:
        plans: the `ClippingPlan`s of a model, of which the first is looked at.
        batch_size: examples of a step.
    """
    if not plans:
        return []
    calls = list(plans[0].calls.values())
    tables = {id(c.variables[0]): c for c in calls if type(c.rule) is EmbeddingRule}
    others = [c for c in calls if type(c.rule) is not EmbeddingRule]
    for used in (v for c in others for v in c.variables):
        tables.pop(id(used), None)  # tied to a head, whose gradient is dense
    sizes = {c.layer: c.variables[0].shape for c in tables.values()}
    noise = cost.noise_seconds(sum(math.prod(shape) for shape in sizes.values()))
    rest = cost.step_seconds([c.work for c in others], batch_size)
    if noise < max(rest, _SHORT_NOISE):
        return []
    largest = sorted(sizes, key=lambda layer: -math.prod(sizes[layer]))[:_NAMED]
    named = ", ".join(f"{v.name!r} ({sizes[v][0]:,} x {sizes[v][1]})" for v in largest)
    more = f" and {len(sizes) - _NAMED} more" if len(sizes) > _NAMED else ""
    rows, width = sizes[largest[0]]
    return [
        f"The noise for every row of embedding {named}{more} takes about {noise / rest:.0f} times "
        "as long as the rest of a step. To add noise only to rows that a private selection "
        f"passes, replace keras.layers.Embedding({rows}, {width}) by "
        f"tfdp.layers.SparseEmbedding({rows}, {width}), and give DPOptimizer "
        "selection=tfdp.selection.AdaFEST(threshold=30.0) and "
        "embedding_optimizer=tfdp.optimizers.RowAdagrad(0.05) (docs/sparse_embeddings.md)"
    ]


def _random_steps(optimizer, steps):
    """How many times as far as in one step noise moves a weight; √T if it is independent."""
    chain = getattr(optimizer.charging.mechanism, "correlation", None)
    if chain is None:
        return math.sqrt(steps)
    return chain.noise_in_weights()


def step_sizes(optimizer: DPOptimizer, steps: int) -> list[str]:
    """What is wrong with the size of the updates; sentences without a full stop.

    In a step every coordinate gets noise of standard deviation s = σ·C/B. SGD at rate r moves it
    by r·s at random, √T times as far in T steps; Adam divides by s, and moves it by about r.
    """
    inner = optimizer.inner_optimizer
    rate = inner.get_config().get("learning_rate")  # the variable may be on several replicas
    if not is_number(rate):
        return []  # a schedule, which may begin at zero
    clip_norm, batch = optimizer.clip_norm, optimizer.expected_batch_size
    noise = optimizer.noise_multiplier * clip_norm / batch
    name = type(inner).__name__
    if name == "SGD":
        momentum = 1.0 / (1.0 - min(float(inner.momentum), 0.999))
        walk = rate * noise * _random_steps(optimizer, steps) * momentum
        way = rate * clip_norm * steps * momentum
        smaller = "a lower learning rate or `clip_norm`"
    elif name in _ADAPTIVE:
        walk, way = rate * _random_steps(optimizer, steps), rate * steps
        smaller = "a lower learning rate"
        if 0 < noise < float(inner.epsilon):
            return [
                "The weights will hardly move: the noise on each coordinate of a mean gradient "
                f"({noise:.2g} = noise_multiplier · clip_norm / expected_batch_size) is below "
                f"`epsilon` of {name} ({inner.epsilon:g}), and so are the clipped gradients. "
                f"Lower `epsilon` of {name}, or raise `clip_norm`. An adaptive optimizer divides "
                "by the size of the gradients, so a higher `clip_norm` changes only which "
                "gradients are clipped"
            ]
    else:
        return []
    if noise and walk > _LONGEST_WALK:
        return [
            f"Training will diverge: noise alone will move every weight by about {walk:.2g} in "
            f"{steps} steps ({name} at {rate:g}, noise of {noise:.2g} on each coordinate of a "
            f"mean gradient). Use {smaller}, larger batches or fewer steps"
        ]
    if way < _SHORTEST_WAY:
        return [
            f"The model will learn nothing: all {steps} steps together can move the weights by "
            f"{way:.2g} at most, whatever the data ({name} at {rate:g}, clip_norm {clip_norm:g}). "
            "Use a higher learning rate or more steps"
        ]
    return []


class SelectionWatch(keras.callbacks.Callback):
    """Warns after an epoch in which no row of a sparse table survived; survivors are private."""

    def on_epoch_end(self, epoch, logs=None):
        if (logs or {}).get("gradient_size") == 0:
            warnings.warn(
                f"No row of any sparse table survived the selection in epoch {epoch + 1}, so the "
                "tables were not trained. Lower the `threshold`. "
                "`model.optimizer.selection.explain(...)` shows how many examples must share a "
                "row.",
                stacklevel=2,
            )
