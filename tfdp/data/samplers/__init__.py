"""How batches are sampled, by record or by person. Never looks into a record."""
