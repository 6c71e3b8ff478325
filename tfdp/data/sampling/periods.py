"""Periods of a stream whose persons are in one of them only, so that their costs do not add up."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import secrets
import threading

import numpy as np

from tfdp.data.sampling.persons import checked_ids
from tfdp.errors import PrivacyError

_CLAIMING = threading.Lock()  # of registries in memory; a file has a lock of its own


class DisjointPeriods:
    """Registers the persons of each period, and refuses a person who is in two.

    Training on one period learns nothing about the persons of other periods. For disjoint periods,
    the ledger therefore states the largest cost, not the sum (parallel composition).

    Example, of weeks that are trained on one after the other:

    ```python
    periods = tfdp.data.DisjointPeriods("periods.npz")
    for name, (x, y, user_ids) in weeks:
        week = periods.period(name)
        batches = tfdp.data.poisson_batches(
            (x, y), 256, privacy_ids=user_ids, max_records_per_unit=10, period=week)
        n = tfdp.data.sampling_of(batches).num_examples
        model.compile(tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(1e-3), budget=tfdp.PrivacyBudget(3, 1e-6), num_examples=n,
            expected_batch_size=256, max_records_per_unit=10, steps=100, period=week))
        model.fit(batches)
    ```

    Formal guarantees: the ids of all periods of one registry are disjoint, as they are written: the
    integer 7 and the string "7" are the same id. You must make sure that one person has one id, in
    all periods. Two copies of a registry that continue separately are two registries under one
    name: keep one file. A restored backup is a copy. A registry in memory cannot be copied or
    pickled, and refuses claims in a forked process.

    Args:
        path: file of the registry, read if it exists. It holds keyed digests of the ids, and is as
            private as they are. `None` keeps the registry in this process only.

    Raises:
        ValueError: if the file is no registry.
    """

    def __init__(self, path: str | os.PathLike | None = None):
        # Of a link, what it leads to: replaced by a file, it would be a second registry.
        self._path = None if path is None else pathlib.Path(os.path.realpath(path))
        self._name, self._owners = secrets.token_hex(8), {}
        self._process = os.getpid()
        with self._locked():
            stored = self._load()
            if stored is None:
                self._save()
            else:
                self._name, self._owners = stored

    def __reduce_ex__(self, protocol):
        # Of copy.copy, copy.deepcopy and pickle alike. A copy would keep the name, and not see who
        # is entered here.
        if self._path is None:
            raise TypeError(
                "A `DisjointPeriods` in memory cannot be copied or pickled: two copies of one "
                "registry do not see each other's persons. Keep it in a file: "
                "DisjointPeriods(path)."
            )
        return super().__reduce_ex__(protocol)

    @property
    def name(self):
        """The random name of the registry, by which ledgers identify its periods."""
        return self._name

    def period(self, name):
        """The `Period` of a name; the same one for the same name.

        Raises:
            ValueError: if the name is no string, empty, or has a NUL character.
        """
        return Period(self, _checked_name(name))

    def claim(self, name, privacy_ids):
        """Adds the persons of a period; called when batches are made.

        Args:
            name: of the period.
            privacy_ids: array of integers or strings; repetitions allowed.

        Raises:
            ValueError: for a wrong name, or wrong ids.
            PrivacyError: if a person is already in another period, if the file is gone or holds
                another registry, or if the registry is in memory and this is a forked process.
                Nothing is added then.
        """
        _checked_name(name)
        if self._path is None and os.getpid() != self._process:
            raise PrivacyError(
                "This `DisjointPeriods` is in the memory of another process, which would not see "
                "persons that are added here. Keep it in a file: DisjointPeriods(path)."
            )
        ids = np.unique(checked_ids(privacy_ids, len(privacy_ids))).tolist()
        key = bytes.fromhex(self._name)
        digests = {hashlib.blake2b(_written(i), digest_size=16, key=key).digest() for i in ids}
        with self._locked():
            owners = self._current_owners()
            elsewhere = sum(owners.get(digest, name) != name for digest in digests)
            if elsewhere:
                raise PrivacyError(
                    f"{elsewhere} of {len(digests)} persons of period {name!r} are in another "
                    "period of this registry. So the periods are not disjoint: for these "
                    "persons, the costs of both add up. Remove their records from one of "
                    "the periods, or remove `period`: costs are then added up."
                )
            self._owners = owners | dict.fromkeys(digests, name)
            self._save()

    def _current_owners(self):
        """Who is where now, by the file if there is one.

        Raises:
            PrivacyError: if the file is gone, or holds another registry.
        """
        if self._path is None:
            return self._owners
        stored = self._load()
        # What this process remembers may lack what others entered: without the file it is nothing.
        if stored is None or stored[0] != self._name:
            found = "is gone" if stored is None else "holds another registry"
            raise PrivacyError(
                f"The file {str(self._path)!r} {found}. It is not the registry that was opened, "
                "so tfdp does not know who is in these periods. Put the file back, or create the "
                "`DisjointPeriods` and its periods again."
            )
        return stored[1]

    @contextlib.contextmanager
    def _locked(self):
        if self._path is None:
            with _CLAIMING:
                yield
            return
        with open(self._path.with_name(self._path.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _load(self):
        """(name, owners) of the file, which another process may have written; None without one."""
        if self._path is None or not self._path.exists():
            return None
        links = self._path.stat().st_nlink
        if links > 1:
            raise PrivacyError(
                f"The file {str(self._path)!r} has {links} names (hard links). tfdp rewrites it "
                "under one name, and the others would continue as a second registry. Keep one "
                "name."
            )
        try:
            with np.load(self._path, allow_pickle=False) as stored:
                name, names = str(stored["registry"]), stored["names"].tolist()
                digests, owners = stored["digests"], stored["owners"].tolist()
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(
                "Argument `path` must name a file of a `tfdp.data.DisjointPeriods`, or a file "
                f"that does not exist yet. Received: path={str(self._path)!r}"
            ) from error
        rows = (row.tobytes() for row in digests)
        return name, {row: names[i] for row, i in zip(rows, owners, strict=True)}

    def _save(self):
        if self._path is None:
            return
        names = list(dict.fromkeys(self._owners.values()))
        places = {name: i for i, name in enumerate(names)}
        digests = np.frombuffer(b"".join(self._owners), np.uint8).reshape(-1, 16)
        written = self._path.with_name(self._path.name + ".new")
        with open(written, "wb") as file:
            np.savez(
                file,
                registry=self._name,
                names=np.array(names, dtype=str),
                digests=digests,
                owners=np.array([places[n] for n in self._owners.values()], np.int64),
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, self._path)
        # The new name is only lasting when the directory is.
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class Period:
    """One period of a `DisjointPeriods`; what samplers and `DPOptimizer` take as `period`.

    Args:
        periods: the `DisjointPeriods`.
        name: of the period.

    Attributes:
        key: (name of the registry, name of the period), as in the ledger.
    """

    def __init__(self, periods: DisjointPeriods, name: str):
        self._periods, self._name = periods, name
        self.key = (periods.name, name)

    def claim(self, privacy_ids):
        """As `DisjointPeriods.claim`."""
        if self.key != (self._periods.name, self._name):  # the ledger has the key
            raise PrivacyError(
                f"The registry of {self!r} has changed since the period was made. Get the period "
                "from the registry again."
            )
        self._periods.claim(self._name, privacy_ids)

    def __repr__(self):
        return f"Period({self._name!r})"


def claimed(period, privacy_ids):
    """The key of a period in which the persons were entered, or None for none.

    Raises:
        ValueError: for a period without `privacy_ids`, or of another kind.
        PrivacyError: if a person is in another period.
    """
    with entered(period, privacy_ids) as key:
        return key


@contextlib.contextmanager
def entered(period, privacy_ids):
    """Context of a release: the period's key; the persons are entered where it ends well.

    A release that is refused enters nobody; one that is made is given out only when its persons
    are entered.

    Raises:
        As `claimed`.
    """
    if period is None:
        yield None
        return
    if not isinstance(period, Period):
        raise ValueError(
            "Argument `period` must be a result of `DisjointPeriods.period(name)`. Received: "
            f"period={period!r}"
        )
    if privacy_ids is None:
        raise ValueError(
            "Argument `period` needs `privacy_ids`: only ids show that nobody is in two periods. "
            "Give records that belong to nobody an id each, with max_records_per_unit=1. "
            f"Received: period={period!r}, privacy_ids=None"
        )
    yield period.key
    period.claim(privacy_ids)


def _checked_name(name):
    # The file is written by numpy, which drops NULs at the end: two periods would become one.
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(
            "Argument `name` must be a string of at least one character, without NUL. Received: "
            f"name={name!r}"
        )
    return name


def _written(one):
    """An id as bytes, alike for the same id as a number, a string and bytes."""
    if isinstance(one, bytes):
        return one
    try:
        return str(one).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a character that is no byte either
        return str(one).encode("utf-8", "surrogatepass")
