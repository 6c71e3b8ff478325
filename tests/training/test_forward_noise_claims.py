"""The demonstrations of docs/forward_noise.md, held to what they say."""

import importlib.util
import pathlib

import numpy as np
import pytest
import slow
from epsilon_by_hand import visible_sampling_epsilon

from tfdp.accounting.literature import paper_forward_noise_claim


@pytest.fixture(scope="module")
def claims():
    path = pathlib.Path(__file__).parents[2] / "examples" / "forward_noise_claims.py"
    spec = importlib.util.spec_from_file_location("forward_noise_claims", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize(
    "settings",
    [
        # the paper's SST-2 run, and a toy of 50 records
        dict(num_examples=67_349, expected_batch_size=32, microbatches=32, epochs=3),
        dict(num_examples=50, expected_batch_size=10, microbatches=2, epochs=3),
    ],
)
def test_an_attack_exceeds_the_papers_epsilon_and_never_the_true_one(claims, settings):
    delta = 1 / (2 * settings["num_examples"])
    sigma = 0.399 if settings["num_examples"] > 50 else 1.2
    claim = paper_forward_noise_claim(sigma, delta=delta, **settings)
    # Each bound is wrong with a probability of at most 1%, and far below the true epsilon.
    found = claims.attack(sigma, claim.sampling_probability, claim.draws, delta)
    assert found > claim.claimed_epsilon
    assert found > claim.claimed_epsilon_pld or settings["num_examples"] == 50
    assert found <= claim.true_epsilon_poisson


@pytest.mark.thorough
@pytest.mark.parametrize("sigma", slow.cases([1.0, 3.0, 8.0], slow=[3.0]))
def test_the_attack_stays_below_the_true_epsilon_at_any_noise(claims, sigma):
    found = claims.attack(sigma, 0.2, 10, 1e-3, trials=10_000)
    assert found <= visible_sampling_epsilon(sigma, 0.2, 10, 1e-3)


@pytest.mark.thorough
def test_the_encoder_learns_raw_inputs_through_any_noise(claims):
    moved = claims.encoders_gradients_are_raw()
    assert moved[3] > 0 and np.all(np.delete(moved, 3) == 0)


def test_replacing_moves_a_clipped_vector_by_twice_the_norm(claims):
    assert claims.replacing_moves_by_twice_the_norm() == pytest.approx((1.0, 2.0), rel=1e-6)
