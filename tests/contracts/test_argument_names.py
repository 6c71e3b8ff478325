"""Arguments that other libraries have: the error names what tfdp has instead."""

import inspect

import numpy as np
import pytest
from keras import layers, optimizers

import tfdp
from tfdp.optimizers import DPOptimizer

RECORDS = (np.zeros((8, 2), "float32"), np.zeros((8, 1), "float32"))


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: DPOptimizer("adam", noise_multiplier=1.0, beta_1=0.8), r"Adam\(beta_1=...\)"),
        (lambda: DPOptimizer("sgd", noise_multiplier=1.0, learning_rate=0.1), "learning_rate=..."),
        (lambda: DPOptimizer("sgd", noise_multiplier=1.0, l2_norm_clip=0.5), "`clip_norm`"),
        (lambda: DPOptimizer("sgd", noise_multiplier=1.0, max_grad_norm=0.5), "`clip_norm`"),
        (lambda: DPOptimizer("sgd", noise_multiplier=1.0, num_microbatches=4), "`microbatch_size`"),
        (lambda: DPOptimizer("sgd", target_epsilon=1.0, target_delta=1e-5), "PrivacyBudget"),
        (lambda: DPOptimizer("sgd", epsilon=1.0, delta=1e-5), "PrivacyBudget"),
        (lambda: DPOptimizer("sgd", noise_multiplier=1.0, epochs=3), "`fit` sets them"),
        (lambda: tfdp.data.poisson_batches(RECORDS, batch_size=4), "`expected_batch_size`"),
        (lambda: tfdp.data.poisson_batches(RECORDS, sample_rate=0.1), "the sampling probability"),
        (lambda: tfdp.data.cyclic_poisson_batches(RECORDS, batch_size=4), "`expected_batch_size`"),
        (lambda: tfdp.make_private(layers.Dense(1), optimizer="sgd"), "`compile`"),
    ],
)
def test_the_error_says_what_to_pass(call, named):
    with pytest.raises(TypeError, match=f"has no argument `.*{named}.* Received: "):
        call()


def test_other_arguments_are_refused_by_python():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nois'"):
        DPOptimizer("sgd", nois=1.0)


@pytest.mark.parametrize("name", ["Adam", "SGD", "AdamW"])
def test_arguments_of_the_wrapped_optimizer_are_those_of_keras(name):
    known = inspect.signature(getattr(optimizers, name)).parameters
    for argument in {"learning_rate", "weight_decay", "clipnorm", "use_ema"} & set(known):
        with pytest.raises(TypeError, match="wrapped optimizer"):
            DPOptimizer("sgd", noise_multiplier=1.0, **{argument: 0.1})
