"""How each kind of layer contributes to gradients, one file each, and the fallback.

Importing this package registers them all.
"""

from tfdp.clipping.rules import (  # noqa: F401
    convolution,
    dense,
    embed_reduce,
    embedding,
    normalization,
    position,
    recurrent,
)
