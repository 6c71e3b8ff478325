"""One file for each kind of layer; importing this package registers them all."""

from tfdp.clipping.rules import convolution, dense, embedding, normalization, position

__all__ = ["convolution", "dense", "embedding", "normalization", "position"]
