"""Draws and releases by Apache Beam. They cost the same as those of `data`.

For data that outgrow one machine. Nothing else of tfdp imports Beam; `import tfdp.beam` does.
"""

try:
    import apache_beam  # noqa: F401
except ImportError as error:
    raise ImportError("tfdp.beam needs Apache Beam: `pip install tfdp[beam]`.") from error

from tfdp.beam.draws import Indexed, draw_batches  # noqa: E402
from tfdp.beam.releases import (  # noqa: E402
    Log,
    private_frequency,
    private_top_k,
    private_transitions,
)

__all__ = [
    "Indexed", "Log", "draw_batches", "private_frequency", "private_top_k", "private_transitions",
]  # fmt: skip


def __dir__():
    return sorted(__all__)
