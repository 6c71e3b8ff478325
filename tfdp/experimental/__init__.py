"""Works, and may change without notice; nothing stable belongs here."""
