"""Nobody is in two periods of one registry, whoever asks."""

import concurrent.futures
import copy
import os
import pickle
import stat
import time

import numpy as np
import pytest

import tfdp
from tfdp.accounting import Ledger, LedgerEntry
from tfdp.data import DisjointPeriods
from tfdp.errors import PrivacyError

X = np.arange(6.0)


def batches(period, ids, **kwargs):
    given = {"privacy_ids": ids, "max_records_per_unit": 2, "period": period, **kwargs}
    return tfdp.data.poisson_batches((X, X), 2, **given)


def test_batches_know_their_period_and_enter_their_persons(tmp_path):
    periods = DisjointPeriods(tmp_path / "periods.npz")
    first = batches(periods.period("one"), [1, 1, 2, 2, 3, 3])
    assert tfdp.data.sampling_of(first.prefetch(1)).period == (periods.name, "one")
    batches(periods.period("one"), [3, 3, 4, 4, 5, 5])  # the same period may have more
    with pytest.raises(PrivacyError, match="2 of 3 persons"):
        batches(periods.period("two"), [4, 4, 5, 5, 6, 6])
    # Of what was refused nothing was entered.
    batches(periods.period("three"), [6, 6, 7, 7, 8, 8])
    with pytest.raises(PrivacyError, match="1 of 2 persons"):
        tfdp.data.shuffled_epochs(
            (X[:2], X[:2]), 1, privacy_ids=[8, 9], max_records_per_unit=1,
            period=periods.period("two"),
        )  # fmt: skip


@pytest.mark.parametrize(
    "sampler",
    [
        lambda data, **given: tfdp.data.poisson_batches(data, 2, max_records_per_unit=2, **given),
        lambda data, **given: tfdp.data.allocated_epochs(data, 2, max_records_per_unit=2, **given),
        lambda data, **given: tfdp.data.shuffled_epochs(data, 2, max_records_per_unit=2, **given),
        lambda data, **given: tfdp.data.cyclic_poisson_batches(
            data, 1, 2, max_records_per_unit=2, **given
        ),
        lambda data, **given: tfdp.data.stream_batches(
            data, 2, max_participations=2, min_separation=1, **given
        ),
    ],
)
def test_batches_of_every_kind_know_their_period_and_their_persons(sampler):
    periods = DisjointPeriods()
    drawn = sampler((X, X), privacy_ids=[1, 1, 2, 2, 3, 3], period=periods.period("one"))
    sampling = tfdp.data.sampling_of(drawn)
    assert sampling.period == (periods.name, "one") and sampling.num_examples == 3
    assert sampling.max_records_per_unit == (1 if sampling.kind == "stream" else 2)
    with pytest.raises(PrivacyError, match="3 of 3 persons"):
        periods.claim("two", [1, 2, 3])


def test_a_call_that_is_refused_enters_nobody():
    periods, ids = DisjointPeriods(), [1, 1, 2, 2, 3, 3]
    given = {"privacy_ids": ids, "max_records_per_unit": 2, "period": periods.period("one")}
    for call in (
        lambda: tfdp.data.poisson_batches((X, X), 0, **given),
        lambda: tfdp.data.poisson_batches((X, X), 2, 1, **given),
        lambda: tfdp.data.poisson_batches((X, X), 2, steps_per_epoch=0, **given),
        lambda: tfdp.data.allocated_epochs((X, X), 3, max_batch_size=0, **given),
        lambda: tfdp.data.allocated_epochs((X, X), 0, **given),
        lambda: tfdp.data.shuffled_epochs((X, X), 9, **given),
        lambda: tfdp.data.shuffled_epochs((X, X), 2, -1, **given),
    ):
        with pytest.raises(ValueError):
            call()
    batches(periods.period("two"), ids)


@pytest.mark.parametrize("again", [["7", "x"], [b"7", b"x"], np.array([7, 9]), np.array([7], "O")])
def test_an_id_is_the_same_as_number_and_string(again):
    periods = DisjointPeriods()
    periods.claim("one", np.array([7, 8]))
    with pytest.raises(PrivacyError):
        periods.claim("two", again)


def test_a_registry_is_one_in_all_processes(tmp_path):
    path = tmp_path / "periods.npz"
    one, other = DisjointPeriods(path), DisjointPeriods(str(path))
    one.claim("first", ["a", "b"])
    assert other.name == one.name and one.period("first").key == other.period("first").key
    with pytest.raises(PrivacyError):
        other.claim("second", ["b"])
    other.claim("second", ["c"])
    with pytest.raises(PrivacyError):
        one.claim("first", ["c"])
    assert DisjointPeriods().name != DisjointPeriods().name
    path.unlink()
    DisjointPeriods(path)
    period = one.period("third")
    for _ in range(2):  # refused again, too
        with pytest.raises(PrivacyError, match="another registry"):
            period.claim(["d"])
    assert one.name == period.key[0] != DisjointPeriods(path).name
    path.write_text("something else")
    with pytest.raises(ValueError, match="path"):
        DisjointPeriods(path)


