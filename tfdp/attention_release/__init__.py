"""What `PrivateAttention` is made of: sensitivity, plan, mechanisms, utility, normalisation."""
