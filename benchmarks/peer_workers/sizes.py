"""Sizes and data of the models that every library is timed on. NumPy only: all workers read it."""

import numpy as np

VOCABULARY, WIDTH, BLOCKS = 3417, 64, 2
NUMBERS = 13
#: The encoder is of BERT's size, and frozen; what is trained are LoRA's factors and the head.
WORDS, ENCODER_WIDTH, HEADS, ENCODER_BLOCKS, RANK = 30_522, 768, 12, 12, 8
CLIP_NORM, NOISE_MULTIPLIER = 1.0, 1.0
#: Gradient descent is for checks: changes of weights are to be large against their rounding.
RATES = {"adam": 1e-3, "sgd": 1e3}
NUM_EXAMPLES = 100_000
THREADS = 2
#: Bytes that one library's process may hold.
MEMORY = 10 * 2**30

#: name: what it is, and the examples of one batch.
ARCHITECTURES = {
    "transformer, 50 positions": ("transformer", {"length": 50, "tied": False}, 64),
    "transformer, 50 positions, tied": ("transformer", {"length": 50, "tied": True}, 64),
    "transformer, 200 positions": ("transformer", {"length": 200, "tied": False}, 64),
    "transformer, 200 positions, tied": ("transformer", {"length": 200, "tied": True}, 64),
    "multilayer perceptron": ("perceptron", {}, 512),
    "GRU": ("gru", {}, 64),
    "convolutions, group normalisation": ("convolutions", {}, 64),
    "clicks, 26 tables": ("clicks", {"tables": 26, "rows": 5_000, "width": 16}, 256),
    "clicks, 12 larger tables": ("clicks", {"tables": 12, "rows": 20_000, "width": 24}, 768),
    "encoder with LoRA": ("encoder", {"length": 64}, 8),
}
#: Models that take turns; those of all at once would not fit into memory.
TOGETHER = (
    ("transformer, 50 positions", "transformer, 50 positions, tied"),
    ("transformer, 200 positions", "transformer, 200 positions, tied"),
    ("multilayer perceptron", "GRU", "convolutions, group normalisation"),
    ("clicks, 26 tables", "clicks, 12 larger tables"),
    ("encoder with LoRA",),
)
assert sorted(sum(TOGETHER, ())) == sorted(ARCHITECTURES)  # one that is in no group is not timed


def batch(name, size=None, seed=0):
    """Inputs (a tuple of arrays) and labels of `size` examples; None: the architecture's batch."""
    kind, options, standard = ARCHITECTURES[name]
    size = standard if size is None else size
    generator = np.random.default_rng(seed)
    if kind == "transformer":
        shape = (size, options["length"])
        ids, labels = (generator.integers(1, VOCABULARY, shape, dtype=np.int32) for _ in range(2))
        return (ids,), labels
    classes = 2 if kind in ("clicks", "encoder") else 10
    labels = generator.integers(0, classes, (size,), dtype=np.int32)
    if kind == "encoder":
        return (generator.integers(0, WORDS, (size, options["length"]), dtype=np.int32),), labels
    if kind == "clicks":
        shape = (size, options["tables"])
        ids = generator.integers(0, options["rows"], shape, dtype=np.int32)
        return (ids, generator.standard_normal((size, NUMBERS), np.float32)), labels
    shape = {"perceptron": (256,), "gru": (50, 32), "convolutions": (32, 32, 3)}[kind]
    return (generator.standard_normal((size, *shape), np.float32),), labels
