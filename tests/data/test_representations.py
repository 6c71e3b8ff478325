"""Releases: drawn once, charged once, and private whatever is done with them."""

import dp_accounting
import keras
import numpy as np
import pytest

import tfdp
from tfdp.accounting import PrivacyBudget, epsilon
from tfdp.data.provenance.dataset_tags import releases_of
from tfdp.data.provenance.origins import Origin, OriginArray
from tfdp.data.provenance.released_datasets import released_by
from tfdp.data.releases import representation_release, representations
from tfdp.data.releases.representation_release import free_path

N = 200


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, N).astype(np.int32)
    h = generator.normal(size=(N, 4)) + 2 * y[:, None] * np.array([1.0, 0, 0, 0])
    return h.astype(np.float32), y


def head():
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_every_row_is_clipped_and_gets_noise_of_its_own():
    # n rows of norm 10, C = 2, sigma = 1.5: the mean is the clipped row to 5 standard errors, the
    # deviation 3.0 to 1% (7 standard errors, each 1/√(2n) of it).
    n = 250_000
    rows = np.tile(np.array([[6.0, 8.0]], np.float32), (n, 1))
    release = tfdp.data.release_once(rows, np.zeros(n), 2.0, noise_multiplier=1.5)
    np.testing.assert_allclose(release.features.mean(axis=0), [1.2, 1.6], atol=5 * 3 / n**0.5)
    np.testing.assert_allclose(release.features.std(axis=0, dtype=np.float64), 3.0, rtol=0.01)
    assert len(np.unique(release.features)) > 0.96 * 2 * n  # the others are equal as float32


def test_rows_that_are_not_finite_become_zeros_and_short_ones_stay():
    # Hardly any noise: what is left is the clipped rows.
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 0.1], [0.1, -np.inf], [0.0, 0.0]])
    release = tfdp.data.release_once(rows, np.zeros(5), 1.0, noise_multiplier=1e-9)
    clipped = [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(release.features, clipped, atol=1e-6)


@pytest.mark.thorough
def test_any_number_of_epochs_costs_one_gaussian_and_a_second_release_another(data, tmp_path):
    release = tfdp.data.release_once(
        *data, clip_norm=1.0, budget=PrivacyBudget(3.0, 1e-3), path=tmp_path / "r.npz"
    )
    model = head()
    model.fit(release.batches(64), epochs=3, verbose=0)
    # cached, repeated, shuffled again or mapped: it stays released data
    again = tfdp.data.Release.load(tmp_path / "r.npz")
    np.testing.assert_array_equal(again.features, release.features)
    twice = again.batches(64).cache().repeat(2).shuffle(3).map(lambda x, y: (2.0 * x, y))
    model.fit(twice, verbose=0)
    statement = model.privacy_statement(1e-3)
    assert 0.99 * 3 < statement.epsilon <= 3 and statement.adjacency == "zero_out"
    assert "labels" in " ".join(statement.not_covered) and len(model.ledger) == 1
    second = tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0)
    model.fit(second.batches(64), verbose=0)
    both = dp_accounting.ComposedDpEvent([release.entry.event, second.entry.event])
    assert model.privacy_statement(1e-3).epsilon == pytest.approx(epsilon(both, 1e-3), rel=1e-3)
    # and what did not come from a release is not private
    x, y = data
    model.train_on_batch(x[:8], y[:8])
    assert model.privacy_statement(1e-3).epsilon == np.inf


def test_the_file_carries_its_statement_and_is_never_overwritten(data, tmp_path):
    path = tmp_path / "r.npz"
    release = tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0, path=path)
    with np.load(path) as saved:
        assert '"epsilon"' in str(saved["privacy_statement"]) and "labels" in str(
            saved["privacy_statement"]
        )
    for again in (
        lambda: tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0, path=path),
        lambda: release.save(path),
    ):
        with pytest.raises(ValueError, match="`path`"):
            again()
    assert tfdp.data.Release.load(path).entry == release.entry


def test_numbers_of_a_release_carry_its_charge_into_another_training(data, tmp_path):
    made = tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0, path=tmp_path / "r.npz")
    labels = np.roll(data[1], 1).astype("float32")  # of another question to the same people
    for release in (made, tfdp.data.Release.load(tmp_path / "r.npz")):
        drawn = tfdp.data.poisson_batches((release.features, labels), 20, steps_per_epoch=1)
        assert releases_of(drawn) == (release.entry,)
        assert Origin.of(release.targets[:3]).releases == (release.entry,)
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    model.compile(
        tfdp.optimizers.DPOptimizer(
            "sgd", noise_multiplier=1.0, num_examples=N, expected_batch_size=20
        ),
        loss="mse",
    )
    model.fit(drawn, verbose=0)
    assert release.entry in model.ledger.entries and len(model.ledger.entries) == 2


