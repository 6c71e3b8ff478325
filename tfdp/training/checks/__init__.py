"""What is checked before and during a run, and what the statement must add; nothing trains here."""
