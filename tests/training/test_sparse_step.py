"""The private step of models with sparse tables: masking, clipping, noise, charges."""

import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from scipy import stats

from tfdp import PrivacyBudget, accounting, make_private
from tfdp.accounting.events.composition import training_event
from tfdp.data import poisson_batches
from tfdp.errors import BudgetError, PrivacyError
from tfdp.layers import SparseEmbedding
from tfdp.optimizers import DPOptimizer, LazyAdam, RowAdagrad, RowSGD
from tfdp.optimizers.sparse_training import SparseTraining
from tfdp.selection import FEST, AdaFEST, ExponentialSelection
from tfdp.training import run

V, D = 30, 3
TABLE = "first/embeddings"
OPTIMIZERS = {
    "RowSGD": lambda: RowSGD(1.0),
    "RowAdagrad": lambda: RowAdagrad(0.1),
    "RowAdagrad row-wise": lambda: RowAdagrad(0.1, row_wise=True),
    "LazyAdam": lambda: LazyAdam(0.1),
}


def rows_of(*rows, size=V):
    """Public frequencies that choose these rows."""
    frequencies = np.zeros(size)
    frequencies[list(rows)] = 1.0
    return frequencies


def make_model(shared=False, rows=V, units=4):
    """Features of three and two values, tables shared or not, a keras Embedding, a Dense."""
    keras.utils.set_random_seed(0)
    a, b = keras.Input((3,), dtype="int64"), keras.Input((2,), dtype="int64")
    c = keras.Input((1,), dtype="int64")
    options = {"combiner": "sum", "mask_zero": True}
    first = SparseEmbedding(rows, D, name="first", **options)
    second = first if shared else SparseEmbedding(rows, D, name="second", **options)
    plain = keras.layers.Flatten()(keras.layers.Embedding(5, 2)(c))
    x = keras.layers.Concatenate()([first(a), second(b), plain])
    model = keras.Model([a, b, c], keras.layers.Dense(1)(keras.layers.Dense(units, "tanh")(x)))
    generator = np.random.default_rng(1)
    for v in model.trainable_variables:
        v.assign(generator.normal(size=v.shape))
    return model


