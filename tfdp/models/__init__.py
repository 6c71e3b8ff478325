"""Models that train privately."""

from tfdp.models.dp_model import DPModel
from tfdp.models.make_private import PrivateModel, make_private

__all__ = ["DPModel", "PrivateModel", "make_private"]
