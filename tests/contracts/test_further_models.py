"""What Keras users train beyond the architectures of the clipping tests is proved, too."""

import keras
import pytest
import tensorflow as tf
from further_models import MODELS, N

import tfdp
from tfdp.errors import PrivacyError
from tfdp.training.checks import independence

# One with learned queries: the readers of such queries are proved in test_independence.py.
QUICK = "text as tf idf", "self attentive sequences", "mel spectrogram", "queries beside words"
#: Layers without a rule: values were searched, and the statement says so.
SEARCHED = {
    "text as tf idf": "TextVectorization",
    "text vectorized": "TextVectorization",
    "categories encoded and crossed": "HashedCrossing",
}
#: Decibels of Keras' MelSpectrogram are cut 80 below the loudest of the whole batch.
MIXED = {"mel spectrogram": "operation '.*Max' .* joins the examples"}


def prove(name):
    base, x, y, loss = MODELS[name]()
    model = tfdp.make_private(base)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), noise_multiplier=1.0, num_examples=N, expected_batch_size=32
    )
    model.compile(optimizer, loss)
    x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
    model.clipping_plan(x)
    if name in MIXED:
        with pytest.raises(PrivacyError, match=MIXED[name]):
            independence.examine_on_paper(model, x, y, None)
        return
    notes = independence.notes_of([independence.examine_on_paper(model, x, y, None)])
    if name in SEARCHED:
        (assumption,) = notes.assumptions
        assert f"({SEARCHED[name]}): it has no rule" in assumption
    else:
        assert notes.remarks == (independence.PROVED,) and not notes.assumptions, notes


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("name", QUICK)
def test_some_further_models_are_proved(name):
    prove(name)


@pytest.mark.evidence
@pytest.mark.parametrize("name", sorted(set(MODELS) - set(QUICK)))
def test_further_models_are_proved(name):
    prove(name)
