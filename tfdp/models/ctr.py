"""Click-through-rate prediction from categorical features and counts (the paper's pCTR)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras

from tfdp._validate import count, one_of
from tfdp.data.releases.count_values import INTEGER_VALUES, INTEGERS
from tfdp.layers.click_odds import ClickOdds, StoredStatistics
from tfdp.layers.sparse_embedding import SparseEmbedding
from tfdp.training.make_private import PrivateModel

if TYPE_CHECKING:
    from tfdp.data.releases.click_statistics import ClickStatistics

# What the sum of a value's log odds counts at the start: features say much of the same.
_FIRST_WEIGHT = 0.2


@dataclasses.dataclass(frozen=True)
class CategoricalFeature:
    """A categorical feature of `PrivateCTR`.

    Attributes:
        vocabulary_size: V; ids are integers in [0, V). Public.
        embedding_dim: width of a row; default int(2·V^0.25), the paper's rule.
        multivalued: whether an example has several values, with ids (B, T), or one, with ids (B,).
        combiner: "sum", "mean" or "sqrtn": how to combine several values into one vector.
        mask_zero: whether id 0 is padding.
        table: name of the table; features with the same name share one. Default: the feature's.
    """

    vocabulary_size: int
    embedding_dim: int | None = None
    multivalued: bool = False
    combiner: str = "mean"
    mask_zero: bool = False
    table: str | None = None

    def __post_init__(self):
        count("vocabulary_size", self.vocabulary_size)
        if self.embedding_dim is not None:
            count("embedding_dim", self.embedding_dim)
        one_of("combiner", self.combiner, ("sum", "mean", "sqrtn"))

    @property
    def dim(self):
        """Width of a row."""
        return self.embedding_dim or int(2 * self.vocabulary_size**0.25)


@keras.saving.register_keras_serializable(package="tfdp")
class PrivateCTR(PrivateModel):
    """pCTR: embeddings of categorical features beside log-transformed counts, then an MLP.

    Takes a dict of the features by name, and "integers", float (B, num_integers) raw counts, which
    enter as log(1 + max(0, x)). Returns logits (B, 1). If it is compiled without a loss and
    metrics, it uses binary cross-entropy and AUC. Every table is a `SparseEmbedding` with the name
    of its feature, by which `FEST` identifies it.

    Args:
        features: dict of feature name to vocabulary size, or to `CategoricalFeature`; for example
            `vocabulary_sizes` of the data from `load_criteo`.
        num_integers: width of "integers"; 0 for none.
        hidden_units: widths of the dense ReLU layers; the paper's are four of 598.
        embeddings_initializer: of all tables.
        placement: of all tables, as `SparseEmbedding`'s; "tpu" under a TPUStrategy.
        privacy_assumptions: sentences for the statement about what was declared public when the
            features were made, for example `privacy_assumptions` of the data from `load_criteo`.
        statistics: `tfdp.data.ClickStatistics` of the training data, charged to the model. The log
            odds of each feature enter the MLP (those of counts replace their logarithms). With one
            weight each they also enter the logit, which starts as a share of their sum.
        embedded: names of the features that have a table; default all. With `statistics`, no tables
            and no hidden units, the model is a logistic regression with few coordinates, and so
            with little noise.

    Raises:
        ValueError: for arguments out of range, for features that share a table and differ, or for a
            model without any input.

    Example:

    ```python
    data = tfdp.data.synthetic_clicks()
    model = tfdp.models.PrivateCTR(data.vocabulary_sizes)
    model.compile(tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(1e-3), noise_multiplier=1.0, num_examples=data.num_examples,
        expected_batch_size=1024, selection=tfdp.selection.AdaFEST(threshold=5.0),
        embedding_optimizer=tfdp.optimizers.RowAdagrad(0.05)))
    model.fit(tfdp.data.poisson_batches(data.train, 1024), epochs=3)
    ```

    Source: Ghazi et al. (2023), appendix D.1.1.
    """

    privacy_unit = "one impression"

    def __init__(
        self,
        features: dict[str, int | CategoricalFeature],
        num_integers: int = 13,
        hidden_units: Sequence[int] = (598, 598, 598, 598),
        embeddings_initializer: str | keras.Initializer = "uniform",
        placement: str | None = None,
        privacy_assumptions: Sequence[str] = (),
        statistics: ClickStatistics | None = None,
        embedded: Sequence[str] | None = None,
        **kwargs,
    ):
        if not isinstance(features, dict) or not features:
            raise ValueError(
                "Argument `features` must be a dict of feature name to vocabulary size or "
                f"CategoricalFeature. Received: features={features!r}"
            )
        if num_integers != int(num_integers) or num_integers < 0:
            raise ValueError(
                "Argument `num_integers` must be an integer ≥ 0. "
                f"Received: num_integers={num_integers}"
            )
        features = {
            name: f if isinstance(f, CategoricalFeature) else CategoricalFeature(f)
            for name, f in features.items()
        }
        initializer = keras.initializers.get(embeddings_initializer)
        inputs = {name: _ids(name, feature) for name, feature in features.items()}
        with_tables = {name: features[name] for name in _embedded(embedded, features)}
        parts = _look_up(inputs, with_tables, initializer, placement)
        if num_integers:
            inputs["integers"] = keras.Input((int(num_integers),), name="integers")
        odds = None if statistics is None else ClickOdds(statistics, name="click_odds")
        if odds is not None:
            _check_same_features(odds, features, int(num_integers))
        if num_integers and (odds is None or not odds.has_integers):
            parts.insert(0, keras.ops.log1p(keras.ops.relu(inputs["integers"])))
        log_odds = [] if odds is None else [odds(inputs)]
        if not parts + log_odds:
            raise ValueError(
                "Argument `embedded` must name a feature if there are no `statistics` and no "
                f"counts. Received: embedded={embedded!r}"
            )
        # Without hidden layers the odds enter the logit by their weights alone.
        x = parts + log_odds if hidden_units else parts
        x = keras.ops.concatenate(x, axis=-1) if len(x) > 1 else x[0] if x else None
        for i, units in enumerate(hidden_units):
            x = keras.layers.Dense(units, activation="relu", name=f"dense_{i}")(x)
        model = keras.Model(inputs, _logit(x, odds, *log_odds), name="ctr")
        super().__init__(model, **kwargs)
        self._odds_config = None if odds is None else odds.get_config()
        self.embedded = None if embedded is None else tuple(embedded)
        self.features = features
        self.num_integers = int(num_integers)
        self.hidden_units = tuple(hidden_units)
        self.embeddings_initializer = initializer
        self.placement = placement
        self.sentences = tuple(privacy_assumptions)
        self.privacy_assumptions += self.sentences
        self.charge_releases()

    def compile(self, optimizer="rmsprop", loss=None, metrics=None, **kwargs):
        if loss is None:
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
        if metrics is None and kwargs.get("weighted_metrics") is None:
            # Noise makes some logits large: 200 thresholds would lump their scores together.
            metrics = [keras.metrics.AUC(2000, from_logits=True, name="auc")]
        super().compile(optimizer, loss, metrics=metrics, **kwargs)

    def get_config(self):
        return {
            "features": {name: dataclasses.asdict(f) for name, f in self.features.items()},
            "num_integers": self.num_integers,
            "hidden_units": list(self.hidden_units),
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "placement": self.placement,
            "privacy_assumptions": list(self.sentences),
            "embedded": self.embedded if self.embedded is None else list(self.embedded),
            "statistics": self._odds_config,
            "name": self.name,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        features = {name: CategoricalFeature(**f) for name, f in config["features"].items()}
        if config.get("statistics") is not None:
            config["statistics"] = StoredStatistics(**config["statistics"])
        return cls(**{**config, "features": features})


def _check_same_features(odds, features, num_integers):
    """Raises if statistics are about other features than the model's."""
    expected = {name: f.vocabulary_size for name, f in features.items() if not f.multivalued}
    expected |= {f"{INTEGERS}_{j}": INTEGER_VALUES for j in range(num_integers)}
    wrong = {n: v for n, v in odds.vocabulary_sizes.items() if expected.get(n) != v}
    if wrong:
        raise ValueError(
            "Argument `statistics` must be about features that the model has, with the same "
            f"vocabulary sizes and one value per record. Received: statistics of {wrong}, in a "
            f"model of {expected}"
        )


