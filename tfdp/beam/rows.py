"""Records of a draw as bytes, in the hands of a runner."""

import struct

import numpy as np
import tensorflow as tf

_PLACE = struct.Struct("<QQ")  # step, and the random number that orders it
_SIZE = struct.Struct("<Q")


def encoded_row(leaves):
    """The leaves of one record as bytes: a string by its length and itself."""
    parts = []
    for leaf in leaves:
        if leaf.dtype.kind in "SUO":
            for one in leaf.ravel():
                text = one.encode() if isinstance(one, str) else bytes(one)
                parts += [_SIZE.pack(len(text)), text]
        else:
            parts.append(leaf.astype(leaf.dtype.newbyteorder("="), copy=False).tobytes())
    return b"".join(parts)


def decoded_row(row, specs):
    """The inverse of `encoded_row`.

    Args:
        row: bytes.
        specs: `tf.TensorSpec` of each leaf.
    """
    leaves, place = [], 0
    for spec in specs:
        number = spec.shape.num_elements()
        if spec.dtype == tf.string:
            texts = np.empty(number, object)
            for i in range(number):
                (size,) = _SIZE.unpack_from(row, place)
                place += _SIZE.size
                texts[i] = row[place : place + size]
                place += size
            leaves.append(texts.reshape(spec.shape))
        else:
            leaves.append(np.frombuffer(row, spec.dtype.as_numpy_dtype, number, place))
            leaves[-1] = leaves[-1].reshape(spec.shape)
            place += leaves[-1].nbytes
    return leaves


def packed(step, number, rows):
    """What a record, or a person, gives to a step: the step, a random number, and its rows."""
    sized = [part for row in rows for part in (_SIZE.pack(len(row)), row)]
    return b"".join([_PLACE.pack(step, number), *sized])


def unpacked(one):
    """The inverse of `packed`."""
    step, number = _PLACE.unpack_from(one)
    rows, place = [], _PLACE.size
    while place < len(one):
        (size,) = _SIZE.unpack_from(one, place)
        place += _SIZE.size
        rows.append(one[place : place + size])
        place += size
    return step, number, rows
