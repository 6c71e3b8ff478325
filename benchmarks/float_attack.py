"""Membership from the low bits of released numbers, in every place that adds noise.

Draws of a release with and without one record, and the event of low bits that tells them apart
best on half of them, tried on the other half: a lower bound of δ at ε = 3, which is wrong with a
probability of 1e-6, beside the δ that is claimed there. Then the attack from end to end: one step
of SGD on a bias of zeros, σ = 4, and a guess from the released weights whether its batch held an
example. Writes JSON.

    python benchmarks/float_attack.py [--draws 1000000] [--runs 1000] [--out FILE]
"""

import argparse
import math
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path += [str(pathlib.Path(__file__).parents[1] / "tests" / part) for part in ("", "contracts")]

import numpy as np  # noqa: E402
import record
from float_patterns import (  # noqa: E402
    FALSE_ALARM,
    gaussian_delta,
    leaked_delta,
    low_bits_pvalue,
    lowest_bits,
)
from scipy import stats  # noqa: E402
from test_float_attack import EPSILON, PLACES, OneStep  # noqa: E402


def attack_place(place, draws):
    without, with_one = (PLACES[place](draws, member) for member in (False, True))
    epsilon, true = EPSILON, gaussian_delta(1.0, EPSILON)
    if place.endswith(("Laplace", "top-k")):
        epsilon, true = 1.0, 0.0
    return {
        "place": place, "draws": 2 * len(without), "epsilon": epsilon, "delta_claimed": true,
        "delta_proved_at_least": max(0.0, leaked_delta(without, with_one, epsilon)),
        "p_value_of_low_bits": low_bits_pvalue(without, with_one),
    }  # fmt: skip


def features(weights):
    """How many weights have their lowest bit below each power of two, small weights apart."""
    exponent, lowest = lowest_bits(weights)
    small = exponent <= -9  # |w| below half of what one example contributes
    places = np.arange(-60, -20)
    counts = [np.sum(lowest[part, None] < places, axis=0) for part in (small, ~small)]
    return np.concatenate(counts)


def attack_end_to_end(runs, coordinates=100_000, sigma=4.0):
    """The best threshold on the best count of the first half of the runs, tried on the second."""
    game = OneStep(coordinates, sigma)
    members = np.random.default_rng(0).permutation(np.arange(runs) % 2 == 1)
    found = np.array([features(game.weights(member)) for member in members])
    half = runs // 2
    best = (0.0, 0, 0.0, 1)
    for i in range(found.shape[1]):
        for threshold in np.unique(found[:half, i]):
            for sign in (1, -1):
                right = np.mean((sign * found[:half, i] >= sign * threshold) == members[:half])
                best = max(best, (right, i, threshold, sign))
    _, i, threshold, sign = best
    guesses = sign * found[half:, i] >= sign * threshold
    tried, truth = runs - half, members[half:]
    right = int(np.sum(guesses == truth))
    hits, alarms = int(np.sum(guesses & truth)), int(np.sum(guesses & ~truth))
    ones = int(truth.sum())
    low = stats.beta.ppf(0.025, hits, ones - hits + 1) if hits else 0.0
    high = stats.beta.isf(0.025, alarms + 1, tried - ones - alarms)
    return {
        "coordinates": coordinates, "sigma": sigma, "runs": tried, "right": right,
        "right_at_95": list(stats.binomtest(right, tried).proportion_ci(0.95)),
        "advantage_allowed": 2 * stats.norm.cdf(1 / (2 * sigma)) - 1,
        "epsilon_at_least_at_95": max(0.0, math.log(low / high)) if low else 0.0,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1_000_000, help="of each place, in all")
    parser.add_argument("--runs", type=int, default=1000)
    args = record.parse(parser, draws=100_000, runs=50)
    result = record.Result(args.out, false_alarm=FALSE_ALARM, places=[])
    for place in PLACES:
        row = attack_place(place, args.draws // 2 // 64 * 64)
        result["places"].append(row)
        result.write()
        print(
            f"{place:26} δ ≥ {row['delta_proved_at_least']:.5f} at ε = {row['epsilon']} "
            f"(claimed {row['delta_claimed']:.5f}), low bits alike: p = "
            f"{row['p_value_of_low_bits']:.3f}",
            flush=True,
        )
    result["end_to_end"] = row = attack_end_to_end(args.runs)
    print(f"one step, membership from weights: {row['right']} of {row['runs']} right")
    result.write()


if __name__ == "__main__":
    main()
