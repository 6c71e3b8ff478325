"""Layers. They know neither optimizers nor models."""

from tfdp.attention_release.private_attention import PrivateAttention
from tfdp.layers.click_odds import ClickOdds
from tfdp.layers.dp_forward_noise import DPForwardNoise
from tfdp.layers.re_attention import ReAttention
from tfdp.layers.re_attention_block import ReAttentionBlock
from tfdp.layers.replace_batch_norm import replace_batch_norm
from tfdp.layers.sparse_embedding import SparseEmbedding
from tfdp.layers.text_tokenizer import TextTokenizer
from tfdp.layers.transition_odds import TransitionOdds
from tfdp.layers.transition_prior import TransitionPrior

__all__ = [
    "ClickOdds",
    "DPForwardNoise",
    "PrivateAttention",
    "ReAttention",
    "ReAttentionBlock",
    "SparseEmbedding",
    "TextTokenizer",
    "TransitionOdds",
    "TransitionPrior",
    "replace_batch_norm",
]


def __dir__():
    return sorted(__all__)
