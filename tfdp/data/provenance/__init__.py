"""Tags on data and weights: sampling, the releases behind them, padding."""

from tfdp.data.provenance.origins import Origin

__all__ = ["Origin"]
