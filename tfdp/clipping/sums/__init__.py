"""Contributions to one variable, their norms and clipped sums. Knows no layers."""
