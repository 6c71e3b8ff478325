"""Draws made ahead by Apache Beam, for data that outgrow one machine (`pip install tfdp[beam]`).

Nothing else of tfdp imports Beam; `import tfdp.beam` does.
"""

try:
    import apache_beam  # noqa: F401
except ImportError as error:
    raise ImportError("tfdp.beam needs Apache Beam: `pip install tfdp[beam]`.") from error

from tfdp.beam.draws import Indexed, draw_batches  # noqa: E402

__all__ = ["Indexed", "draw_batches"]


def __dir__():
    return sorted(__all__)
