"""Sequences from tables: what stands where, in which order, and who vouches for the vocabulary."""

import gzip

import numpy as np
import pytest

import tfdp
from tfdp.data.datasets.columns import read_columns

ROWS = [  # customer, sku, time
    ("ann", "tea", 30), ("bob", "jam", 10), ("ann", "jam", 10), ("ann", "rye", 20),
    ("bob", "tea", 40), ("bob", "oil", 20), ("bob", "rye", 30),
]  # fmt: skip
CATALOGUE = ("tea", "rye", "jam")  # ids 1, 2, 3; no oil
#: Histories in time order: ann jam rye tea, bob jam rye tea (and oil, which the catalogue lacks).
TRAIN = [[[0, 0, 3]] * 2, [[0, 0, 2]] * 2]
TEST = [[[0, 3, 2]] * 2, [1, 1]]
NAMES = {"user": "customer", "item": "sku", "timestamp": "time"}


def csv(path, rows=ROWS, header="customer,sku,time", delimiter=","):
    lines = [delimiter.join(map(str, row)) for row in rows]
    path.write_text("\n".join(([header] if header else []) + lines) + "\n")
    return path


def check(data):
    np.testing.assert_array_equal(data.train, TRAIN)
    for found, expected in zip(data.held_out, TEST, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert (data.num_users, data.num_items, data.items) == (2, 3, CATALOGUE)
    assert data.train.origin.assumptions == ("the catalogue of items is public",)


def load(data, **kwargs):
    return tfdp.data.load_sequences(data, 3, **{**NAMES, "items": CATALOGUE, **kwargs})


def test_a_file_with_a_header_and_one_without(tmp_path):
    check(load(csv(tmp_path / "a.csv")))
    check(load(csv(tmp_path / "a.tsv", header="customer\tsku\ttime", delimiter="\t")))
    check(load(csv(tmp_path / "b.csv", header="customer;sku;time", delimiter=";"), delimiter=";"))
    places = {"user": 0, "item": 1, "timestamp": 2}
    check(load(csv(tmp_path / "a.dat", header="", delimiter="::"), delimiter="::", **places))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    check(load(tmp_path / "a.csv.gz"))


def test_a_frame_a_dict_and_a_parquet_file(tmp_path):
    table = dict(zip(NAMES.values(), map(np.array, zip(*ROWS, strict=True)), strict=True))
    table["customer"] = table["customer"].astype(object)
    check(load(table))

    class Frame:  # what pandas, polars and pyarrow have in common
        columns = list(NAMES.values())
        __getitem__ = staticmethod(table.__getitem__)

    check(load(Frame()))
    with pytest.raises(ValueError, match=r"columns \['buyer', 'sku', 'time'\].*'customer'"):
        load(table, user="buyer")
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    check(load(tmp_path / "a.parquet"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'tfdp\[parquet\]'"):
        load(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "times",
    [
        lambda t: f"2024-05-{t}", lambda t: f"2024-05-{t}T12:00:00Z", lambda t: f"{t}.5",
        lambda t: np.datetime64("2024-01-01") + int(t), float,
    ],
)  # fmt: skip
def test_rows_are_ordered_by_numbers_and_by_dates(times):
    columns = {
        "customer": [r[0] for r in ROWS], "sku": [r[1] for r in ROWS],
        "time": [times(r[2]) for r in ROWS],
    }  # fmt: skip
    if isinstance(columns["time"][0], str):  # as they come from a file, where no month has 40 days
        columns["time"] = [t.replace("-40", "-31") for t in columns["time"]]
    check(load(columns))


def test_without_a_time_the_order_of_the_rows_counts(tmp_path):
    ordered = sorted(ROWS, key=lambda row: row[2])
    check(load(csv(tmp_path / "a.csv", ordered), timestamp=None))


def test_a_line_for_each_user(tmp_path):
    path = tmp_path / "histories.txt"
    path.write_text("jam rye tea\njam oil rye tea\n")
    check(tfdp.data.load_histories(path, 3, items=CATALOGUE))
    path.write_text("ann,jam,rye,tea\nbob,jam,oil,rye,tea\n")
    check(tfdp.data.load_histories(path, 3, items=CATALOGUE, delimiter=",", first_is_user=True))
    path.write_text("4 2\n\n7\n")
    data = tfdp.data.load_histories(path, 2)
    assert (data.num_users, data.num_items) == (3, 7)
    np.testing.assert_array_equal(data.held_out[1], [2, 0, 0])
    with pytest.raises(ValueError, match="from 1 to"):
        path.write_text("0 1\n")
        tfdp.data.load_histories(path, 2)


def test_names_in_the_data_never_become_a_vocabulary_unasked(tmp_path):
    path = csv(tmp_path / "a.csv")
    with pytest.raises(ValueError, match='`items` must be given.*items="from_data"'):
        load(path, items=None)
    data = load(path, items="from_data")
    assert data.items == ("jam", "oil", "rye", "tea")  # sorted: not in the order of the data
    model = tfdp.models.TransitionRecommender(
        tfdp.data.private_transitions(data.train, noise_multiplier=2.0, rounds=1)
    )
    assert "which item ids occur in the data, and how many" in str(model.privacy_statement(0.1))
    with pytest.raises(ValueError, match="every item once"):
        load(path, items=["tea", "tea"])
    with pytest.raises(ValueError, match="`items` must be a sequence"):
        load(path, items="tea")
    with pytest.raises(ValueError, match="num_items=4"):
        load(path, num_items=4)


def test_a_user_whose_items_are_all_unknown_is_still_a_record(tmp_path):
    data = load(csv(tmp_path / "a.csv", [*ROWS, ("cid", "oil", 1)]))
    assert data.num_users == 3 and data.held_out[1].tolist() == [1, 1, 0]


def test_integers_are_ids_unless_they_are_names(tmp_path):
    rows = [(7, 3, 1), (7, 900_000_000, 2), (8, 3, 1)]
    path = csv(tmp_path / "a.csv", rows)
    data = load(path, items="from_data")
    assert data.num_items == 2 and data.items == ("3", "900000000")
    assert load(path, items=None, num_items=10**9).num_items == 10**9
    assert load(path, items=[900_000_000, 3]).held_out[1].tolist() == [1, 0]
    with pytest.raises(ValueError, match="at least 1.*from 0 on"):
        load(csv(path, [(1, 0, 1)]), items=None)


@pytest.mark.parametrize(
    ("rows", "kwargs", "message"),
    [
        ([("ann", "tea")], {}, "line 2: 2 fields"),
        ([("ann", "tea", 1), ("bob", "tea", 1, 1)], {}, "line 3: 4 fields"),
        ([("ann", "", 1)], {}, "'sku' must have a value.*1 rows"),
        ([("ann", "tea", "soon")], {}, "`timestamp`"),
        ([("ann", "tea", "nan")], {}, "`timestamp`"),
        ([], {}, "an empty file"),
        ([("ann", "tea", 1)], {"item": "skus"}, r"columns \['customer', 'skus', 'time'\]"),
        ([("ann", "tea", 1)], {"item": None}, "both name a column"),
        ([("ann", "tea", 1)], {"item": 1}, "all be names"),
        ([("ann", "tea", 1)], {"user": None, "item": None}, "must name the columns"),
    ],
)
def test_what_is_wrong_is_named_and_no_record_shown(tmp_path, rows, kwargs, message):
    path = csv(tmp_path / "a.csv", rows)
    with pytest.raises(ValueError, match=message) as raised:
        load(path, **kwargs)
    assert "ann" not in str(raised.value) and "soon" not in str(raised.value)


def test_quotes_and_other_alphabets(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('\ufeffsku,customer\n"tea, ""green""",Zoë\n', encoding="utf-8")
    (items, users), _ = read_columns(path, ["sku", "customer"])
    assert (items.tolist(), users.tolist()) == (['tea, "green"'], ["Zoë"])


def test_a_recommender_is_ranked_by_evaluate():
    data = tfdp.data.synthetic_sequences(60, 12, max_length=6, min_length=3)
    # So little noise that pairs survive: without any, all items rank alike, and last.
    release = tfdp.data.private_transitions(data.train, noise_multiplier=0.01, rounds=1)
    for exclude_seen in (False, True):
        model = tfdp.models.TransitionRecommender(release, exclude_seen=exclude_seen)
        model.compile(
            metrics=[tfdp.metrics.NDCG(5), tfdp.metrics.HitRate(5)], run_eagerly=exclude_seen
        )
        results = model.evaluate(*data.held_out, verbose=0, return_dict=True)
        expected = tfdp.metrics.NDCG(5)
        expected.update_state(data.held_out[1], model.score_next(data.held_out[0]))
        assert set(results) == {"ndcg_5", "hit_rate_5"}
        assert results["ndcg_5"] == pytest.approx(float(expected.result()), rel=1e-5)
        assert 0 < results["ndcg_5"] < 1
        assert model.ledger.num_examples == 60 and len(model.ledger) == 1
    for optimizer in ("adam", tfdp.optimizers.DPOptimizer("adam", noise_multiplier=1.0)):
        trained = tfdp.models.SequenceBaseline(12, 6, dim=4)
        trained.compile(optimizer, metrics=[tfdp.metrics.NDCG(5)], run_eagerly=True)
        results = trained.evaluate(*data.held_out, verbose=0, return_dict=True)
        expected = tfdp.metrics.NDCG(5)
        expected.update_state(data.held_out[1], trained.score_next(data.held_out[0]))
        assert results == {"ndcg_5": pytest.approx(float(expected.result()), rel=1e-5)}
        every = trained.evaluate(*data.test, verbose=0, return_dict=True)
        assert every["ndcg_5"] == pytest.approx(results["ndcg_5"], rel=1e-5)
        assert every["loss"] > 0
