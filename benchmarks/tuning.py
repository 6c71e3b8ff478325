"""Eight learning rates of a private transformer on MovieLens-1M, with the choice accounted for.

    python benchmarks/tuning.py --data ml-1m.txt

Trains on the histories without their last two items; a setting's score is the mean NDCG@10 of the
second last items, with noise; the last items are looked at once, for the best model. Prints the
statement, and ε composed by hand with dp_accounting.
"""

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import dp_accounting
import keras
import numpy as np
from dp_accounting import dp_event, rdp

import tfdp

RATES = [float(rate) for rate in np.geomspace(1e-3, 1e-1, 8)]
SIGMA, SCORE_SIGMA, FREQUENCY_EPSILON = 4.0, 12.0, 1.0
LENGTH, BATCH, STEPS, MEAN_RUNS, SHAPE = 20, 1024, 40, 8.0, 1.0


def ndcg_of_users(model, x, targets):
    """NDCG@10 of each user, (n,); users without a target have 0."""
    found = []
    for start in range(0, len(x), 512):
        scores = np.asarray(model.score_next(x[start : start + 512]))
        target = targets[start : start + 512]
        rank = (scores > scores[np.arange(len(target)), target][:, None]).sum(1)
        found.append(np.where((rank < 10) & (target > 0), 1 / np.log2(rank + 2), 0.0))
    return np.concatenate(found)


def by_hand(n, delta):
    """ε of everything, from dp_accounting alone."""
    sampled = dp_accounting.PoissonSampledDpEvent(BATCH / n, dp_accounting.GaussianDpEvent(SIGMA))
    run = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(sampled, STEPS),
         dp_accounting.GaussianDpEvent(SCORE_SIGMA)]
    )  # fmt: skip
    frequencies = dp_accounting.get_sigma_gaussian(FREQUENCY_EPSILON, 1 / (10 * n))
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(frequencies))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(run, MEAN_RUNS, SHAPE))
    return accountant.get_epsilon(delta)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a `user item` file")
    parser.add_argument("--out", default=pathlib.Path(__file__).parent / "results" / "tuning.json")
    args = parser.parse_args()
    data = tfdp.data.load_sequences(args.data, max_length=LENGTH)
    histories = [row[row > 0] for row in data.test.x]
    shorter = tfdp.data.leave_one_out_split(histories, LENGTH, data.num_items)
    n, delta = data.num_users, 1 / data.num_users
    frequency = tfdp.data.private_frequency(shorter.train, epsilon=FREQUENCY_EPSILON)
    start = time.time()

    def train(hp):
        model = tfdp.models.SequenceBaseline(
            data.num_items, LENGTH, cell="transformer", num_blocks=1, dim=16,
            popularity_prior=frequency,
        )  # fmt: skip
        model.compile(tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(hp.Choice("learning_rate", RATES)), noise_multiplier=SIGMA,
            num_examples=n, expected_batch_size=BATCH, clipping="normalized",
        ))  # fmt: skip
        batches = tfdp.data.poisson_batches(shorter.train, BATCH, steps_per_epoch=STEPS)
        model.fit(batches, verbose=0)
        print(f"a run ended after {time.time() - start:.0f} s", flush=True)
        return model

    score = tfdp.tuning.PrivateMean(
        lambda model: ndcg_of_users(model, shorter.test.x, shorter.test.y[:, -1]),
        num_examples=n, noise_multiplier=SCORE_SIGMA,
    )  # fmt: skip
    runs = tfdp.tuning.NumberOfRuns(MEAN_RUNS, SHAPE)
    best = tfdp.tuning.tune(train, score, runs)
    statement = best.model.privacy_statement(delta)
    print(statement)
    result = {
        "setting": best.setting,
        "score": best.score,
        "ndcg_10": 100 * float(ndcg_of_users(best.model, data.test.x, data.test.y[:, -1]).mean()),
        "epsilon": statement.epsilon,
        "epsilon_by_hand": by_hand(n, delta),
        "seconds": time.time() - start,
        "statement": statement.to_dict(),
    }
    print({k: v for k, v in result.items() if k != "statement"})
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
