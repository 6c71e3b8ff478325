"""Where weights come from, and the charges in their files; no step runs here."""
