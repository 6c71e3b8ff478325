"""The models DPFormer is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from tfdp._compat.keras import set_mask
from tfdp._validate import one_of
from tfdp.layers.re_attention_block import ReAttentionBlock
from tfdp.models.sequence_model import SequenceModel, causal_mask, positions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tfdp.data.releases.frequency import FrequencyRelease

CELLS = ("gru", "lstm", "transformer")


@keras.saving.register_keras_serializable(package="tfdp")
class SequenceBaseline(SequenceModel):
    """GRU, LSTM or vanilla transformer with the embedding and head of `DPFormer`.

    Args:
        num_items: number of items; ids run from 1, 0 is padding.
        max_length: positions of a sequence.
        cell: "gru", "lstm" or "transformer" (DPFormer without its correction).
        dim: width d.
        num_heads, hidden_dim: of the transformer.
        num_blocks: number of transformer blocks, or of recurrent layers.
        dropout: rate.
        tied: whether look-up and head share one table.
        embedding_stddev: standard deviation of the initial embeddings.
        popularity_prior: item frequencies whose logarithm is added to the logits.
        transitions: a private release of transitions that is added to the logits; see
            `SequenceModel`.
    """

    def __init__(
        self,
        num_items: int,
        max_length: int,
        cell: str = "transformer",
        dim: int = 64,
        num_heads: int = 1,
        num_blocks: int | None = None,
        hidden_dim: int | None = None,
        dropout: float = 0.2,
        tied: bool = True,
        embedding_stddev: float = 0.02,
        popularity_prior: FrequencyRelease | ArrayLike | None = None,
        transitions: keras.Layer | None = None,
        **kwargs,
    ):
        one_of("cell", cell, CELLS)
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
        self.cell = cell
        self.num_heads = num_heads
        self.num_blocks = num_blocks or (2 if cell == "transformer" else 1)
        self.hidden_dim = hidden_dim or 4 * dim
        if cell == "transformer":
            self.positions = positions(self.max_length, embedding_stddev)
        self.blocks = [self._block(i) for i in range(self.num_blocks)]
        self.final_norm = keras.layers.LayerNormalization(epsilon=1e-6, name="final_norm")

    def _block(self, i):
        if self.cell == "transformer":
            return ReAttentionBlock(
                self.num_heads, self.hidden_dim, dropout=self.dropout, name=f"block_{i}"
            )
        layer = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}[self.cell]
        return layer(self.dim, return_sequences=True, name=f"{self.cell}_{i}")

    def build_encoder(self, shape):
        if self.cell == "transformer":
            self.positions.build(shape)
        for block in self.blocks:
            block.build(shape)
        self.final_norm.build(shape)

    def encode(self, ids, training):
        x = self.embedding(ids)
        if self.cell == "transformer":
            x = self.embedding_dropout(self.positions(x), training=training)
            mask = causal_mask(ids)
            for block in self.blocks:
                x, _ = block(x, attention_mask=mask, training=training)
        else:
            x = self.embedding_dropout(x, training=training)
            present = keras.ops.not_equal(ids, 0)
            for block in self.blocks:
                x = block(x, mask=present, training=training)
            set_mask(x, None)  # the loss has its own, and Keras would warn that the head takes none
        return self.final_norm(x)

    def get_config(self):
        return {
            **super().get_config(),
            "cell": self.cell,
            "num_heads": self.num_heads,
            "num_blocks": self.num_blocks,
            "hidden_dim": self.hidden_dim,
        }
