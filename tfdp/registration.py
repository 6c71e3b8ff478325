"""Makes tfdp's classes loadable from `.keras` files before their modules are imported."""

import importlib

import keras

from tfdp._compat import saved_model, undated
from tfdp.training.weights import initial_values, keras_files

#: Every class that tfdp registers with Keras, and where it lives.
CLASSES = {
    "AdaFEST": "tfdp.selection.adafest",
    "BandedInverse": "tfdp.optimizers.bands",
    "BandedMatrix": "tfdp.optimizers.bands",
    "Catalogue": "tfdp.models.catalogue",
    "ClickOdds": "tfdp.layers.click_odds",
    "DPFormer": "tfdp.models.dpformer",
    "DPForwardNoise": "tfdp.layers.dp_forward_noise",
    "DPModel": "tfdp.training.dp_model",
    "DPOptimizer": "tfdp.optimizers.dp_optimizer",
    "EmbeddingError": "tfdp.layers.item_embedding",
    "ExponentialSelection": "tfdp.selection.exponential",
    "FEST": "tfdp.selection.fest",
    "HitRate": "tfdp.metrics",
    "LazyAdam": "tfdp.optimizers.rows.lazy_adam",
    "LearnedPositions": "tfdp.layers.item_embedding",
    "MeanExampleLoss": "tfdp.clipping.losses",
    "NDCG": "tfdp.metrics",
    "OriginArray": "tfdp.data.provenance.origins",
    "PerExampleLoss": "tfdp.clipping.losses",
    "PopularityPrior": "tfdp.layers.item_embedding",
    "PrivateAttention": "tfdp.attention_release.private_attention",
    "PrivateCTR": "tfdp.models.ctr",
    "PrivateModel": "tfdp.training.make_private",
    "ReAttention": "tfdp.layers.re_attention",
    "ReAttentionBlock": "tfdp.layers.re_attention_block",
    "RowAdagrad": "tfdp.optimizers.rows.row_adagrad",
    "RowSGD": "tfdp.optimizers.rows.row_sgd",
    "SequenceBaseline": "tfdp.models.sequence_baseline",
    "SharedNegatives": "tfdp.layers.shared_negatives",
    "SharedScores": "tfdp.layers.shared_scores",
    "SparseEmbedding": "tfdp.layers.sparse_embedding",
    "TextClassifier": "tfdp.models.text_classifier",
    "TextTokenizer": "tfdp.layers.text_tokenizer",
    "TransitionOdds": "tfdp.layers.transition_odds",
    "TransitionPrior": "tfdp.layers.transition_prior",
    "TransitionRecommender": "tfdp.models.transition_recommender",
    "TwoTower": "tfdp.models.two_tower",
}


def register():
    """Registers a stand-in for each class; importing the class replaces it."""
    keras_files.install()
    initial_values.install()
    saved_model.install()
    undated.install()
    known = keras.saving.get_custom_objects()
    for name in CLASSES:
        known.setdefault(f"tfdp>{name}", _stand_in(name))


def _stand_in(name):
    def from_config(config, **kwargs):
        module = importlib.import_module(CLASSES[name])
        return getattr(module, name).from_config(config, **kwargs)

    return type(name, (), {"from_config": staticmethod(from_config)})