def one_table(length=1, rows=V):
    """One feature and one dense layer, for tests in which more of a model changes nothing."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((length,), dtype="int64")
    table = SparseEmbedding(rows, D, combiner="sum", mask_zero=True, name="first")
    model = keras.Model(ids, keras.layers.Dense(1)(table(ids)))
    generator = np.random.default_rng(1)
    for v in model.trainable_variables:
        v.assign(generator.normal(size=v.shape))
    return model


def one_value(n, row, y=10.0):
    """Examples that all hold this row: all gradients have one sign, and none cancel."""
    return [np.full((n, 1), row)], np.full((n, 1), y, "float32")


def make_data(n, rows=V, seed=2):
    generator = np.random.default_rng(seed)
    x = tuple(generator.integers(0, m, (n, t)) for m, t in ((rows, 3), (rows, 2), (5, 1)))
    return x, 3 * generator.normal(size=(n, 1)).astype("float32")


def compiled(model, selection, *, optimizer=None, embedding_optimizer=None, n=1000, **kwargs):
    """Run eagerly unless told otherwise: a trace takes longer than a few steps.

    So does the search for examples that mix, which is of no matter here.
    """
    model = make_private(model, validate=False)
    jit_compile = kwargs.pop("jit_compile", "auto")
    run_eagerly = kwargs.pop("run_eagerly", jit_compile is not True)
    settings = {"noise_multiplier": 0.0, "expected_batch_size": 8, "clip_norm": 1.0}
    if "budget" in kwargs:
        del settings["noise_multiplier"]
    model.compile(
        DPOptimizer(
            optimizer or keras.optimizers.SGD(1.0),
            selection=selection,
            embedding_optimizer=embedding_optimizer or RowSGD(1.0),
            num_examples=n,
            **{**settings, **kwargs},
        ),
        loss="mse",
        jit_compile=jit_compile,
        run_eagerly=run_eagerly,
    )
    return model


def step(model, x, y, weight=None):
    """One private step; returns by how much each variable moved, by the name of its layer."""
    before = [v.numpy() for v in model.trainable_variables]
    model.train_on_batch(x[0] if len(x) == 1 else tuple(x), y, sample_weight=weight)
    names = [v.path.split("/")[-2] + "/" + v.name for v in model.trainable_variables]
    after = [v.numpy() for v in model.trainable_variables]
    return {name: b - a for name, b, a in zip(names, before, after, strict=True)}


def gradients_of_examples(model, x, y):
    """For each example a float64 array for each variable."""
    found = []
    for i in range(len(y)):
        with tf.GradientTape() as tape:
            output = model([tf.constant(t[i : i + 1]) for t in x])
            loss = tf.reduce_sum(tf.square(output - y[i : i + 1]))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        found.append([tf.convert_to_tensor(t).numpy().astype("float64") for t in gradients])
    return found


def brute_force(model, gradients, survivors, clip_norm, mask_first=True):
    """Σ_i clip(mask(g_i)) in float64, or Σ_i mask(clip(g_i)); survivors by variable name."""
    variables = model.trainable_variables
    masks = [np.ones(v.shape) for v in variables]
    for v, mask in zip(variables, masks, strict=True):
        rows = survivors.get(v.path.split("/")[-2])
        if rows is not None:
            mask[np.setdiff1d(np.arange(len(mask)), rows)] = 0.0
    sums = [np.zeros(v.shape) for v in variables]
    for g in gradients:
        masked = [t * m for t, m in zip(g, masks, strict=True)]
        norm = np.sqrt(sum((t**2).sum() for t in (masked if mask_first else g)))
        for total, t in zip(sums, masked, strict=True):
            total += t * min(1.0, clip_norm / norm)
    return sums


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shared, batch, jit_compile",
    [(False, 1, False), (False, 8, False), (True, 8, False),
     *slow.cases(EVIDENCE := [(False, 8, True), (True, 1, False)], slow=EVIDENCE)],
)  # fmt: skip
def test_gradients_are_masked_then_clipped_jointly_with_the_dense_parameters(
    shared, batch, jit_compile
):
    survivors = {"first": [1, 2, 5, 9]}
    if not shared:
        survivors["second"] = [3, 5]
    x, y = make_data(batch, rows=12)
    x[0][0] = [5, 5, 0]  # a repeated id and padding
    model = make_model(shared)
    gradients = gradients_of_examples(model, x, y)
    exact = brute_force(model, gradients, survivors, 2.0)
    other = brute_force(model, gradients, survivors, 2.0, mask_first=False)
    fest = FEST(4 if shared else {"first": 4, "second": 2},
                frequencies={name: rows_of(*rows) for name, rows in survivors.items()})  # fmt: skip
    model = compiled(model, fest, clip_norm=2.0, expected_batch_size=8, jit_compile=jit_compile)
    found = step(model, x, y)
    for a, b in zip(found.values(), exact, strict=True):
        np.testing.assert_allclose(a, b / 8, rtol=1e-4, atol=2e-6)
    difference = max(np.abs(a - b).max() for a, b in zip(exact, other, strict=True))
    assert batch == 1 or difference > 0.02  # clipping before masking gives another answer


@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match")
def test_a_gradient_that_is_not_finite_is_left_out_of_the_rows_that_survived():
    # Kept look-ups are no longer one after another of the examples: 1 and 3 of 0 to 3 are kept.
    x = [np.array([[3], [1], [4], [2]])]
    y = np.array([[1.0], [np.nan], [2.0], [-1.0]], "float32")
    selection = FEST(3, frequencies={"first": rows_of(1, 2, 5)})
    model = one_table()
    gradients = gradients_of_examples(model, x, y)
    gradients[1] = [np.zeros_like(g) for g in gradients[1]]
    gradients[1][-1] += 1e-30  # brute force divides by the norm
    exact = brute_force(model, gradients, {"first": [1, 2, 5]}, 0.1)
    found = step(compiled(model, selection, clip_norm=0.1), x, y)
    for a, b in zip(found.values(), exact, strict=True):
        np.testing.assert_allclose(a, b / 8, rtol=1e-4, atol=2e-7)
    assert np.any(found[TABLE][2]) and not np.any(found[TABLE][[0, 1, 3, 4, 5]])


@pytest.mark.thorough
def test_adafest_survivors_are_those_of_the_contribution_map():
    x, y = make_data(8, rows=6)
    x[0][:], x[1][:] = 0, 0
    x[0][:5, 0], x[0][5:, 0] = 4, 2  # row 4 five times, row 2 three times
    x[1][:, 0] = 7  # in the other table, with each example: 1/√2 for each row
    model = make_model()
    exact = brute_force(
        model, gradients_of_examples(model, x, y), {"first": [4], "second": [7]}, 1.0
    )
    found = step(compiled(model, AdaFEST(2.5)), x, y)  # 5/√2 = 3.5, 3/√2 = 2.1, 8/√2
    for a, b in zip(found.values(), exact, strict=True):
        np.testing.assert_allclose(a, b / 8, rtol=1e-4, atol=2e-6)


@pytest.mark.thorough
def test_a_selection_chooses_among_all_rows_of_every_table_the_last_ones_too(monkeypatch):
    seen, select = [], AdaFEST.select

    def watched(self, tables, *args):
        seen.extend((table.name, table.num_rows) for table in tables)
        return select(self, tables, *args)

    monkeypatch.setattr(AdaFEST, "select", watched)
    step(compiled(make_model(), AdaFEST(3.0)), *make_data(8))
    assert sorted(seen) == [("first", V), ("second", V)]


@pytest.mark.thorough
def test_padding_of_a_batch_is_in_neither_the_map_nor_the_gradients():
    x, y = one_value(8, 4)
    weight = np.array([1.0] * 2 + [0.0] * 6, "float32")
    model = compiled(one_table(), AdaFEST(1.5))
    assert np.abs(step(model, x, y, weight)[TABLE][4]).max() > 0  # of 2 examples
    weight[1] = 0.0
    assert not np.any(step(model, x, y, weight)[TABLE])  # of 1, not 8


def moved(change):
    return np.flatnonzero(np.any(change != 0, axis=1))


@pytest.mark.thorough
def test_only_survivors_are_noised_with_the_gradient_noise_and_dense_parameters_too():
    # All bounds are 5 standard deviations or more.
    rows, sigma, ratio = 20_000, 2.0, 0.5
    model = make_model(rows=rows, units=256)
    selection = AdaFEST(6.0, noise_ratio=ratio)
    model = compiled(model, selection, noise_multiplier=sigma, clip_norm=0.5, seed=3)
    x, y = make_data(8, rows=rows)
    changes = step(model, x, y, np.zeros(8, "float32"))
    sigma_2 = sigma * np.sqrt(1 + ratio**-2)
    survive = 0.5 * rows * tf.math.erfc(6.0 / (ratio * sigma_2) / np.sqrt(2)).numpy()
    for change in (changes[TABLE], changes["second/embeddings"]):
        touched = moved(change)
        assert abs(len(touched) - survive) < 5 * np.sqrt(survive)
        stddev = change[touched].std() * 8 / 0.5
        assert abs(stddev / sigma_2 - 1) < 5 / np.sqrt(2 * D * len(touched))

    # The dense part: noise multiplier σ₂, not σ.
    dense = np.concatenate([c.ravel() for c in changes.values() if c.shape[0] != rows])
    assert dense.size > 2500
    assert abs(dense.std() * 8 / 0.5 / sigma_2 - 1) < 5 / np.sqrt(2 * dense.size)


@pytest.mark.thorough
def test_a_keras_embedding_beside_sparse_tables_is_noised_in_every_row():
    model = compiled(make_model(), AdaFEST(50.0), noise_multiplier=1.0)
    x, y = make_data(8)
    change = step(model, x, y)
    (plain,) = [c for c in change.values() if c.shape == (5, 2)]
    assert len(moved(plain)) == 5


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, kind",
    [
        *slow.cases(
            [(name, "AdaFEST") for name in OPTIMIZERS],
            slow=[(name, "AdaFEST") for name in OPTIMIZERS if name != "LazyAdam"],
        ),
        *[("LazyAdam", kind) for kind in ("AdaFEST+", "FEST", "exponential")],
    ],
)
def test_no_operation_of_a_step_but_the_variables_has_as_many_rows_as_a_table(
    name, kind, outputs_with_rows
):
    # Fault 7: IndexedSlices made dense on the way.
    rows = 7919
    fest = FEST(5, frequencies={"first": rows_of(1, 2, 3, 4, 5, size=rows)})
    selection = {
        "AdaFEST": AdaFEST(3.0), "AdaFEST+": AdaFEST(3.0, within=fest), "FEST": fest,
        "exponential": ExponentialSelection(6),
    }[kind]  # fmt: skip
    model = compiled(one_table(3, rows), selection, embedding_optimizer=OPTIMIZERS[name](),
                     optimizer=keras.optimizers.Adam(0.1), noise_multiplier=1.0)  # fmt: skip
    assert outputs_with_rows(step_of(model, rows), rows) == []


def step_of(model, rows):
    """The traced step of a model whose tables have this many rows."""
    x, y = make_data(8, rows=rows)
    model.optimizer.build(model.trainable_variables)
    data = tf.nest.map_structure(tf.convert_to_tensor, (x[0], y, np.ones(8, "float32")))
    return tf.function(model.train_step, autograph=False).get_concrete_function(data)


@pytest.mark.thorough
def test_exponential_selection_takes_the_rows_with_the_largest_clipped_gradients():
    x, y = make_data(8, rows=6)
    x[0][:], x[1][:] = 0, 0
    x[0][:5, 0], x[0][5:, 0] = 4, 2
    x[0][0] = [4, 4, 4]  # of the same example: once
    x[1][:, 0] = 7
    model = make_model()
    exact = brute_force(
        model, gradients_of_examples(model, x, y), {"first": [4], "second": [7]}, 1e-3
    )
    # Clipped at so small a norm every example counts 1: 4 has 5, 2 has 3, 7 has 8.
    model = compiled(model, ExponentialSelection(2), clip_norm=1e-3,
                     optimizer=keras.optimizers.SGD(1e3),
                     embedding_optimizer=RowSGD(1e3))  # fmt: skip
    found = step(model, x, y)
    for a, b in zip(found.values(), exact, strict=True):
        np.testing.assert_allclose(a, b * 1e3 / 8, rtol=1e-4, atol=2e-6)


def test_exponential_selection_measures_gradients_by_the_clip_norm():
    # Far below the clip norm, one large gradient outweighs five small ones (all of them above 1).
    x, y = make_data(8, rows=6)
    x[0][:], x[1][:] = 0, 0
    x[0][0, 0], x[0][1:6, 0] = 4, 2
    y[:], y[0] = 20.0, 1e4
    model = compiled(make_model(), ExponentialSelection(1), clip_norm=1e7)
    found = step(model, x, y)
    np.testing.assert_array_equal(moved(found[TABLE]), [4])
    assert np.linalg.norm(found[TABLE][4]) * 8 > 50


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:AdaFEST's threshold of")
def test_training_shows_how_many_scalars_of_the_tables_receive_noise():
    x, y = make_data(100)
    batches = poisson_batches((x, y), 10, steps_per_epoch=2)
    model = compiled(make_model(), ExponentialSelection(5), noise_multiplier=1.0, n=100,
                     expected_batch_size=10)  # fmt: skip
    history = model.fit(batches, epochs=2, verbose=0).history
    assert history["gradient_size"] == [5 * D, 5 * D]
    assert "gradient_size" not in model.evaluate(x, y, return_dict=True, verbose=0)
    # Selected at random: half of 2·2000 rows in each of two steps; 10% are 9 deviations.
    model = compiled(make_model(rows=2000), AdaFEST(1e-9), noise_multiplier=50.0, n=100,
                     expected_batch_size=10)  # fmt: skip
    history = model.fit(batches, verbose=0).history
    assert abs(np.mean(history["gradient_size"]) / (2000 * D) - 1) < 0.1


@pytest.mark.thorough
def test_rows_chosen_anew_are_the_ones_that_the_next_fit_trains():
    x, y = one_value(100, 3)
    fest = FEST(1, epsilon=1e9)
    fest.adapt({"first": x[0]}, {"first": V})
    model = compiled(one_table(), fest, noise_multiplier=1.0, n=100, expected_batch_size=10)
    before = model.get_layer("first").embeddings.numpy()
    batches = poisson_batches((x[0], y), 10, steps_per_epoch=1)
    model.fit(batches, verbose=0)
    middle = model.get_layer("first").embeddings.numpy()
    assert list(moved(middle - before)) == [3]
    x[0][:] = 8
    fest.adapt({"first": x[0]}, {"first": V})
    model.fit(poisson_batches((x[0], y), 10, steps_per_epoch=1), verbose=0)
    after = model.get_layer("first").embeddings.numpy()
    assert list(moved(after - middle)) == [8]
    labels = [entry.label for entry in model.ledger.entries]
    assert labels.count("most frequent rows") == 2


def test_the_joint_mechanism_of_exponential_selection_is_what_is_charged():
    x, y = one_value(100, 3)
    batches = poisson_batches((x[0], y), 10, steps_per_epoch=3)
    model = compiled(one_table(), ExponentialSelection(5), budget=PrivacyBudget(2.0, 1e-3),
                     steps=3, n=100, expected_batch_size=10)  # fmt: skip
    model.fit(batches, verbose=0)
    (entry,) = model.ledger.entries
    sigma = model.optimizer.noise_multiplier
    assert entry.event == training_event(sigma, 0.1, "concentrated")
    statement = model.privacy_statement()
    assert 1.9 < statement.epsilon <= 2.0 and statement.accountant == "rdp"
    assert "chosen by ExponentialSelection" in " ".join(str(statement).split())


@pytest.mark.thorough
def test_the_walk_over_the_graph_sees_a_table_that_is_read_or_densified(outputs_with_rows):
    model = make_private(one_table(3, rows=7919))
    model.compile(
        DPOptimizer(keras.optimizers.SGD(1.0), noise_multiplier=1.0, num_examples=100,
                    expected_batch_size=8), loss="mse")  # fmt: skip
    assert outputs_with_rows(step_of(model, 7919), 7919)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_row_that_no_longer_survives_stands_still(name):
    # Fault 9: slots that move rows which lost their gradient.
    x, y = one_value(8, 4)
    model = compiled(one_table(), AdaFEST(2.0), optimizer=keras.optimizers.SGD(1e-3),
                     embedding_optimizer=OPTIMIZERS[name]())  # fmt: skip
    assert 4 in moved(step(model, x, y)[TABLE])
    x[0][:] = 9
    for _ in range(2):
        np.testing.assert_array_equal(moved(step(model, x, y)[TABLE]), [9])


@pytest.mark.thorough
def test_the_ledger_charges_one_gaussian_of_the_whole_noise_multiplier():
    x, y = one_value(100, 3)
    batches = poisson_batches((x[0], y), 10, steps_per_epoch=2)
    model = compiled(one_table(), AdaFEST(3.0, noise_ratio=0.3), noise_multiplier=1.3, n=100,
                     expected_batch_size=10)  # fmt: skip
    model.fit(batches, epochs=2, verbose=0)
    (entry,) = model.ledger.entries
    assert entry.event == training_event(1.3, 0.1) and entry.count == 4
    assert entry.details["selection"]["noise_ratio"] == 0.3
    selection = model.optimizer.selection
    sigma_1 = selection.contribution_noise_multiplier(1.3)
    sigma_2 = selection.gradient_noise_multiplier(1.3)
    np.testing.assert_allclose((sigma_1**-2 + sigma_2**-2) ** -0.5, 1.3)


def test_a_private_choice_of_rows_is_charged_and_paid_from_the_budget():
    x, y = one_value(100, 3)
    fest = FEST(3, epsilon=0.25)
    fest.adapt({"first": x[0]}, {"first": V})
    budget = PrivacyBudget(1.0, 1e-3)
    batches = poisson_batches((x[0], y), 10, steps_per_epoch=3)
    settings = dict(budget=budget, steps=3, n=100, expected_batch_size=10)
    model = compiled(one_table(), AdaFEST(1.0, within=fest), **settings)
    model.fit(batches, verbose=0)
    labels = [entry.label for entry in model.ledger.entries]
    assert labels == ["most frequent rows", "private training"]
    assert 0.95 < model.ledger.epsilon(1e-3) <= 1.0

    fest.adapt({"first": x[0]}, {"first": V})
    with pytest.raises(BudgetError):  # a second release, which the budget lacks
        model.fit(batches, verbose=0)
    assert len(model.ledger.entries) == 3


@pytest.mark.thorough
def test_public_frequencies_are_named_in_the_statement():
    fest = FEST(3, frequencies={"first": rows_of(1)})
    model = compiled(one_table(), fest, noise_multiplier=1.0)
    step(model, *one_value(8, 1))
    assert "frequencies given to FEST are public" in str(model.privacy_statement())


@pytest.mark.thorough
def test_no_example_is_in_the_map_or_the_gradients_when_the_budget_is_spent(monkeypatch):
    x, y = one_value(64, 4)
    selection = AdaFEST(32.0, noise_ratio=0.1)
    model = compiled(one_table(), selection, budget=PrivacyBudget(0.5, 1e-4), steps=1, n=1000,
                     expected_batch_size=64)  # fmt: skip
    # Row 4 has V̂ = 64; noise alone moves it by 32, or reaches 32, with a probability below 1e-9.
    assert selection.contribution_noise_multiplier(model.optimizer.noise_multiplier) < 5.0
    model.optimizer.charging.begin(accounting.Sampling("poisson", 1000, 64))
    monkeypatch.setattr(run, "refuse_unknown_batch", lambda *arguments: None)
    assert 4 in moved(step(model, x, y)[TABLE])
    assert len(moved(step(model, x, y)[TABLE])) == 0
    assert model.ledger.entries[0].count == 1


@pytest.mark.thorough
def test_survives_a_file_with_its_selection_and_slots(tmp_path):
    model = compiled(one_table(), AdaFEST(1.0, 2.0), embedding_optimizer=LazyAdam(0.1),
                     noise_multiplier=1.0)  # fmt: skip
    x, y = one_value(8, 3)
    step(model, x, y)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    a, b = model.optimizer, again.optimizer
    assert b.get_config() == a.get_config()
    assert len(b.embedding_optimizer.variables) == len(a.embedding_optimizer.variables) > 2
    for v, w in zip(a.embedding_optimizer.variables, b.embedding_optimizer.variables, strict=True):
        np.testing.assert_array_equal(v.numpy(), w.numpy())
    assert again.ledger == model.ledger
    step(again, x, y)


@pytest.mark.parametrize(
    "change, message",
    [({"embedding_optimizer": keras.optimizers.Adam()}, "RowSGD"),
     ({"embedding_optimizer": None}, "RowSGD"),
     ({"selection": None}, "or neither"),
     ({"selection": "adafest"}, "AdaFEST, FEST or"),
     ({"selection": FEST(3, epsilon=1.0)}, "adapt"),
     ({"selection": AdaFEST(1.0, within=FEST(3, epsilon=1.0))}, "adapt"),
     ({"microbatch_size": 4}, "microbatch_size")],
)  # fmt: skip
def test_contradictory_arguments_are_refused(change, message):
    arguments = {"selection": AdaFEST(1.0), "embedding_optimizer": RowSGD()}
    with pytest.raises(ValueError, match=message):
        DPOptimizer("sgd", noise_multiplier=1.0, num_examples=10, expected_batch_size=2,
                    **{**arguments, **change})  # fmt: skip


def test_tables_that_their_names_do_not_tell_apart_are_refused():
    tables = [SparseEmbedding(V, D, name="first") for _ in range(2)]
    for table in tables:
        table.build((None, 1))
    training = SparseTraining(AdaFEST(1.0), RowSGD(), None)
    with pytest.raises(ValueError, match=r"distinct names. Received: \['first', 'first'\]"):
        training.split([table.embeddings for table in tables])


def test_a_selection_without_a_table_is_refused_and_not_ignored():
    x = keras.Input((2,), dtype="int64")
    y = keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(V, D)(x)))
    with pytest.raises(ValueError, match="trains none"):
        model = compiled(keras.Model(x, y), AdaFEST(1.0))
        model.train_on_batch(np.ones((4, 2), int), np.ones((4, 1)))


@pytest.mark.thorough
def test_a_table_used_otherwise_than_by_its_look_up_is_refused_and_not_ignored():
    # Fault 8: a sparse setting ignored for want of a rule.
    class Doubled(SparseEmbedding):
        def call(self, ids, weights=None):
            return 2 * super().call(ids, weights)

    x = keras.Input((2,), dtype="int64")
    for layer in (Doubled(V, D, combiner="sum"), _Reader(SparseEmbedding(V, D, combiner="sum"))):
        model = compiled(keras.Model(x, keras.layers.Dense(1)(layer(x))), AdaFEST(1.0))
        with pytest.raises(PrivacyError, match="is used in another way than by"):
            model.train_on_batch(np.ones((4, 2), int), np.ones((4, 1)))


class _Reader(keras.layers.Layer):
    """A layer that looks up rows and reads the whole table besides."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, ids):
        return self.table(ids) + tf.reduce_mean(self.table.embeddings.value, axis=0)


