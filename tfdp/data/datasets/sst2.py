"""GLUE's SST-2: sentences of film reviews and whether they are positive."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class SST2Data:
    """The two labelled parts of SST-2.

    Attributes:
        train: pair of arrays: sentences (n,) of str objects, labels (n,) int32, 1 = positive.
        dev: the same for GLUE's validation part.
        num_examples: n, the number of training sentences. Treated as public.
    """

    train: tuple = dataclasses.field(repr=False)
    dev: tuple = dataclasses.field(repr=False)
    num_examples: int


def load_sst2(folder: str | os.PathLike) -> SST2Data:
    """Reads `train.tsv` and `dev.tsv` (header `sentence<TAB>label`) of GLUE's SST-2.

    One sentence is one record. SST-2's training part holds several phrases of the same review. A
    guarantee for a record is therefore not a guarantee for a review.

    Args:
        folder: path of the folder that holds both files.

    Returns:
        An `SST2Data`.

    Raises:
        ValueError: a file is missing, or a line is not a sentence and a label of 0 or 1.
    """
    folder = pathlib.Path(folder)
    train, dev = (_read(folder / f"{name}.tsv") for name in ("train", "dev"))
    return SST2Data(train=train, dev=dev, num_examples=len(train[1]))


def _read(path):
    if not path.is_file():
        raise ValueError(
            "Argument `folder` must hold train.tsv and dev.tsv of GLUE's SST-2 "
            f"(gluebenchmark.com). Received: folder={path.parent}, without {path.name}"
        )
    sentences, labels = [], []
    with path.open(encoding="utf-8") as lines:
        header = next(lines, "").rstrip("\n").split("\t")
        if header != ["sentence", "label"]:
            raise ValueError(
                f"{path} must begin with the header 'sentence<TAB>label'. Received: {header}"
            )
        for number, line in enumerate(lines, start=2):
            sentence, _, label = line.rstrip("\n").rpartition("\t")
            if label not in ("0", "1"):
                # The line itself is private data, and stays out of the message.
                raise ValueError(f"{path} line {number} must be a sentence, a tab, and 0 or 1.")
            sentences.append(sentence)
            labels.append(int(label))
    return np.array(sentences, object), np.array(labels, np.int32)
