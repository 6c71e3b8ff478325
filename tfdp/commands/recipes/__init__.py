"""The models of `tfdp train`, with settings that suit most data: one module for a kind of data."""

from tfdp.commands.recipes.clicks import ctr
from tfdp.commands.recipes.sequences import dpformer, transitions
from tfdp.commands.recipes.texts import text
from tfdp.commands.recipes.trained import Trained

_RECIPES = {"transitions": transitions, "dpformer": dpformer, "ctr": ctr, "text": text}


def train(arguments) -> Trained:
    """Trains what the arguments of `tfdp train` ask for.

    Raises:
        ValueError: for data that are not as the arguments say.
    """
    return _RECIPES[arguments.model](arguments)
