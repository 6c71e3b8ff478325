"""Which steps a record takes part in: a function of a secret and of the record's key."""

import hmac

import numpy as np


class Membership:
    """Independent Poisson samples of T steps, drawn record by record.

    Runners run parts of a pipeline again, after failures or because two consumers need them: a
    draw must come out the same. So a record's random numbers are keyed by HMAC-SHA-256 of the
    record's key under a secret of the draw, and nothing else. To whoever lacks the secret they are
    independent of other records' and uniform, as far as HMAC-SHA-256 and Philox are.

    Args:
        secret: bytes from the operating system's entropy; never stored with the draw.
        sampling_probability: q.
        steps: T.
    """

    def __init__(self, secret, sampling_probability, steps):
        self._secret = secret
        self._probability = sampling_probability
        self._steps = steps

    def of(self, key):
        """The steps of a record, and a random number for each, by which a step is ordered.

        The number of steps is Binomial(T, q), and they are uniform among all sets of so many:
        the same as T independent coins.

        Args:
            key: an int, a string or bytes; distinct for distinct records.

        Returns:
            List of (step, number).
        """
        generator = self._generator(encoded_key(key))
        count = generator.binomial(self._steps, self._probability)
        if not count:
            return []
        steps = generator.choice(self._steps, count, replace=False, shuffle=False)
        return list(
            zip(steps.tolist(), generator.integers(2**63, size=count).tolist(), strict=True)
        )

    def records(self, key, step, count, k):
        """Which k of a person's `count` records are in a step: any, all alike, drawn by step.

        Args:
            key: of the person.
            step: one of its steps.
            count: number of its records, which are in an order that does not change.
            k: how many take part at most.

        Returns:
            Sorted list of at most k numbers below `count`.
        """
        if count <= k:
            return list(range(count))
        generator = self._generator(b"records" + step.to_bytes(8, "little") + encoded_key(key))
        return sorted(generator.choice(count, k, replace=False, shuffle=False).tolist())

    def _generator(self, message):
        digest = hmac.digest(self._secret, message, "sha256")
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def encoded_key(key):
    """A key as bytes; different keys, different bytes."""
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, str):
        return b"s" + key.encode()
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return b"i" + str(int(key)).encode()
    raise ValueError(
        "Keys of records must be integers, strings or bytes. "
        f"Received: a key of type {type(key).__name__}"
    )
