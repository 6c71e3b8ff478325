"""Batches that were drawn ahead, by `tfdp.beam.draw_batches`, and wait in files."""

import dataclasses
import json
import os

import numpy as np
import tensorflow as tf

from tfdp.accounting import Sampling
from tfdp.data.provenance.dataset_tags import tag
from tfdp.data.provenance.origins import Origin
from tfdp.data.provenance.padding_guard import guard_padding
from tfdp.data.sampling.exits import ended_at_exit
from tfdp.errors import PrivacyError

MANIFEST, TRAINED = "manifest.json", "TRAINED"
_VERSION = 2
_draws = {}  # identity: `_Draw`, of this process


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a finished draw says of itself. Written last: without it there is no draw.

    It holds nothing that depends on who was drawn, and not the secret by which records were drawn.

    Args:
        identity: random name of the draw.
        num_examples: n, of records, or of persons.
        expected_batch_size: B; each of them is in each step with probability B/n, independently.
        steps: T.
        max_batch_size: places of every batch; larger draws were cut to a random subset.
        signature: (x, y, sample_weight) of one record: nested dicts and lists of {"shape",
            "dtype"}.
        files: (name, bytes) of the files, in the order of their steps; None for files with strings,
            whose size depends on who was drawn.
        max_records_per_unit: k, if persons were drawn: the rows of each place. None for records.
        made_with: what the records were made with, by `Origin.to_dict`.
    """

    identity: str
    num_examples: int
    expected_batch_size: float
    steps: int
    max_batch_size: int
    signature: object
    files: tuple
    max_records_per_unit: int | None = None
    made_with: dict = dataclasses.field(default_factory=dict)

    @property
    def origin(self):
        """The `Origin` of the batches."""
        return Origin.all_of([Origin.from_dict(self.made_with), Origin(assumptions=_ASSUMED)])

    @property
    def sampling(self):
        """The `tfdp.accounting.Sampling` of the batches."""
        return Sampling(
            kind="poisson",
            num_examples=self.num_examples,
            expected_batch_size=self.expected_batch_size,
            max_batch_size=self.max_batch_size,
            steps_per_epoch=self.steps,
            draw=self.identity,
            max_records_per_unit=self.max_records_per_unit,
        )

    def write(self, directory):
        """Writes the manifest as a whole, or not at all."""
        fields = {"version": _VERSION, **dataclasses.asdict(self)}
        fields["overflow_probability"] = self.sampling.overflow_probability
        unfinished = f"{directory}/{MANIFEST}.{self.identity}"
        with tf.io.gfile.GFile(unfinished, "w") as file:
            file.write(json.dumps(fields, indent=1))
        tf.io.gfile.rename(unfinished, f"{directory}/{MANIFEST}")

    @classmethod
    def read(cls, directory):
        """The manifest of a draw.

        Raises:
            ValueError: if there is none, or if files are missing or of another size.
        """
        path = f"{directory}/{MANIFEST}"
        if not tf.io.gfile.exists(path):
            raise ValueError(
                "Argument `directory` must contain a finished draw. An interrupted run of "
                "`tfdp.beam.draw_batches` leaves no manifest: run it again. Received: "
                f"directory={str(directory)!r}, without {MANIFEST}"
            )
        with tf.io.gfile.GFile(path) as file:
            fields = json.load(file)
        version = fields.pop("version", None)
        if version != _VERSION:
            raise ValueError(
                f"{path} must be a manifest of version {_VERSION}: another version of tfdp wrote "
                "it. Draw again with `tfdp.beam.draw_batches`, into another directory. Received: "
                f"version {version!r}"
            )
        fields.pop("overflow_probability")
        fields["files"] = tuple((name, size) for name, size in fields["files"])
        manifest = cls(**fields)
        for name, size in manifest.files:
            file = f"{directory}/{name}"
            found = tf.io.gfile.stat(file).length if tf.io.gfile.exists(file) else None
            if found is None or size not in (None, found):
                raise ValueError(
                    f"The draw in {directory} is damaged: {name} must have {size} bytes. Make a "
                    f"new draw in another directory. Found: {found} bytes"
                )
        return manifest


def encode_signature(signature):
    """Nested `tf.TensorSpec`s of one record as JSON-able values."""
    if isinstance(signature, dict):
        return {"dict": {key: encode_signature(signature[key]) for key in sorted(signature)}}
    if isinstance(signature, (tuple, list)):
        return {"tuple": [encode_signature(part) for part in signature]}
    return {"shape": signature.shape.as_list(), "dtype": signature.dtype.name}


def decode_signature(encoded):
    """The inverse of `encode_signature`."""
    if "dict" in encoded:
        return {key: decode_signature(part) for key, part in encoded["dict"].items()}
    if "tuple" in encoded:
        return tuple(map(decode_signature, encoded["tuple"]))
    return tf.TensorSpec(encoded["shape"], encoded["dtype"])


def encode_batch(leaves):
    """Arrays of a batch, in the order of `tf.nest.flatten`, as one TFRecord."""
    parts = [tf.io.serialize_tensor(leaf).numpy() for leaf in leaves]
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=parts))
    return tf.train.Example(
        features=tf.train.Features(feature={"batch": feature})
    ).SerializeToString(deterministic=True)


class _Draw:
    """What this process knows of a draw: whether it trains, and how often it was read since."""

    def __init__(self, directory):
        self.directory = directory
        self.trains = False
        self.reads = 0

    def begin_reading(self):
        if self.trains:
            self.reads += 1
            if self.reads > 1:
                raise PrivacyError(_ONCE)


_ONCE = (
    "You may train on a draw only once: a second pass would use the same samples again, which is "
    "not Poisson sampling. Draw as many steps as you need with `tfdp.beam.draw_batches(steps=…)`, "
    "and spread them over several epochs of one `fit` with `steps_per_epoch`."
)


_ASSUMED = (
    "the code that reads the records, and `parse`, compute the result for each record from that "
    "record alone",
    "the files of the draw, and the job that made them, stay as secret as the data: they show "
    "which records were drawn",
)


def load_batches(directory: str | os.PathLike) -> tf.data.Dataset:
    """Reads the batches that `tfdp.beam.draw_batches` drew: Poisson samples, in their order.

    Each draw trains once. `fit` marks the draw when it begins (a file `TRAINED` in the directory).
    No other `fit` accepts it afterwards, in this process or another, not even to continue after an
    interruption: make a new draw for the remaining steps.

    ```python
    batches = tfdp.data.load_batches("gs://bucket/draw")     # T steps
    model.fit(batches, epochs=10, steps_per_epoch=T // 10)
    ```

    Formal guarantees: those of `poisson_batches`, if the directory stays as secret as the data: it
    shows who is in which step.

    Args:
        directory: folder of the draw, with its manifest.

    Returns:
        `tf.data.Dataset` of `(x, y, sample_weight)`, tagged for `sampling_of`, of T batches.

    Raises:
        ValueError: if the draw is not complete.
    """
    directory = str(directory).rstrip("/")
    manifest = Manifest.read(directory)
    state = _draws.setdefault(manifest.identity, _Draw(directory))
    paths = [f"{directory}/{name}" for name, _ in manifest.files]
    signature = decode_signature(manifest.signature)
    leaves = tf.nest.flatten(signature)

    def serialized():
        state.begin_reading()
        yield from tf.data.TFRecordDataset(paths).as_numpy_iterator()

    def parsed(text):
        feature = tf.io.FixedLenFeature([len(leaves)], tf.string)
        parts = tf.io.parse_single_example(text, {"batch": feature})["batch"]
        tensors = [
            tf.ensure_shape(
                tf.io.parse_tensor(parts[i], leaf.dtype), [manifest.sampling.rows, *leaf.shape]
            )
            for i, leaf in enumerate(leaves)
        ]
        return tf.nest.pack_sequence_as(signature, tensors)

    texts = tf.data.Dataset.from_generator(
        ended_at_exit(serialized), output_signature=tf.TensorSpec((), tf.string)
    )
    batches = texts.map(parsed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    # That there are T is checked as they are read.
    batches = batches.apply(tf.data.experimental.assert_cardinality(manifest.steps))
    tagged = tag(batches.prefetch(2), manifest.sampling, manifest.origin)
    return guard_padding(tagged, manifest.max_records_per_unit)


def refuse_used_draw(sampling, history):
    """Refuses a draw that has trained before.

    Args:
        sampling: the `Sampling` of a run that is about to begin.
        history: the `tfdp.accounting.charges.history.ChargeHistory` of the weights.

    Raises:
        PrivacyError: if these weights were trained on it, or any others, as far as can be seen.
    """
    if sampling is None or sampling.draw is None:
        return
    state = _draws.get(sampling.draw)
    if state is None:
        raise PrivacyError(
            "These batches were drawn ahead, and this process has not loaded the draw. Load them "
            "with `tfdp.data.load_batches`."
        )
    used = {getattr(m.sampling, "draw", None) for m, _ in history.private_runs}
    if sampling.draw in used or state.trains or tf.io.gfile.exists(f"{state.directory}/{TRAINED}"):
        raise PrivacyError(f"{_ONCE} Received: a draw that has trained, in {state.directory}")


def refuse_second_pass(sampling, epochs, steps_per_epoch):
    """Refuses a `fit` that would read a draw from its beginning again, before the first step.

    Args:
        sampling: the `Sampling` of a run that is about to begin, or None.
        epochs: how many this `fit` has.
        steps_per_epoch: as given to `fit`; None for one pass in each epoch.

    Raises:
        PrivacyError: if there are several passes.
    """
    if sampling is None or sampling.draw is None:
        return
    steps = sampling.steps_per_epoch
    if steps_per_epoch is not None and epochs * steps_per_epoch > steps:
        raise PrivacyError(
            f"{_ONCE} Received: epochs={epochs}, steps_per_epoch={steps_per_epoch}, for a draw of "
            f"{steps} steps."
        )
    if steps_per_epoch is not None or epochs <= 1:
        return
    raise PrivacyError(
        f"{_ONCE} Received: epochs={epochs} without `steps_per_epoch`, for a draw of {steps} "
        f"steps; fit(..., epochs={epochs}, steps_per_epoch={steps // epochs}) uses the draw once."
    )


def mark_as_trained(sampling):
    """Called when everything is ready for the first step: from here on, one pass may be read.

    Raises:
        PrivacyError: if another process was faster.
    """
    if sampling is None or sampling.draw is None:
        return
    state = _draws[sampling.draw]
    path = f"{state.directory}/{TRAINED}"
    try:
        if "://" in state.directory:  # no object store makes a file only if there is none
            with tf.io.gfile.GFile(path, "w") as file:
                file.write(sampling.draw)
        else:
            with open(path, "x") as file:
                file.write(sampling.draw)
    except FileExistsError:
        raise PrivacyError(
            f"{_ONCE} Received: a draw that has trained, in {state.directory}"
        ) from None
    state.trains = True


def padded_batch(records, signature, rows, places=None):
    """The leaves of a batch: records, and zeros of weight 0.

    Args:
        records: list of lists of leaves, one for each record, each with a weight as its last leaf.
        signature: nested `tf.TensorSpec` of one record.
        rows: number of rows.
        places: the row of each record; None for the first rows.
    """
    places = range(len(records)) if places is None else places
    leaves = []
    for i, spec in enumerate(tf.nest.flatten(signature)):
        values = np.zeros((rows, *spec.shape), spec.dtype.as_numpy_dtype)
        if spec.dtype == tf.string:
            values.fill(b"")
        for place, record in zip(places, records, strict=True):
            values[place] = np.asarray(record[i])[()]
        leaves.append(values)
    return leaves