def test_it_is_said_that_representations_from_elsewhere_are_taken_to_be_of_one_example(data):
    once = tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0)
    mixed = tfdp.data.release_mixtures(*data, 2, 1.0, 5, 40, noise_multiplier=2.0)
    for release in (once, mixed):
        (said,) = [one for one in release.privacy_statement(1e-3).assumptions if "alone" in one]
        assert "computed from one example alone" in said


@pytest.mark.thorough
@pytest.mark.parametrize("mixtures", [False, True])
def test_what_the_representations_were_made_with_is_charged_and_said(data, tmp_path, mixtures):
    before = tfdp.data.release_once(*data, 1.0, noise_multiplier=3.0).entry
    x = OriginArray.of(data[0], Origin((before,), ("the words are public",)))
    if mixtures:
        made = tfdp.data.release_mixtures(x, data[1], 2, 1.0, 5, 40, noise_multiplier=2.0)
    else:
        made = tfdp.data.release_once(x, data[1], 1.0, noise_multiplier=2.0)
    made.save(tmp_path / "r.npz")
    for release in (made, tfdp.data.Release.load(tmp_path / "r.npz")):
        assert release.privacy_releases == [before, made.entry]
        assert release.event_count == (40 if mixtures else 1)
        assert Origin.of(release.features).releases == (before, release.entry)
        statement = release.privacy_statement(1e-3)
        assert "the words are public" in statement.assumptions
        assert statement.epsilon == tfdp.accounting.Ledger([before, release.entry]).epsilon(1e-3)
        batches = release.batches(16)
        assert released_by(batches).releases == (before, release.entry)
    model = head()
    if mixtures:
        model.compile("adam", loss="mse")
    model.fit(batches, verbose=0)
    assert list(model.ledger.entries) == [before, release.entry]
    assert "the words are public" in model.privacy_statement(1e-3).assumptions


@pytest.mark.thorough
def test_raw_data_beside_a_release_is_no_release(data):
    import tensorflow as tf

    release = tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0)
    raw = tf.data.Dataset.from_tensor_slices(data).batch(64)
    assert released_by(release.batches(64)) == Origin((release.entry,))
    for mixed in (raw, tf.data.Dataset.zip(release.batches(64), raw), raw.concatenate(raw)):
        assert released_by(mixed) is None


@pytest.mark.thorough
def test_mixtures_have_the_moments_of_noisy_poisson_sums(data):
    # Rows beyond C = 0.5 and within it, and one that is not finite: its label alone is counted.
    x, y = data[0].copy(), data[1]
    x[::2] *= 30.0
    x[7, 1] = np.nan
    count, clip_norm = 20_000, 0.5
    release = tfdp.data.release_mixtures(x, y, 2, clip_norm, 5, count, noise_multiplier=2.0)
    q = 5 / N
    one_hot = np.eye(2)[y]
    x[7] = 0.0
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True) / clip_norm, 1.0)
    rows = np.concatenate([x, one_hot], axis=1)
    noise = np.r_[np.full(4, 2.0 * clip_norm / 0.7**0.5), np.full(2, 2.0 / 0.3**0.5)]
    mean = q * rows.sum(axis=0)
    covariance = q * (1 - q) * rows.T @ rows + np.diag(noise**2)
    found = np.concatenate([release.features, release.targets], axis=1)
    deviation = np.sqrt(np.diag(covariance))
    # 6 means at 5 standard errors; 36 covariances at 6: below 1e-5 false alarms
    assert np.all(np.abs(found.mean(axis=0) - mean) < 5 * deviation / count**0.5)
    error = np.abs(np.cov(found.T) - covariance)
    assert np.all(error < 6 * 1.5 * np.outer(deviation, deviation) / count**0.5)
    # joint sensitivity: one record, features and label, is at most 1/sigma of the noise
    shift = np.concatenate([x, one_hot], axis=1) / noise
    assert np.linalg.norm(shift, axis=1).max() <= 1 / 2.0 + 1e-6


