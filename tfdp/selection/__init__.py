"""Selects the rows of tables that a step may update (MATH.md section 3). Updates no table."""

from tfdp.selection.adafest import AdaFEST
from tfdp.selection.contribution_map import ContributionMap
from tfdp.selection.exponential import ExponentialSelection
from tfdp.selection.fest import FEST
from tfdp.selection.forecast import SelectionForecast
from tfdp.selection.padded import NO_ROW
from tfdp.selection.row_selection import RowSelection
from tfdp.selection.tables import TableActivity
from tfdp.selection.top_k import TopKRelease, private_top_k

__all__ = [
    "AdaFEST",
    "ContributionMap",
    "ExponentialSelection",
    "FEST",
    "NO_ROW",
    "RowSelection",
    "SelectionForecast",
    "TableActivity",
    "TopKRelease",
    "private_top_k",
]


def __dir__():
    return sorted(__all__)
