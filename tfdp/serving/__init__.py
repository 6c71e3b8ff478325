"""Exports for TensorFlow Serving, with their statement. Trains nothing."""

from tfdp.serving.export import export

__all__ = ["export"]


def __dir__():
    return sorted(__all__)
