"""The origin of weights, and the charges in their files. Runs no step."""
