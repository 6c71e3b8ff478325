"""Clicks and texts from tables: every value in its place, and no vocabulary from the data."""

import numpy as np
import pytest

import tfdp

CLICKS = "clicked,ad,device,price\n1,a,phone,0.5\n0,b,tv,\n1,a,desktop,2\n0,c,phone,-1\n"


def clicks(path, text=CLICKS, **kwargs):
    path.write_text(text)
    settings = {
        "label": "clicked", "categories": {"ad": 1000, "device": ["phone", "desktop"]},
        "counts": ["price"], "test_fraction": 0.25,
    }  # fmt: skip
    return tfdp.data.load_clicks(path, **{**settings, **kwargs})


def test_clicks_are_hashed_or_found_in_a_public_list(tmp_path):
    data = clicks(tmp_path / "a.csv")
    x, y = data.train
    assert data.vocabulary_sizes == {"ad": 1000, "device": 3} and data.num_examples == 3
    assert x["ad"][0] == x["ad"][2] != x["ad"][1]
    assert x["device"].tolist() == [1, 0, 2] and y.tolist() == [[1], [0], [1]]
    assert x["integers"].tolist() == [[0.5], [0], [2]] and data.test[0]["integers"] == [[-1]]
    assert data.privacy_assumptions == ("the lists of values of device are public",)
    # A hash looks at the value alone, wherever it stands.
    other = clicks(tmp_path / "b.csv", "clicked,ad,device,price\n0,a,tv,1\n", test_fraction=0)
    assert other.train[0]["ad"][0] == x["ad"][0]
    assert clicks(tmp_path / "c.csv", categories={"ad": 5}).privacy_assumptions == ()


def test_clicks_train_a_model(tmp_path):
    data = clicks(tmp_path / "a.csv", test_fraction=0)
    model = tfdp.models.PrivateCTR(
        data.vocabulary_sizes, num_integers=1, hidden_units=(4,),
        privacy_assumptions=data.privacy_assumptions,
    )  # fmt: skip
    scores = model(data.train[0])
    assert scores.shape == (4, 1)
    bare = clicks(tmp_path / "b.csv", counts=(), test_fraction=0)
    assert set(bare.train[0]) == {"ad", "device"}


@pytest.mark.parametrize(
    ("text", "kwargs", "message"),
    [
        (CLICKS.replace("1,a,phone", "2,a,phone"), {}, "'clicked' must hold 0 or 1"),
        (CLICKS.replace("0.5", "secret"), {}, "'price' must hold a finite number"),
        (CLICKS.replace("0.5", "nan"), {}, "'price' must hold a finite number"),
        (CLICKS, {"categories": {}}, "`categories`"),
        (CLICKS, {"categories": {"ad": "abc"}}, "for 'ad'"),
        (CLICKS, {"categories": {"ad": 0}}, "categories"),
        (CLICKS, {"categories": {"add": 5}}, "'add'"),
        (CLICKS, {"test_fraction": 1.0}, "test_fraction"),
    ],
)
def test_what_is_wrong_with_clicks_is_named(tmp_path, text, kwargs, message):
    with pytest.raises(ValueError, match=message) as raised:
        clicks(tmp_path / "a.csv", text, **kwargs)
    assert "secret" not in str(raised.value)


def test_one_row_less_of_clicks_changes_the_training_data_by_one_row_if_as_many_are_held_out():
    rows, held_out = 12, 3

    def trained_on(kept):
        table = {"clicked": np.zeros(rows, int)[kept], "ad": np.arange(rows)[kept]}
        read = tfdp.data.load_clicks(
            table, "clicked", {"ad": range(rows)}, test_fraction=held_out / np.count_nonzero(kept)
        )
        assert len(read.test[1]) == held_out
        return set(read.train[0]["ad"].tolist())

    every = np.arange(rows)
    whole = trained_on(every >= 0)
    assert len(whole) == rows - held_out
    assert all(len(whole ^ trained_on(every != i)) == 1 for i in range(rows))


@pytest.mark.parametrize("loader", ["clicks", "criteo"])
def test_where_clicks_were_parted_is_listed_as_assumed(tmp_path, loader):
    def assumptions(fraction):
        if loader == "clicks":
            read = clicks(tmp_path / "a.csv", test_fraction=fraction)
        else:
            line = "\t".join(["1", *["2"] * 13, *["a"] * 26])
            (tmp_path / "a.txt").write_text("\n".join([line] * 4))
            read = tfdp.data.load_criteo(tmp_path / "a.txt", 9, test_fraction=fraction)
        return tfdp.data.provenance.dataset_tags.assumptions_of(
            tfdp.data.poisson_batches(read.train, 2)
        )

    (assumption,) = set(assumptions(0.25)) - set(assumptions(0.0))
    assert "rows were held out" in assumption


def test_one_text_more_moves_no_other_between_training_and_test():
    texts = np.array([f"text {i}" for i in range(2000)])

    def held_out(kept):
        frame = {"review": texts[kept], "vote": np.zeros(np.count_nonzero(kept), int)}
        return set(tfdp.data.load_texts(frame, "review", "vote", [0, 1]).test[0])

    every = np.ones(len(texts), bool)
    test = held_out(every)
    assert 120 <= len(test) <= 280  # Binomial(2000, 0.1), whose keys are fixed
    for i in (0, 7, 1999):
        assert held_out(every & (texts != texts[i])) == test - {texts[i]}


def test_texts_are_split_by_their_content_alone(tmp_path):
    path = tmp_path / "reviews.csv"
    rows = [f'"text {i}, good",up' for i in range(50)] + [f"text {i},down" for i in range(50)]
    path.write_text("\n".join(["review,vote", *rows]))
    read = tfdp.data.load_texts(path, "review", "vote", ["down", "up"], test_fraction=0.2)
    assert 60 < read.num_examples < 95 and read.classes == ("down", "up")
    texts, labels = read.train
    assert texts.dtype == object and set(labels) == {0, 1} == set(read.test[1])
    for parts in (read.train, read.test):
        for text, label in zip(*parts, strict=True):
            assert ("good" in text) == (label == 1)
    assert len({*read.train[0], *read.test[0]}) == 100
    twice = {"review": np.repeat(texts, 2), "vote": np.repeat(labels, 2)}
    again = tfdp.data.load_texts(twice, "review", "vote", [0, 1], test_fraction=0.5)
    assert not set(again.train[0]) & set(again.test[0])
    with pytest.raises(ValueError, match="labels of 50 rows") as raised:
        tfdp.data.load_texts(path, "review", "vote", ["up", "sideways"])
    assert "down" not in str(raised.value)
    with pytest.raises(ValueError, match="each once"):
        tfdp.data.load_texts(path, "review", "vote", ["up", "up"])


def test_columns_of_frames_may_lack_values():
    frame = {"review": np.array(["a", None, 3.0], object), "vote": np.array([1.0, 0.0, 1.0])}
    data = tfdp.data.load_texts(frame, "review", "vote", [0, 1], test_fraction=0)
    assert data.train[0].tolist() == ["a", "", "3"] and data.train[1].tolist() == [1, 0, 1]


def test_users_of_several_types_are_told_apart_as_they_are_written():
    frame = {
        "user": np.array([7, 7.0, "7", b"7", 8.5], object),
        "item": np.array([1, 2, 3, 1, 2]),
    }
    read = tfdp.data.load_sequences(frame, 4, user="user", item="item")
    assert read.num_users == 2
