"""Layers that hold releases, look up rows, correct for noise. No optimizers, no models."""

from typing import TYPE_CHECKING

from tfdp._compat.imports import on_demand

if TYPE_CHECKING:  # for editors and the documentation
    from tfdp.attention_release.private_attention import PrivateAttention
    from tfdp.layers.batch_norm import replace_batch_norm
    from tfdp.layers.click_odds import ClickOdds
    from tfdp.layers.dp_forward_noise import DPForwardNoise
    from tfdp.layers.re_attention import ReAttention
    from tfdp.layers.re_attention_block import ReAttentionBlock
    from tfdp.layers.shared_negatives import SharedNegatives
    from tfdp.layers.shared_scores import SharedScores
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
    "SharedNegatives",
    "SharedScores",
    "SparseEmbedding",
    "TextTokenizer",
    "TransitionOdds",
    "TransitionPrior",
    "replace_batch_norm",
]

__getattr__ = on_demand(
    __name__,
    {
        "tfdp.attention_release.private_attention": ["PrivateAttention"],
        ".click_odds": ["ClickOdds"],
        ".dp_forward_noise": ["DPForwardNoise"],
        ".re_attention": ["ReAttention"],
        ".re_attention_block": ["ReAttentionBlock"],
        ".batch_norm": ["replace_batch_norm"],
        ".shared_negatives": ["SharedNegatives"],
        ".shared_scores": ["SharedScores"],
        ".sparse_embedding": ["SparseEmbedding"],
        ".text_tokenizer": ["TextTokenizer"],
        ".transition_odds": ["TransitionOdds"],
        ".transition_prior": ["TransitionPrior"],
    },
)


def __dir__():
    return sorted(__all__)
