"""Whose record each record is, and batches that are drawn by person (MATH.md section 11)."""

import numpy as np

from tfdp._validate import count
from tfdp.accounting.charges.sampling import PERSON
from tfdp.data.sampling.arguments import check_rows_of_persons
from tfdp.data.sampling.randomness import GeneratorSource


class Persons:
    """Records grouped by the person behind them.

    Args:
        privacy_ids: array (n,) of integers or strings: whose record each record is.
        num_records: n.
        max_records_per_unit: k, the most records of one person that take part at once.
        period: key of the period that all of them are in, in which they were entered; or None.

    Attributes:
        num_persons: number of distinct ids; public, as n is.
        max_records_per_unit: k.
        period: as given.

    Raises:
        ValueError: for ids of another number or type, ids without k, or a k that is no count.
    """

    def __init__(self, privacy_ids, num_records, max_records_per_unit, period=None):
        if max_records_per_unit is None:
            raise ValueError(
                "Argument `max_records_per_unit` must be given with `privacy_ids`: it is the "
                "largest number of records of one person in a step. Received: "
                "max_records_per_unit=None"
            )
        self.max_records_per_unit = count("max_records_per_unit", max_records_per_unit)
        self.period = period
        ids = checked_ids(privacy_ids, num_records)
        _, persons = np.unique(ids, return_inverse=True)
        self._records = np.argsort(persons, kind="stable")
        self._counts = np.bincount(persons)
        self._starts = np.cumsum(self._counts) - self._counts
        self.num_persons = len(self._counts)

    @classmethod
    def of(cls, privacy_ids, num_records, max_records_per_unit, period=None):
        """The `Persons`, or None where both arguments are None: each record is a unit.

        Raises:
            ValueError: as the constructor does, or for `max_records_per_unit` alone.
        """
        if privacy_ids is None and max_records_per_unit is None:
            return None
        if privacy_ids is None:
            raise ValueError(
                "Argument `max_records_per_unit` bounds the records of one person and needs "
                "`privacy_ids`, the id of each record's person. Received: "
                f"max_records_per_unit={max_records_per_unit!r}, privacy_ids=None"
            )
        return cls(privacy_ids, num_records, max_records_per_unit, period)

    def rows(self, generator, drawn):
        """Which records of the drawn persons take part, at most k of each, drawn afresh.

        All subsets of k records of a person are equally likely; the order is that of the data.

        Args:
            generator: `numpy.random.Generator`.
            drawn: int array (m,) of distinct persons, from 0.

        Returns:
            int64 (r,) indices of records, and int64 (r,) their places in m·k rows, of which the
            k·i-th to the (k·i + k − 1)-th are those of the i-th person.
        """
        k, counts = self.max_records_per_unit, self._counts[drawn]
        slots = np.arange(k)
        chosen = np.broadcast_to(slots, (len(drawn), k)).copy()
        many = np.flatnonzero(counts > k)
        chosen[many] = _subsets(generator, counts[many], k)
        present = slots < np.minimum(counts, k)[:, np.newaxis]
        records = self._records[(self._starts[drawn][:, np.newaxis] + chosen)[present]]
        return records, np.flatnonzero(present)

    def kept(self, generator):
        """The records that may be drawn at all: at most k of each person, a uniform subset.

        Args:
            generator: `numpy.random.Generator`.

        Returns:
            int64 (N,) indices of records, persons one after another.
        """
        k = self.max_records_per_unit
        many = np.flatnonzero(self._counts > k)
        keeps = np.repeat(self._counts <= k, self._counts)
        chosen = _subsets(generator, self._counts[many], k)
        keeps[self._starts[many][:, np.newaxis] + chosen] = True
        return self._records[keeps]

    def matrices(self, arrays, fill=0):
        """One row for each person: what at most k of its records hold, the same of each array.

        Args:
            arrays: list of int arrays (n, L).
            fill: what stands where a person has no record.

        Returns:
            List of arrays (num_persons, k·L).

        Raises:
            ValueError: if all persons take too many rows.
        """
        check_rows_of_persons(self.num_persons, self.max_records_per_unit)
        # Which records does not have to be secret: a release is private whichever they are.
        records, places = self.rows(GeneratorSource().fresh(), np.arange(self.num_persons))
        found = []
        for array in arrays:
            rows = self.num_persons * self.max_records_per_unit
            matrix = np.full((rows, array.shape[1]), fill, array.dtype)
            matrix[places] = array[records]
            found.append(matrix.reshape(self.num_persons, -1))
        return found

    @property
    def details(self):
        """What the ledger entry of a release about persons says of them."""
        period = {} if self.period is None else {"period": list(self.period)}
        return {"unit": PERSON, "max_records_per_unit": self.max_records_per_unit, **period}


