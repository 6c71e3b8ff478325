"""How batches are drawn, by record or by person; it never looks into a record."""
