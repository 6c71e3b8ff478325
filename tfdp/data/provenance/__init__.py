"""Tags on data and weights: sampling, the releases behind them, padding."""