@pytest.mark.thorough
def test_mixtures_are_amplified_and_cover_the_labels(data):
    budget = PrivacyBudget(2.0, 1e-3)
    release = tfdp.data.release_mixtures(*data, 2, 1.0, 10, 50, budget=budget)
    statement = release.privacy_statement()
    assert 0.99 * 2 < statement.epsilon <= 2 and statement.adjacency == "add_or_remove_one"
    assert not any("labels" in text for text in statement.not_covered)
    event = dp_accounting.PoissonSampledDpEvent(
        0.05, dp_accounting.GaussianDpEvent(release.details["noise_multiplier"])
    )
    exact = epsilon(dp_accounting.SelfComposedDpEvent(event, 50), 1e-3)
    assert statement.epsilon == pytest.approx(exact, rel=1e-9)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("kind", ["once", "mixtures"])
def test_the_head_of_a_release_is_the_discriminant_of_clean_examples(data, kind):
    # Noise of twice the clip norm: uncorrected moments would shrink the kernel fivefold.
    x, y = (np.tile(part, (500,) + (1,) * (part.ndim - 1)) for part in data)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    if kind == "once":
        release = tfdp.data.release_once(x, y, 1.0, noise_multiplier=0.7)
    else:
        release = tfdp.data.release_mixtures(x, y, 2, 1.0, 20, 20_000, noise_multiplier=0.5)
    kernel, bias = tfdp.models.release_head(release, ridge=0.05)
    means = np.stack([x[y == j].mean(axis=0) for j in (0, 1)], axis=1)
    shares = np.array([(y == j).mean() for j in (0, 1)])
    within = x.T @ x / len(x) - (means * shares) @ means.T + 0.05 * np.eye(4)
    exact = np.linalg.solve(within, means)
    scale = np.abs(exact).max()
    np.testing.assert_allclose(kernel, exact, atol=0.15 * scale)
    np.testing.assert_allclose(bias, -0.5 * np.sum(means * exact, axis=0), atol=0.15 * scale)


def test_balanced_weights_make_the_classes_count_alike(data):
    x, _ = data
    y = (np.arange(N) < 20).astype(np.int32)
    release = tfdp.data.release_once(x, y, 1.0, noise_multiplier=1.0)
    total = np.zeros(2)
    for _, labels, weights in release.batches(64, balanced=True):
        np.add.at(total, labels.numpy(), weights.numpy())
    np.testing.assert_allclose(total, N / 2, rtol=1e-5)
    named = tfdp.data.release_once(x, np.where(y, "rare", "common"), 1.0, noise_multiplier=1.0)
    for _, labels, weights in named.batches(N, balanced=True):
        expected = np.where(labels.numpy() == b"rare", 5.0, N / 360)
        np.testing.assert_allclose(weights, expected, rtol=1e-6)
    mixtures = tfdp.data.release_mixtures(x, y, 2, 1.0, 10, 5, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="`balanced` needs one label.*shape \\(5, 2\\)"):
        mixtures.batches(4, balanced=True)


@pytest.mark.parametrize("labels", [np.arange(N) - 1, np.full(N, "a"), np.zeros((N, 1), int)])
def test_a_head_needs_indices_of_classes(data, labels):
    release = tfdp.data.release_once(data[0], labels, 1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="integer labels .* from 0"):
        tfdp.models.release_head(release)


def test_labels_of_tables_and_numbers_of_numpy_are_kept_in_a_file(data, tmp_path):
    x, y = data
    for labels in (y.astype(object), np.where(y, "a", "bc").astype(object)):
        path = tmp_path / f"{labels[0]}.npz"
        made = tfdp.data.release_once(x, labels, np.float32(1), np.float32(2), path=path)
        again = tfdp.data.Release.load(path)
        np.testing.assert_array_equal(again.targets, labels)
        assert again.privacy_statement().epsilon == made.privacy_statement().epsilon
        next(iter(again.batches(4)))
    for wrong in ([None, *y[1:]], [np.zeros(k % 2) for k in range(N)], ["a", *y[1:]]):
        with pytest.raises(ValueError, match="`labels` must hold numbers, or strings"):
            tfdp.data.release_once(x, np.array(wrong, object), 1.0, 2.0)
    amounts = np.int64(2), np.float32(1), np.int64(10), np.int64(5), np.float64(1)
    tfdp.data.release_mixtures(x, y, *amounts).save(tmp_path / "mixtures.npz")


def test_every_release_has_noise_of_its_own(data):
    # Two draws of 800 and of 300 float32 numbers: all alike with a chance far below 1e-100.
    once = [tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0) for _ in range(2)]
    assert np.mean(once[0].features == once[1].features) < 0.5
    zeros = np.zeros((N, 4), np.float32), np.zeros(N, int)
    sums = [tfdp.data.release_mixtures(*zeros, 2, 1.0, N, 50, 2.0) for _ in range(2)]  # q = 1
    assert np.mean(sums[0].features == sums[1].features) < 0.5


