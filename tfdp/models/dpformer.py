"""DPFormer: a private transformer for long-tailed sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from tfdp.layers.item_embedding import EmbeddingError
from tfdp.layers.re_attention_block import ReAttentionBlock
from tfdp.models.sequence_model import SequenceModel, causal_mask, positions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tfdp.data.releases.frequency import FrequencyRelease


@keras.saving.register_keras_serializable(package="tfdp")
class DPFormer(SequenceModel):
    """A transformer with tied embeddings whose attention is corrected for DP noise.

    Phantom clipping handles the tied table without an array of its size per example. Re-Attention
    tracks the noise of the rare items' embeddings through the blocks and removes the attention that
    the noise would draw (DPFormer, sections 4 and 5; MATH.md section 4). `compile` reads the noise
    from the `DPOptimizer`; with any other optimizer the correction is zero.

    Args:
        num_items: number of items; ids run from 1, 0 is padding. Public.
        max_length: positions of a sequence. Public.
        item_frequency: for each item the probability that a sequence contains it: a
            `tfdp.data.private_frequency(...)` release, charged in the ledger, or an array of
            num_items + 1 that you declare public. `None` tracks no differences between items.
        dim: width d.
        num_heads: attention heads.
        num_blocks: transformer blocks.
        hidden_dim: units of the feed-forward networks; 4·dim if omitted.
        dropout: rate.
        tied: whether look-up and head share one table.
        embedding_stddev: standard deviation of the initial embeddings.
        popularity_prior: item frequencies whose logarithm is added to the logits; see
            `SequenceModel`.
        transitions: a private release of transitions that is added to the logits; see
            `SequenceModel`.
        error_scale: multiplies the effective error; 0 switches the correction off.

    Call arguments:
        inputs: (B, T) item ids, right-aligned.

    Returns:
        Logits (B, T, num_items + 1).
    """

    def __init__(
        self,
        num_items: int,
        max_length: int,
        item_frequency: FrequencyRelease | ArrayLike | None = None,
        dim: int = 64,
        num_heads: int = 1,
        num_blocks: int = 2,
        hidden_dim: int | None = None,
        dropout: float = 0.2,
        tied: bool = True,
        embedding_stddev: float = 0.02,
        popularity_prior: FrequencyRelease | ArrayLike | None = None,
        transitions: keras.Layer | None = None,
        error_scale: float = 1.0,
        **kwargs,
    ):
        super().__init__(
            num_items,
            max_length,
            dim=dim,
            dropout=dropout,
            tied=tied,
            embedding_stddev=embedding_stddev,
            popularity_prior=popularity_prior,
            transitions=transitions,
            **kwargs,
        )
        self.num_heads = num_heads
        self.num_blocks = num_blocks
        self.hidden_dim = hidden_dim or 4 * dim
        self.error_scale = error_scale
        if isinstance(item_frequency, EmbeddingError):
            self.embedding_error = item_frequency
        else:
            self.embedding_error = EmbeddingError(
                self.num_items, item_frequency, error_scale=error_scale, name="embedding_error"
            )
        self.positions = positions(self.max_length, embedding_stddev)
        self.blocks = [
            ReAttentionBlock(
                num_heads,
                self.hidden_dim,
                dropout=dropout,
                error_scale=error_scale,
                name=f"block_{i}",
            )
            for i in range(num_blocks)
        ]
        self.final_norm = keras.layers.LayerNormalization(epsilon=1e-6, name="final_norm")

    def build_encoder(self, shape):
        self.embedding_error.build(shape[:-1])
        self.positions.build(shape)
        for block in self.blocks:
            block.build(shape)
        self.final_norm.build(shape)

    def encode(self, ids, training):
        variance = self.embedding_error(ids)
        x = self.positions(self.embedding(ids))
        x = self.embedding_dropout(x, training=training)
        if training and self.dropout:
            variance /= 1.0 - self.dropout
        mask = causal_mask(ids)
        for block in self.blocks:
            x, variance = block(x, variance, attention_mask=mask, training=training)
        return self.final_norm(x)

    def get_config(self):
        return {
            **super().get_config(),
            "item_frequency": keras.saving.serialize_keras_object(self.embedding_error),
            "num_heads": self.num_heads,
            "num_blocks": self.num_blocks,
            "hidden_dim": self.hidden_dim,
            "error_scale": self.error_scale,
        }
