"""`PrivateAttention`: noise on attention at inference. Training data are not protected."""