def test_xla_is_refused():
    model = make_private(make_model())
    optimizer = DPOptimizer("sgd", noise_multiplier=1.0, num_examples=10, expected_batch_size=2,
                            selection=AdaFEST(1.0), embedding_optimizer=RowSGD())  # fmt: skip
    with pytest.raises(PrivacyError, match="jit_compile"):
        model.compile(optimizer, loss="mse", jit_compile=True)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "put", [{"regularizer": keras.regularizers.L2(0.1)}, {"constraint": keras.constraints.NonNeg()}]
)
def test_a_regularizer_or_constraint_put_on_a_table_is_refused(put):
    # Fault 10: a regularizer makes the update dense; the layer refuses it, too.
    model = one_table()
    ((name, one),) = put.items()
    setattr(model.get_layer("first").embeddings, name, one)
    with pytest.raises(ValueError, match="weight_decay"):
        step(compiled(model, AdaFEST(1.0)), *one_value(8, 3))


@pytest.mark.thorough
def test_a_compiled_step_with_a_capacity_gives_the_numbers_of_the_step_without():
    x = [np.zeros((8, 3), int)]
    x[0][:5, 0], x[0][5:, 0] = 4, 3
    y = np.full((8, 1), 10.0, "float32")  # clipped gradients of opposite signs would cancel
    weight = np.array([1.0] * 7 + [0.0], "float32")
    found = []
    for capacity, jit_compile in ((None, False), (9, True)):
        selection = AdaFEST(1.3, capacity=capacity)
        # Its slots show what a row of padding would do, which RowSGD does not.
        model = compiled(one_table(3), selection, embedding_optimizer=RowAdagrad(0.1),
                         jit_compile=jit_compile)  # fmt: skip
        assert model.jit_compile is jit_compile  # and not switched off by Keras
        found.append([step(model, x, y, weight) for _ in range(2)])
    table = found[0][0][TABLE]
    assert np.all(np.abs(table[[3, 4]]).max(1) > 1e-3) and np.all(moved(table) == [3, 4])
    for one, other in zip(*found, strict=True):
        for a, b in zip(one.values(), other.values(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("jit_compile", slow.cases([False, True], slow=[True]))
def test_a_step_cuts_by_the_noisy_map_and_shows_that_it_does(jit_compile):
    rows = 2000
    model = compiled(make_model(rows=rows), AdaFEST(4.0, 1.0, capacity=10), noise_multiplier=2.0,
                     jit_compile=jit_compile)  # fmt: skip
    x, y = make_data(8, rows=rows)
    before = [v.numpy() for v in model.trainable_variables]
    history = model.train_on_batch(tuple(x), y, return_dict=True)
    after = [v.numpy() for v in model.trainable_variables]
    tables = [len(moved(b - a)) for b, a in zip(before, after, strict=True) if len(a) == rows]
    assert sum(tables) == 10 and history["gradient_size"] == 10 * D
    # About 2·2000·Ψ(4/√8) = 315 rows pass the threshold.
    assert history["capacity_reached"] == 1.0


def test_what_a_step_shows_of_its_rows_tells_nothing_of_an_example():
    """Neighbours of which one has an example with 300 ids; noise alone fills the capacity.

    The values shown are equal but for what σ₁ = 50 lets through. False-alarm rate: 1e-6 for each.
    """
    rows, draws, shown = 2000, 60, []
    x = keras.Input((300,), dtype="int64")
    base = keras.Model(x, keras.layers.Dense(1)(SparseEmbedding(rows, D, combiner="mean")(x)))
    model = compiled(base, AdaFEST(75.0, 1.0, 18.0, capacity=10), noise_multiplier=2.0,
                     run_eagerly=False)  # fmt: skip
    for weight in (0.0, 1.0):
        data = np.arange(300)[None], np.ones((1, 1), "float32"), np.array([weight], "float32")
        values = []
        for _ in range(draws):
            model.reset_metrics()
            values.append(model.train_on_batch(*data, return_dict=True))
        shown.append([{k: v for k, v in one.items() if k != "loss"} for one in values])
    assert set(shown[0][0]) == {"gradient_size", "capacity_reached"}
    for name in shown[0][0]:
        a, b = ([float(one[name]) for one in of_one] for of_one in shown)
        kinds = sorted({*a, *b})
        table = [[values.count(kind) for kind in kinds] for values in (a, b)]
        assert len(kinds) == 1 or stats.chi2_contingency(table).pvalue > 1e-6


@pytest.mark.thorough
def test_a_compiled_step_without_a_capacity_is_refused():
    with pytest.raises(PrivacyError, match="capacity"):
        compiled(make_model(), AdaFEST(1.0), jit_compile=True)
    compiled(make_model(), FEST(3, frequencies={n: rows_of(1) for n in ("first", "second")}),
             jit_compile=True)  # fmt: skip
