"""One file for each kind of layer; importing this package registers them all."""

from tfdp.clipping.rules import (
    cell_calls,
    convolution,
    dense,
    embed_reduce,
    embedding,
    normalization,
    position,
    recurrent,
)

__all__ = [
    "cell_calls", "convolution", "dense", "embed_reduce", "embedding", "normalization", "position",
    "recurrent",
]  # fmt: skip
