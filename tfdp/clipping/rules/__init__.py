"""One file for each kind of layer; importing this package registers them all."""

from tfdp.clipping.rules import (
    convolution,
    dense,
    embed_reduce,
    embedding,
    normalization,
    position,
    recurrent,
)

__all__ = [
    "convolution", "dense", "embed_reduce", "embedding", "normalization", "position",
    "recurrent",
]  # fmt: skip
