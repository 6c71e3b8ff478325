"""Plots of the pages, from the JSON in benchmarks/results. Written by render.py."""

from plots import promises, steps, utility
from plots.style import IMAGES, stored_digest, write

PLOTS = {
    plot.name: plot
    for plot in (
        steps.STEP_TIME,
        steps.MEMORY,
        steps.TRANSFORMERS,
        steps.SMALL_MODELS,
        steps.TABLE_ROWS,
        utility.TRAINED,
        utility.UTILITY,
        utility.PAPERS,
        utility.CLICKS_UTILITY,
        utility.SELECTION,
        utility.TEXTS_UTILITY,
        utility.TEXTS_SWEEPS,
        promises.AUDITS,
        promises.BROKEN,
        promises.ALLOCATION,
        promises.ATTENTION_RELEASE,
        promises.PLAN,
    )
}
__all__ = ["IMAGES", "PLOTS", "stored_digest", "write"]
