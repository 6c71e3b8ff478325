"""What works and may still change."""
