"""Models that train privately."""

from tfdp.models.ctr import CategoricalFeature, PrivateCTR
from tfdp.models.dpformer import DPFormer
from tfdp.models.release_head import release_head
from tfdp.models.sequence_baseline import SequenceBaseline
from tfdp.models.text_classifier import TextClassifier
from tfdp.models.transition_recommender import TransitionRecommender
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
    "make_private",
    "release_head",
]


def __dir__():
    return sorted(__all__)