@pytest.mark.parametrize("in_file", [False, True])
def test_persons_that_were_entered_before_stay_entered(tmp_path, in_file):
    periods = DisjointPeriods(tmp_path / "periods.npz" if in_file else None)
    for name, person in (("one", "a"), ("one", "b"), ("two", "c")):
        periods.claim(name, [person])
    for person in "abc":
        with pytest.raises(PrivacyError, match="1 of 1 persons"):
            periods.claim("three", [person])


def test_what_is_entered_is_on_the_disk_before_the_file_is_replaced(tmp_path, monkeypatch):
    path, done = tmp_path / "periods.npz", []
    periods = DisjointPeriods(path)
    replace = os.replace

    def replaced(*paths):
        done.append("replaced")
        replace(*paths)

    def synced(file):
        found = os.fstat(file)
        done.append("directory" if stat.S_ISDIR(found.st_mode) else found.st_size)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    periods.claim("one", ["a"])
    assert done == [path.stat().st_size, "replaced", "directory"]  # all bytes of it


def test_bytes_that_are_no_text_are_the_same_id_as_their_string():
    periods = DisjointPeriods()
    periods.claim("one", [b"\xff"])
    with pytest.raises(PrivacyError):
        periods.claim("two", [os.fsdecode(b"\xff")])  # with a surrogate, as of file names
    periods.claim("two", ["?"])


def test_ids_are_not_written_down(tmp_path):
    paths, digests = [tmp_path / "periods.npz", tmp_path / "others.npz"], []
    for path in paths:
        DisjointPeriods(path).claim("first", ["somebody with a name"])
        assert b"somebody" not in path.read_bytes()
        with np.load(path) as stored:
            digests.append(stored["digests"].tobytes())
    assert digests[0] != digests[1]  # two files do not show that they have a person in common


def test_a_period_needs_a_registry_and_ids():
    assert tfdp.data.sampling_of(batches(None, [1, 1, 2, 2, 3, 3])).period is None
    with pytest.raises(ValueError, match="DisjointPeriods"):
        batches("one", [1, 1, 2, 2, 3, 3])
    with pytest.raises(ValueError, match="needs `privacy_ids`"):
        batches(DisjointPeriods().period("one"), None, max_records_per_unit=None)
    for wrong in ("", None, 7):
        with pytest.raises(ValueError, match="name"):
            DisjointPeriods().period(wrong)


def test_a_file_that_is_gone_is_not_made_anew_from_memory(tmp_path):
    path = tmp_path / "periods.npz"
    one, other = DisjointPeriods(path), DisjointPeriods(path)
    one.claim("first", ["a"])
    path.unlink()
    with pytest.raises(PrivacyError, match="is gone"):
        other.claim("second", ["a"])


def test_a_period_knows_its_registry_by_name():
    periods = DisjointPeriods()
    period = periods.period("one")
    periods.__init__()
    with pytest.raises(PrivacyError, match="has changed since"):
        period.claim(["a"])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_registry_in_memory_has_no_copies(copied, tmp_path):
    with pytest.raises(TypeError, match="file"):
        copied(DisjointPeriods())
    assert copied(DisjointPeriods(tmp_path / "periods.npz"))  # sees the same file


def test_a_registry_in_memory_has_no_forks(monkeypatch, tmp_path):
    memory, file = DisjointPeriods(), DisjointPeriods(tmp_path / "periods.npz")
    memory.claim("one", ["a"])
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    with pytest.raises(PrivacyError, match="another process"):
        memory.claim("one", ["b"])
    file.claim("one", ["b"])


@pytest.mark.parametrize("in_file", [False, True])
def test_threads_enter_persons_one_after_the_other(monkeypatch, tmp_path, in_file):
    periods = DisjointPeriods(tmp_path / "periods.npz" if in_file else None)
    owners = DisjointPeriods._current_owners

    def slowly(self):
        found = owners(self)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(DisjointPeriods, "_current_owners", slowly)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        claims = [threads.submit(periods.claim, name, ["a", "b"]) for name in ("one", "two")]
    refused = [claim.exception() for claim in claims]
    assert sorted(type(error) for error in refused if error) == [PrivacyError]


def test_ids_may_hold_half_characters():
    periods = DisjointPeriods()
    periods.claim("one", ["\ud800x"])
    with pytest.raises(PrivacyError):
        periods.claim("two", ["\ud800x", "y"])


