"""The rule of each call, and what is refused before a step. Nothing runs in a step."""