def _embedded(embedded, features):
    """Names of the features that have a table."""
    names = list(features) if embedded is None else list(embedded)
    if unknown := [name for name in names if name not in features]:
        raise ValueError(
            f"Argument `embedded` must name features: {list(features)}. Received: {unknown}"
        )
    return names


def _logit(x, odds, log_odds=None):
    """The logit (B, 1): what the layers make of x and, given statistics, what these say."""
    if odds is None:
        return keras.layers.Dense(1, name="logit")(x)
    # The rate is released: a start from it is post-processing, as the log odds are.
    rate = keras.initializers.Constant(math.log(odds.rate / (1.0 - odds.rate)))
    weights = keras.initializers.Constant(_FIRST_WEIGHT)
    logit = keras.layers.Dense(
        1, kernel_initializer=weights, bias_initializer=rate, name="odds_weights"
    )(log_odds)
    if x is None:
        return logit
    learned = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="logit")
    return logit + learned(x)


def _ids(name, feature):
    shape = (None,) if feature.multivalued else ()
    ids = keras.Input(shape, dtype="int64", name=f"{name}_ids")
    # The layer's name is not the feature's, which its table has; the tensor's must be.
    ids.name = name
    return ids


def _look_up(inputs, features, initializer, placement):
    """One tensor (B, d) for each feature."""
    tables, specs, rows = {}, {}, []
    for name, feature in features.items():
        table = feature.table or name
        spec = (feature.vocabulary_size, feature.dim, feature.combiner, feature.mask_zero)
        if specs.setdefault(table, spec) != spec:
            raise ValueError(
                f"Argument `features` has features that share table {table!r} but differ in "
                "vocabulary size, dimension, combiner or mask. Give them different tables, or "
                f"the same settings. Received: {spec} and {specs[table]}"
            )
        if table not in tables:
            tables[table] = SparseEmbedding(
                feature.vocabulary_size,
                feature.dim,
                combiner=feature.combiner,
                mask_zero=feature.mask_zero,
                # One of its own for each table: an initializer with a seed repeats its values.
                embeddings_initializer=initializer.clone(),
                placement=placement,
                name=table,
            )
        rows.append(tables[table](inputs[name]))
    return rows