def checked_ids(privacy_ids, num_records):
    """The ids as an array (n,) of integers or strings.

    Raises:
        ValueError: for another number of ids, other types, missing ones, or strings with a NUL.
    """
    # What a masked array hides would be taken for an id; and among strings numpy would make one of
    # anything, a missing value included.
    unclear = np.ma.is_masked(privacy_ids) or _is_mixed(privacy_ids)
    ids = np.asarray(None if unclear else privacy_ids)
    if ids.dtype == object and ids.ndim == 1:  # of pandas, and byte strings
        kinds = {type(one) for one in ids.tolist()}
        if len(kinds) == 1 and kinds <= {str, bytes, int}:
            privacy_ids = ids.tolist()
            ids = np.asarray(privacy_ids)
    if ids.shape != (num_records,) or ids.dtype.kind not in "iuSU":
        raise ValueError(
            "Argument `privacy_ids` must hold one integer or string for each of the "
            f"{num_records} records, the id of its person, with no value missing. Received: an "
            f"array of shape {ids.shape}, dtype {ids.dtype}"
        )
    if ids.dtype.kind in "SU" and _any_nul(privacy_ids, ids):
        raise ValueError(
            "Argument `privacy_ids` must not contain NUL characters: numpy drops them at the end "
            "of a string, so two persons could become one. Received: an id with a NUL"
        )
    return ids


def _is_mixed(privacy_ids):
    """Whether a list holds strings beside what is neither a string nor an integer."""
    if not isinstance(privacy_ids, (list, tuple)):
        return False
    kinds = set(map(type, privacy_ids))
    if all(issubclass(kind, bytes) for kind in kinds):
        return False
    texts = any(issubclass(kind, str | bytes) for kind in kinds)
    # An integer and the string of its digits are the same id (`DisjointPeriods`).
    alike = (issubclass(kind, str | int | np.integer) and kind is not bool for kind in kinds)
    return texts and not all(alike)


def _any_nul(given, ids):
    """Whether a string has a NUL, as it was given; an array lost those at the end before."""
    if isinstance(given, np.ndarray) and given.dtype.kind in "SU":
        code = np.uint8 if ids.dtype.kind == "S" else np.uint32
        if not ids.size or not ids.dtype.itemsize:
            return False
        codes = np.ascontiguousarray(ids).view(code).reshape(len(ids), -1)
        return bool(np.any((codes[:, :-1] == 0) & (codes[:, 1:] != 0)))
    texts = [one for one in given if isinstance(one, str | bytes)]
    if all(isinstance(one, str) for one in texts):
        return "\0" in "".join(texts)
    return any((b"\0" if isinstance(one, bytes) else "\0") in one for one in texts)


def _subsets(generator, counts, k):
    """(m, k) distinct numbers below each of `counts`, sorted: uniform subsets (Floyd 1987)."""
    chosen = np.full((len(counts), k), -1, np.int64)
    for i in range(k if len(counts) else 0):  # k may be huge where nobody has more records
        last = counts - k + i
        drawn = generator.integers(0, last + 1)
        taken = (chosen[:, :i] == drawn[:, np.newaxis]).any(axis=1)
        chosen[:, i] = np.where(taken, last, drawn)
    return np.sort(chosen, axis=1)


def units_of(records, privacy_ids, max_records_per_unit):
    """Of a data set: its `Persons` or None, and the number of its units, persons or records.

    Raises:
        ValueError: as `Persons.of` does.
    """
    persons = Persons.of(privacy_ids, records.num_examples, max_records_per_unit)
    return persons, records.num_examples if persons is None else persons.num_persons