@pytest.mark.parametrize("mixtures", [False, True])
def test_releases_of_the_same_arguments_are_charged_one_by_one(data, mixtures):
    make = {
        False: lambda: tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0),
        True: lambda: tfdp.data.release_mixtures(*data, 2, 1.0, 5, 40, noise_multiplier=2.0),
    }[mixtures]
    one, two = make(), make()
    assert one.entry != two.entry
    both = Origin.all_of([Origin.of(one.features), Origin.of(two.features)])
    assert both.releases == (one.entry, two.entry)


def test_what_is_assumed_of_the_encoder_is_said(data):
    for release in (
        tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0),
        tfdp.data.release_mixtures(*data, 2, 1.0, 5, 40, noise_multiplier=2.0),
    ):
        said = " ".join(release.privacy_statement(1e-3).assumptions)
        assert "the encoder of the released representations learned nothing" in said


def test_a_budget_for_replaced_records_buys_twice_the_noise(data):
    budget = PrivacyBudget(3.0, 1e-3)
    blanked = tfdp.data.release_once(*data, 1.0, budget=budget)
    replaced = tfdp.data.release_once(*data, 1.0, budget=budget, adjacency="replace_one")
    noise = [r.details["noise_multiplier"] for r in (blanked, replaced)]
    assert noise[1] == pytest.approx(2 * noise[0], rel=1e-3)
    for release, adjacency in ((blanked, "zero_out"), (replaced, "replace_one")):
        statement = release.privacy_statement()
        assert statement.adjacency == adjacency
        assert 0.99 * 3 < statement.epsilon <= 3
    by_hand = dp_accounting.GaussianDpEvent(noise[1] / 2)
    assert statement.epsilon == pytest.approx(epsilon(by_hand, 1e-3), rel=1e-6)


@pytest.mark.parametrize("mixtures", [False, True])
def test_what_the_labels_were_made_with_is_charged(data, mixtures):
    before = tfdp.data.release_once(*data, 1.0, noise_multiplier=3.0).entry
    y = OriginArray.of(data[1], Origin((before,)))
    if mixtures:
        release = tfdp.data.release_mixtures(data[0], y, 2, 1.0, 5, 40, noise_multiplier=2.0)
    else:
        release = tfdp.data.release_once(data[0], y, 1.0, noise_multiplier=2.0)
    assert release.privacy_releases == [before, release.entry]


@pytest.mark.parametrize("mixtures", [False, True])
def test_nothing_is_drawn_for_a_path_that_is_taken(data, tmp_path, monkeypatch, mixtures):
    path = tmp_path / "r.npz"
    path.write_bytes(b"of somebody else")
    monkeypatch.delattr(representations, "_with_noise")
    with pytest.raises(ValueError, match="`path`"):
        if mixtures:
            tfdp.data.release_mixtures(*data, 2, 1.0, 5, 40, noise_multiplier=2.0, path=path)
        else:
            tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0, path=path)
    assert path.read_bytes() == b"of somebody else"


def test_a_file_that_another_process_makes_meanwhile_is_not_overwritten(
    data, tmp_path, monkeypatch
):
    release = tfdp.data.release_once(*data, 1.0, noise_multiplier=2.0)

    def taken_at_once(path):
        free_path(path).write_bytes(b"of somebody else")
        return path

    monkeypatch.setattr(representation_release, "free_path", taken_at_once)
    with pytest.raises(FileExistsError):
        release.save(tmp_path / "r.npz")
    assert (tmp_path / "r.npz").read_bytes() == b"of somebody else"


@pytest.mark.parametrize("wrong", [-1, 2])
def test_labels_of_mixtures_are_indices_of_classes(data, wrong):
    y = data[1].copy()
    y[3] = wrong
    with pytest.raises(ValueError, match="`labels` must lie between 0 and num_classes-1 = 1"):
        tfdp.data.release_mixtures(data[0], y, 2, 1.0, 5, 40, noise_multiplier=2.0)


@pytest.mark.parametrize(
    "change, name",
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"budget": PrivacyBudget(1.0, 1e-3)}, "budget"),
        ({"adjacency": "add_or_remove_one"}, "adjacency"),
        ({"labels": np.zeros(3)}, "labels"),
    ],
)
def test_arguments_out_of_range_are_named(data, change, name):
    arguments = {"representations": data[0], "labels": data[1], "clip_norm": 1.0}
    with pytest.raises(ValueError, match=f"`{name}`"):
        tfdp.data.release_once(**{**arguments, "noise_multiplier": 1.0, **change})
