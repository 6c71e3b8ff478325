"""Models that train privately."""

from tfdp.models.ctr import CategoricalFeature, PrivateCTR
from tfdp.models.dp_model import DPModel
from tfdp.models.dpformer import DPFormer
from tfdp.models.make_private import PrivateModel, make_private
from tfdp.models.release_head import release_head
from tfdp.models.sequence_baseline import SequenceBaseline
from tfdp.models.text_classifier import TextClassifier

__all__ = [
    "CategoricalFeature",
    "DPFormer",
    "DPModel",
    "PrivateCTR",
    "PrivateModel",
    "SequenceBaseline",
    "TextClassifier",
    "make_private",
    "release_head",
]
