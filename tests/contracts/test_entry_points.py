"""Whatever is made of data costs what the data were made with, by whichever function it is made."""

import functools
import importlib
import inspect
import itertools
import operator
import pkgutil
import secrets

import dp_accounting
import keras
import numpy as np
import pytest
import slow
import tensorflow as tf
from small_models import Small

import tfdp
from tfdp.accounting import LedgerEntry
from tfdp.data.provenance import dataset_tags
from tfdp.data.provenance.origins import Origin, OriginArray
from tfdp.models.text_encoder import small_text_encoder

N = 8
IDS = np.arange(N) // 2
ITEMS = np.tile([[1, 2, 3]], (N, 1))
CLICKS = {"ad": np.arange(N) % 3}
VALUES, LABELS = np.ones((N, 3), np.float32), np.arange(N) % 2
FREQUENCY = np.array([1.0, 0.5, 0.2, 0.1])
TEXTS = np.array(["good", "bad"] * (N // 2), object)
PERSONS = {"max_records_per_unit": 2}


def sampled(sampler, *arguments, **settings):
    def row(give):
        data = (give("data", VALUES), give("data", LABELS), give("data", np.ones(N)))
        return sampler(data, *arguments, privacy_ids=give("privacy_ids", IDS), **settings)

    return row


def pair(give):
    return give("train", ITEMS), give("train", ITEMS)


@functools.cache
def model():
    eager = {"run_eagerly": True}
    made = Small.model(compile_kwargs=eager, num_examples=N, expected_batch_size=4)
    made.validate_independence = False
    return made


def towers(**settings):
    items = keras.layers.Embedding(2, 2)
    return tfdp.models.TwoTower(keras.layers.Dense(2), items, 2, num_negatives=1, **settings)


@functools.cache
def compiled_towers():
    made = towers()
    settings = {"noise_multiplier": 1.0, "num_examples": N, "expected_batch_size": 4}
    made.compile(tfdp.optimizers.DPOptimizer("sgd", **settings), run_eagerly=True)
    made.validate_independence = False
    return made


def fitted_towers(give):
    how = {"batch_size": 4, "steps_per_epoch": 1, "verbose": 0}
    compiled_towers().fit(give("x", VALUES), give("y", LABELS), **how)
    return compiled_towers()


def fitted(weights):
    def row(give):
        how = {"batch_size": 4, "steps_per_epoch": 1, "verbose": 0, **weights(give)}
        model().fit(give("x", VALUES), give("y", LABELS), **how)
        return model()

    return row


def sequences(give):
    table = {"u": give("data", np.repeat(IDS, 3)), "i": give("data", ITEMS.ravel())}
    times = {"t": give("data", np.arange(3 * N))}
    items = give("items", np.array(["1", "2", "3"]))
    read = tfdp.data.load_sequences(
        table | times, 3, user="u", item="i", timestamp="t", items=items
    )
    return read.train.x, read.test.y


def clicks(give):
    table = {"c": give("data", LABELS), "ad": give("data", IDS), "n": give("data", VALUES[:, 0])}
    places = give("categories", np.arange(4))
    read = tfdp.data.load_clicks(table, "c", {"ad": places}, ["n"], test_fraction=0.5)
    return read.train[0]["ad"], read.test[1]


def texts(give):
    table = {"t": give("data", TEXTS), "c": give("data", LABELS)}
    read = tfdp.data.load_texts(table, "t", "c", give("classes", np.array([0, 1])))
    return read.train if len(read.train[1]) else read.test


def criteo(give, folder):
    line = "\t".join(["1", *["2"] * 13, *["a"] * 26])
    (folder / "clicks.txt").write_text("\n".join([line] * 4))
    words = [give("vocabulary", np.array(["a", "b"]))] * 26
    return tfdp.data.load_criteo(folder / "clicks.txt", vocabulary=words).train


def histories(give, folder):
    (folder / "items.txt").write_text("a b\nb a b\n")
    words = give("items", np.array(["a", "b"]))
    return tfdp.data.load_histories(folder / "items.txt", 3, items=words).train


@functools.cache
def classifier(noise):
    words = "[PAD] [UNK] [CLS] [SEP] good bad".split()
    pytest.importorskip("tensorflow_text")
    backbone = small_text_encoder(len(words), 4, width=4, depth=0)
    model = tfdp.models.TextClassifier(words, 2, backbone, 4, noise_multiplier=noise)
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    return model


def fitted_texts(noise):
    def row(give):
        model = classifier(noise)
        weights = {} if noise else {"sample_weight": give("x", np.ones(N, np.float32))}
        model.fit(give("x", TEXTS), give("y", LABELS), epochs=1, verbose=0, **weights)
        return model

    return row


def tuned(score):
    """The model of a tuning that is charged as for four steps, without taking them."""

    def row(give):
        persons = {"num_examples": N // 2, "expected_batch_size": 2, **PERSONS}
        drawn = tfdp.data.poisson_batches((VALUES, LABELS), 2, privacy_ids=IDS, **PERSONS)

        def train(hp):
            made = Small.model(**persons)
            made.optimizer.charging.begin(tfdp.data.sampling_of(drawn))
            made.optimizer.charging.charge_step()
            made.optimizer.charging.begin(None)
            return made

        return tfdp.tuning.tune(train, score(give), number_of_runs=1).model

    return row


def mean_of_persons(give):
    return tfdp.tuning.PrivateMean(
        lambda model: give("values", np.ones(N)), num_examples=N // 2, noise_multiplier=1.0,
        privacy_ids=give("privacy_ids", IDS),
    )  # fmt: skip


def adapted(give):
    chosen = tfdp.selection.FEST(1, epsilon=1.0)
    ids = give("privacy_ids", IDS)
    return chosen.adapt(
        {"ad": give("features", CLICKS["ad"])}, {"ad": 3}, privacy_ids=ids, **PERSONS
    )


ROWS = {
    "data.poisson_batches": sampled(tfdp.data.poisson_batches, 2, **PERSONS),
    "data.shuffled_epochs": sampled(tfdp.data.shuffled_epochs, 2, **PERSONS),
    "data.allocated_epochs": sampled(tfdp.data.allocated_epochs, 2, **PERSONS),
    "data.cyclic_poisson_batches": sampled(tfdp.data.cyclic_poisson_batches, 1, 2, **PERSONS),
    "data.stream_batches": lambda give: tfdp.data.stream_batches(
        (give("data", VALUES), give("data", LABELS), give("data", np.ones(N))), 2,
        privacy_ids=give("privacy_ids", np.arange(N)),
    ),
    "data.microbatches": lambda give: tfdp.data.microbatches(
        (give("data", VALUES), give("data", LABELS)), 4, 2
    ),
    "distribution.poisson_batches": lambda give: tfdp.distribution.poisson_batches(
        tf.distribute.MirroredStrategy(["CPU:0"]), (give("data", VALUES), give("data", LABELS)), 4
    ),
    "data.private_frequency": lambda give: tfdp.data.private_frequency(
        pair(give), 1.0, num_items=3, privacy_ids=give("privacy_ids", IDS), **PERSONS
    ),
    "data.private_transitions": lambda give: tfdp.data.private_transitions(
        pair(give), epsilon=1.0, num_items=3, privacy_ids=give("privacy_ids", IDS), **PERSONS
    ),
    "data.private_click_statistics": lambda give: tfdp.data.private_click_statistics(
        ({"ad": give("train", CLICKS["ad"])}, give("train", LABELS)), {"ad": 3}, epsilon=1.0,
        privacy_ids=give("privacy_ids", IDS), **PERSONS,
    ),
    "selection.private_top_k": lambda give: tfdp.selection.private_top_k(
        {"ad": give("features", CLICKS["ad"])}, {"ad": 3}, 1, 1.0,
        privacy_ids=give("privacy_ids", IDS), **PERSONS,
    ),
    "selection.FEST.adapt": adapted,
    "selection.FEST": lambda give: tfdp.selection.FEST(1, give("frequencies", FREQUENCY)),
    "data.release_once": lambda give: tfdp.data.release_once(
        give("representations", VALUES), give("labels", LABELS), 1.0, 1.0
    ),
    "data.release_mixtures": lambda give: tfdp.data.release_mixtures(
        give("representations", VALUES), give("labels", LABELS), 2, 1.0, 4, 2, 1.0
    ),
    "data.leave_one_out_split": lambda give: tfdp.data.leave_one_out_split(
        [give("sequences", row) for row in ITEMS], 3
    ).train,
    "data.load_sequences": sequences,
    "data.load_histories": histories,
    "data.load_clicks": clicks,
    "data.load_criteo": criteo,
    "data.load_texts": texts,
    "data.FrequentItems": lambda give: tfdp.data.FrequentItems(
        give("frequency", FREQUENCY), 2
    ).encode(ITEMS),
    "data.FrequentItems.encode": lambda give: tfdp.data.FrequentItems(FREQUENCY, 2).encode(
        (give("sequences", ITEMS), give("sequences", ITEMS))
    ),
    "data.FrequentItems.decode": lambda give: tfdp.data.FrequentItems(FREQUENCY, 2).decode(
        give("scores", np.ones((1, 4)))
    ),
    "data.Sequences": lambda give: tfdp.data.Sequences(give("x", ITEMS), give("y", ITEMS)),
    "models.DPModel.fit": fitted(lambda give: {"sample_weight": give("sample_weight", np.ones(N))}),
    "models.DPModel.fit, by class": fitted(
        lambda give: {"class_weight": {0: give("class_weight", np.ones(1))[0], 1: 1.0}}
    ),
    "models.DPFormer": lambda give: tfdp.models.DPFormer(
        3, 3, dim=4, num_blocks=1, item_frequency=give("item_frequency", FREQUENCY)
    ).embedding_error,
    "models.TextClassifier.fit": fitted_texts(0.5),
    "models.TextClassifier.fit, without a release": fitted_texts(None),
    "models.TextClassifier.release": lambda give: classifier(0.5).release(
        give("texts", TEXTS), give("labels", LABELS)
    ),
    "models.TextClassifier.predict": lambda give: classifier(0.5).predict(
        give("x", TEXTS), verbose=0
    ),
    "models.DPModel.predict": lambda give: model().predict(give("x", VALUES), verbose=0),
    "models.DPModel.predict_on_batch": lambda give: model().predict_on_batch(give("x", VALUES)),
    "models.TwoTower": lambda give: towers(
        frequencies=give("frequencies", np.ones(2)),
        item_features={"a": give("item_features", np.arange(2))},
    ),
    "models.TwoTower.fit": fitted_towers,
    "tuning.tune": tuned(lambda give: lambda model: give("scores", np.ones(1))[0]),
    "tuning.PrivateMean": tuned(mean_of_persons),
    "models.TextClassifier.representations": lambda give: classifier(0.5).representations(
        give("texts", TEXTS)
    ),
}  # fmt: skip

# What takes data and gives nothing that is trained on, or what is charged otherwise: a function,
# one of its parameters, or with a dot at the end all that a room or a class has.
ELSEWHERE = {
    "audit.one_run": "a function that trains; an audit is for nobody but its reader",
    "clipping.per_example_gradient_norms": "a look at raw data, for whoever holds them",
    "clipping.explain": "a plan, of shapes alone",
    "data.Period.claim": "enters ids, and gives nothing out",
    "data.DisjointPeriods.claim": "enters ids, and gives nothing out",
    "data.ClickData": "holds arrays as they are", "data.SequenceData": "holds arrays as they are",
    "data.TextData": "holds arrays as they are", "data.SST2Data": "holds arrays as they are",
    "data.Release": "charges itself", "data.ClickStatistics": "charges itself",
    "data.FrequencyRelease": "charges itself", "data.TransitionRelease": "charges itself",
    "data.declare_sampling": "batches, which stay as they are",
    "data.sampling_of": "batches; gives nothing of them out",
    "data.load_clicks(counts)": "names of columns",
    "distribution.BackupAndRestore.on_train_batch_end": "the number of a batch",
    "distribution.select_on_host": "batches, which stay as they were drawn",
    "layers.": "tensors", "metrics.": "tensors", "noise.": "noise",
    "models.CategoricalFeature": "names", "models.PrivateCTR": "names of features",
    "models.DPFormer(transitions)": "a layer, which charges itself",
    "models.SequenceBaseline": "a layer, which charges itself",
    "models.DPFormer.encode": "tensors", "models.SequenceBaseline.encode": "tensors",
    "models.TextClassifier": "the tokens, which are declared public; the name of a gradient",
    "models.TextClassifier.call": "tensors", "models.TextClassifier.represent": "tensors",
    "models.TextClassifier.fit_head": "a release, which charges itself",
    "models.TransitionRecommender": "a layer, which charges itself",
    "models.TransitionRecommender.call": "tensors",
    "models.TransitionRecommender.score_next": "tensors",
    "models.release_head": "a release, which charges itself",
    "models.DPModel.train_on_batch": "batches that were drawn; any other costs ε = ∞",
    "models.DPModel.training_batches": "batches that were drawn; any other costs ε = ∞",
    "models.TwoTower.training_batches": "batches that were drawn; any other costs ε = ∞",
    "models.DPModel.clipping_plan": "shapes", "models.DPModel.compute_loss": "tensors",
    "models.TextClassifier.evaluate": "evaluation", "models.TwoTower.evaluate": "evaluation",
    "models.TwoTower.user_vectors": "tensors", "models.TwoTower.item_vectors": "tensors",
    "models.TwoTower.call": "tensors", "models.PrivateModel.call": "tensors",
    "models.PrivateModel.get_layer": "the number of a layer",
    "models.DPModel.train_step": "a step", "models.DPModel.test_step": "a step",
    "models.DPModel.predict_step": "a step", "models.PrivateModel.compute_loss": "tensors",
    "selection.AdaFEST.": "tensors of a step", "selection.ContributionMap": "tensors of a step",
    "selection.ExponentialSelection.": "tensors of a step",
    "selection.FEST.check": "tensors of a step", "selection.FEST.joint_rows": "tensors of a step",
    "selection.FEST.select": "tensors of a step", "selection.RowSelection.": "tensors of a step",
    "selection.TableActivity": "tensors of a step",
    "selection.TopKRelease": "charges itself",
    "tuning.HyperParameters.": "settings of runs", "tuning.NumberOfRuns": "a number",
    "tuning.tune(train)": "a function; its models know what they were charged",
}  # fmt: skip


def public():
    """(name, function) of every public function, class and method; names begin with the room."""
    for room in pkgutil.iter_modules(tfdp.__path__):
        if room.name.startswith("_") or room.name == "beam":  # tests/beam
            continue
        module = importlib.import_module(f"tfdp.{room.name}")
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            if callable(found):
                yield f"{room.name}.{name}", found
            if inspect.isclass(found):
                for method, function in vars(found).items():
                    if inspect.isfunction(function) and not method.startswith("_"):
                        yield f"{room.name}.{name}.{method}", function


def parameters(function):
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of what has no signature
        return set()


def data_of(name, function):
    """The parameters by which data come in: all but those that are known to be settings."""
    room = name.split(".")[0]
    settings = SETTINGS | (TENSORS if room in ROOMS_OF_NUMBERS else set())
    taken = parameters(function) - settings
    return {one for one in taken if f"{name}({one})" not in ELSEWHERE}


def given_by(row, tmp_path, entry_of):
    """What a row makes, and the names of what it was given.

    `entry_of` is a function of the number of an argument that gives its charge, or None.
    """
    names = []

    def give(name, value):
        names.append(name)
        entry = entry_of(len(names) - 1)
        return value if entry is None else OriginArray.of(value, Origin((entry,), ("made before",)))

    folder = (tmp_path,) if "folder" in parameters(row) else ()
    return row(give, *folder), names


def _entry():
    """A charge of a name of its own: models are used again, and keep what they were charged."""
    label = secrets.token_hex(8)
    return LedgerEntry(label, dp_accounting.GaussianDpEvent(9.0), 1, {"release": label})


def charges(made):
    """Labels of what something costs."""
    if hasattr(made, "ledger"):
        return {entry.label for entry in made.ledger.entries}
    if isinstance(made, keras.layers.Layer | tfdp.selection.FEST):
        return {entry.label for entry in made.privacy_releases}
    return {entry.label for entry in dataset_tags.origin_of(made).releases}


# What fits a model or draws much noise: a day sees all of its arguments charged at once.
COSTLY = [name for name in ROWS if name.endswith((".fit", "fit, by class", "without a release"))]
COSTLY += [
    "data.private_frequency", "data.private_transitions", "selection.private_top_k",
    "models.TextClassifier.release", "models.TextClassifier.representations",
    "tuning.tune", "tuning.PrivateMean",
]  # fmt: skip


@pytest.mark.parametrize("name", slow.cases(ROWS, slow=COSTLY))
def test_every_argument_brings_its_charge(name, tmp_path):
    for i in itertools.count():
        entry = _entry()
        made, names = given_by(ROWS[name], tmp_path, {i: entry}.get)
        if i == len(names):
            assert entry.label not in charges(made)
            assert_all_are_given(name, names)
            break
        assert entry.label in charges(made), f"argument {i}, {names[i]}"


def assert_all_are_given(name, names):
    listed = name.split(",")[0]
    assert data_of(listed, operator.attrgetter(listed)(tfdp)) <= set(names)


@pytest.mark.parametrize("name", COSTLY)
def test_all_arguments_together_bring_their_charges(name, tmp_path):
    entries = [_entry() for _ in range(10)]
    made, names = given_by(ROWS[name], tmp_path, entries.__getitem__)
    missing = {e.label: n for e, n in zip(entries, names, strict=False)}.keys() - charges(made)
    assert not missing, [n for e, n in zip(entries, names, strict=False) if e.label in missing]
    assert_all_are_given(name, names)


def without_a_row(functions):
    """[(name, parameters)] of those that take data and are neither in `ROWS` nor `ELSEWHERE`."""
    known = {row.split(",")[0] for row in ROWS} | set(ELSEWHERE)
    excused = tuple(one for one in ELSEWHERE if one.endswith("."))
    listed = [(name, sorted(data_of(name, function))) for name, function in functions]
    return [
        (name, taken) for name, taken in listed
        if taken and name not in known and not name.startswith(excused)
    ]  # fmt: skip


def test_every_public_function_that_takes_data_has_a_row():
    missing = without_a_row(public())
    assert not missing, (
        f"Parameters that may hold data: {missing}. Add a row to ROWS. If another test or object "
        "charges for the function, say so in ELSEWHERE. If a parameter never holds data, add it to "
        "SETTINGS."
    )


@pytest.mark.parametrize("parameter", ["values", "counts", "of_a_name_that_nothing_had_before"])
def test_a_new_function_takes_data_by_every_parameter_that_is_no_setting(parameter):
    function = eval(f"lambda {parameter}, epsilon, seed=None: None")
    assert without_a_row([("data.private_counts", function)]) == [
        ("data.private_counts", [parameter])
    ]


#: Parameters that are settings wherever they are. Any other brings data in: a new one belongs here
#: only if it never holds records, or what was made of records.
SETTINGS = set(
    """
accountant adjacency appearances args assumed_epsilon assumptions at_probe auto_scale_loss backbone
backup_dir balanced bands batch_size beta_1 beta_2 bound budget callbacks canaries capacity cell
claim clip_norm clipping cls coefficients combiner confidence config contribution_norm copies count
decay delete_checkpoint delimiter delta details dim directory distinct double_checkpoint draw
dropout embedding_dim embedding_optimizer embedding_stddev embeddings_initializer entries entry
epoch epochs epsilon error_scale event event_count exclude_seen expected_batch_size expected_size
extra_delta false_alarms filepath first_is_user folder force gap_power gather
gradient_scales guesses hash_buckets
hidden_dim hidden_units initial_accumulator_value input_shape item item_tower jit_compile k kept
kind kw kwargs label label_share last_items layer layer_classes layer_shares layout learning_rate
learning_rates ledger log_dir logs loss loss_weights mask mask_zero max_batch_size max_epsilon
max_length max_participations max_records_per_unit max_value max_values mechanism metrics
microbatch_size microbatches min_length min_separation min_value model momentum most_survivors
multivalued name noise_at noise_correlation noise_multiplier noise_ratio noise_stddev normalize
not_covered notes num_blocks num_classes num_examples num_heads num_integers num_items num_mixtures
num_negatives num_records num_rows num_steps num_users number_of_runs optimizer origin other
other_events overflow_delta padding_id parse part passes path per_example_reduction period periods
placement pooling popularity_prior popularity_share privacy_assumptions probe regularization remarks
ridge rounds row_wise run run_eagerly sampling sampling_probability sampling_unit save_freq score
seed seeded selection self setting shape similarity slots smoothing source step steps
steps_per_epoch steps_per_execution store strategy symmetric temperature test_fraction text
threshold tied timestamp train_backbone trainable_variables training trials unit unstated user
user_tower validate var_list variable variables verbose vocabulary_size vocabulary_sizes weight
weight_decay weighted_metrics window with_record within without_record workers y_pred
""".split()
)
#: In these rooms there are numbers of charges and tensors of a step, which have names like data.
ROOMS_OF_NUMBERS = {"accounting", "audit", "callbacks", "clipping", "optimizers", "serving"}
TENSORS = set(
    """
activated batch columns contributions correct example_mask gradient gradients grads hits ids left
matrix mean relative_norms right rows scores_with scores_without static sums table tables value
values
""".split()
)
