"""Contributions to one variable, their norms and clipped sums; it knows no layers."""
