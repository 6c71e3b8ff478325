"""Private releases of data, each drawn once and charged once; no training."""
