"""Taking a privately trained model into service."""

from tfdp.serving.export import export

__all__ = ["export"]


def __dir__():
    return sorted(__all__)
