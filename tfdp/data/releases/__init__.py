"""Private releases of data, each drawn once and charged once. No training."""
