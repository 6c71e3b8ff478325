"""The rule of each call, and what is refused before a step. None of its code runs in a step."""
