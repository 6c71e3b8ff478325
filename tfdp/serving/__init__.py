"""Taking a privately trained model into service."""

from tfdp.serving.export import export

__all__ = ["export"]
