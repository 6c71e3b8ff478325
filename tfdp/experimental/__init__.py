"""Works, and may change without notice. Nothing stable belongs here."""