def test_names_and_ids_have_no_nul():
    periods = DisjointPeriods()
    for refused in (periods.period, lambda name: periods.claim(name, ["a"])):
        with pytest.raises(ValueError, match="NUL"):
            refused("w\0")
    strings = ["w\0", "w"]
    mixed = [7, "w\0"]
    for ids in (strings, [b"w\0", b"w"], np.array(strings, "O"), mixed, np.array(["a\0b", "a"])):
        with pytest.raises(ValueError, match="NUL"):
            periods.claim("one", ids)
    for ids in (["w", "wide"], [b"w", b"wide"], np.array(["w", "wide"])[::-1], [7, 0]):
        periods.claim("one", ids)


IDS = np.array([[1, 2], [2, 3], [3, 1]])
RELEASES = {
    "frequency": lambda **by: tfdp.data.private_frequency(
        (IDS, IDS), 1.0, 1e-6, "gaussian", 3, **by
    ),
    "transitions": lambda **by: tfdp.data.private_transitions(
        (IDS, IDS), epsilon=1.0, delta=1e-6, num_items=3, **by
    ),
    "top-k": lambda **by: tfdp.selection.private_top_k({"f": IDS}, {"f": 4}, 1, 1.0, **by),
    "FEST": lambda **by: tfdp.selection.FEST(1, epsilon=1.0).adapt({"f": IDS}, {"f": 4}, **by),
}


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_of_releases_of_disjoint_periods_the_costliest_counts(release):
    periods = DisjointPeriods()

    def entry(name, ids, **kwargs):
        period = None if name is None else periods.period(name)
        made = release(privacy_ids=ids, max_records_per_unit=1, period=period, **kwargs)
        return LedgerEntry(made.label, made.event, 1, made.details)

    one, two, again = entry("1", [1, 2, 3]), entry("2", [4, 5, 6]), entry("1", [1, 2, 3])
    everywhere = entry(None, [1, 2, 3])
    stated = tfdp.accounting.privacy_statement(Ledger([one]), delta=1e-6)
    assert f"{one.label}, period '1'" in str(stated)
    alone = Ledger([one]).epsilon(1e-6)
    assert Ledger([one, two]).epsilon(1e-6) == alone <= 1.0 + 1e-9
    for other in (again, everywhere):
        both = Ledger([one, two, other]).epsilon(1e-6)
        assert both == Ledger([one, other]).epsilon(1e-6) > 1.2 * alone
    with pytest.raises(PrivacyError, match="1 of 3 persons"):
        entry("2", [7, 8, 3])
    with pytest.raises(ValueError, match="`period` needs `privacy_ids`"):
        release(period=periods.period("3"))


REFUSED = {
    "frequency": lambda **by: tfdp.data.private_frequency(
        (IDS, IDS), 1.0, 2.0, "gaussian", 3, **by
    ),
    "transitions": lambda **by: tfdp.data.private_transitions(
        (IDS, IDS), epsilon=1.0, delta=2.0, num_items=3, **by
    ),
    "top-k": lambda **by: tfdp.selection.private_top_k(
        {"f": IDS}, {"f": 4}, 1, 1.0, max_values=0, **by
    ),
    "clicks": lambda **by: tfdp.data.private_click_statistics(
        ({"f": IDS[:, 0]}, np.array([0, 1, 1])), {"f": 4}, epsilon=1.0, delta=2.0, **by
    ),
}


@pytest.mark.parametrize("release", REFUSED.values(), ids=REFUSED)
def test_a_release_that_is_refused_enters_nobody(release):
    periods = DisjointPeriods()
    with pytest.raises(ValueError):
        release(privacy_ids=[1, 2, 3], max_records_per_unit=1, period=periods.period("1"))
    periods.claim("2", [1, 2, 3])  # they are free


def test_clicks_enter_their_persons():
    periods, train = DisjointPeriods(), ({"f": IDS[:, 0]}, np.array([0, 1, 1]))
    tfdp.data.private_click_statistics(
        train, {"f": 4}, epsilon=1.0, delta=1e-6, privacy_ids=[1, 2, 3], max_records_per_unit=1,
        period=periods.period("1"),
    )  # fmt: skip
    with pytest.raises(PrivacyError, match="3 of 3 persons"):
        periods.claim("2", [1, 2, 3])


def test_other_names_of_a_file_are_no_other_registries(tmp_path):
    path, link = tmp_path / "periods.npz", tmp_path / "current.npz"
    one = DisjointPeriods(path)
    link.symlink_to(path)
    linked = DisjointPeriods(link)
    linked.claim("first", ["a"])
    assert link.is_symlink()
    with pytest.raises(PrivacyError):
        one.claim("second", ["a"])
    (tmp_path / "hard.npz").hardlink_to(path)
    for claim in (lambda: one.claim("first", ["b"]), lambda: DisjointPeriods(path)):
        with pytest.raises(PrivacyError, match="hard links"):
            claim()
