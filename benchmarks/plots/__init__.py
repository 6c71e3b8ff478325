"""Plots of the pages, from the JSON in benchmarks/results. Written by render.py."""

from plots import steps, utility
from plots.style import IMAGES, stored_digest, write

PLOTS = {
    plot.name: plot
    for plot in (
        steps.STEP_TIME,
        utility.UTILITY,
    )
}
__all__ = ["IMAGES", "PLOTS", "stored_digest", "write"]
