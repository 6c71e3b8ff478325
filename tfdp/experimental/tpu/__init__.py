"""Tables that live in a TPU embedding (experimental)."""
