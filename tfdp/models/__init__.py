"""Models that train privately. Code for any Keras model is in `training`."""

from typing import TYPE_CHECKING

from tfdp._compat.imports import on_demand

if TYPE_CHECKING:  # for editors and the documentation
    from tfdp.models.ctr import CategoricalFeature, PrivateCTR
    from tfdp.models.dpformer import DPFormer
    from tfdp.models.released_head import release_head
    from tfdp.models.sequence_baseline import SequenceBaseline
    from tfdp.models.text_classifier import TextClassifier
    from tfdp.models.transition_recommender import TransitionRecommender
    from tfdp.models.two_tower import TwoTower
    from tfdp.training.dp_model import DPModel
    from tfdp.training.make_private import PrivateModel, make_private

__all__ = [
    "CategoricalFeature",
    "DPFormer",
    "DPModel",
    "PrivateCTR",
    "PrivateModel",
    "SequenceBaseline",
    "TextClassifier",
    "TransitionRecommender",
    "TwoTower",
    "make_private",
    "release_head",
]

__getattr__ = on_demand(
    __name__,
    {
        ".ctr": ["CategoricalFeature", "PrivateCTR"],
        ".dpformer": ["DPFormer"],
        ".released_head": ["release_head"],
        ".sequence_baseline": ["SequenceBaseline"],
        ".text_classifier": ["TextClassifier"],
        ".transition_recommender": ["TransitionRecommender"],
        ".two_tower": ["TwoTower"],
        "tfdp.training.dp_model": ["DPModel"],
        "tfdp.training.make_private": ["PrivateModel", "make_private"],
    },
)


def __dir__():
    return sorted(__all__)
