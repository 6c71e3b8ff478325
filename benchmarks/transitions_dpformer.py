"""DPFormer around a private release of transitions, against the release alone, on MovieLens-1M.

    python benchmarks/transitions_dpformer.py --data ml-1m.txt

One budget for everything, ε = 8 and δ = 1/n: the release takes `--share` of 1/σ² of the Gaussian
that the whole budget would afford, training takes what the ledger leaves. Each run trains DPFormer
with and without Re-Attention around the same release and from the same initial weights (paired);
noise is fresh. Protocol as in benchmarks/transitions.py. Settings were chosen on the second last
items (`--target second_last`), by few runs.
"""

import argparse
import json
import time

import dp_accounting
import keras
from transitions import RESULTS, SETTINGS, evaluate, interval, load

import tfdp


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a `user item` file")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--share", type=float, default=0.9, help="of the budget, for the release")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=20)
    parser.add_argument("--stddev", type=float, default=0.002, help="of the initial embeddings")
    parser.add_argument("--train-gate", action="store_true")
    parser.add_argument("--target", choices=["last", "second_last"], default="last")
    parser.add_argument("--out", default=str(RESULTS / "transitions_dpformer.json"))
    return parser.parse_args()


def train(data, histories, release, frequency, error_scale, seed, args):
    """Scores before and after training, and the statement."""
    keras.utils.set_random_seed(seed)
    prior = tfdp.layers.TransitionPrior(release, train_gate=args.train_gate, name="transitions")
    model = tfdp.models.DPFormer(
        data.num_items, data.max_length, item_frequency=frequency, dim=args.dim,
        embedding_stddev=args.stddev, transitions=prior, error_scale=error_scale,
    )  # fmt: skip
    delta = 1 / data.num_users
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(args.learning_rate),
            budget=tfdp.PrivacyBudget(args.epsilon, delta),
            num_examples=data.num_users,
            expected_batch_size=args.batch_size,
            steps=args.steps,
            clipping="normalized",
            microbatch_size=256,
        )
    )
    batches = tfdp.data.poisson_batches(data.train, args.batch_size, steps_per_epoch=args.steps)
    start = time.time()
    model.fit(batches, epochs=1, verbose=0)
    statement = model.privacy_statement(delta).to_dict()
    scores = evaluate(model, data, histories)
    return {
        **scores,
        "seconds": round(time.time() - start, 1),
        "noise_multiplier": model.optimizer.noise_multiplier,
        "epsilon": statement["epsilon"],
        "gate": float(prior.gate),
    }


def main():
    args = parse()
    long = load(args.data, SETTINGS["movielens"]["max_length"], args.target)
    data = load(args.data, args.max_length, args.target)
    delta = 1 / data.num_users
    sigma = dp_accounting.get_sigma_gaussian(args.epsilon, delta) / args.share**0.5
    result = {"arguments": {k: v for k, v in vars(args).items() if k not in ("data", "out")},
              "runs": []}  # fmt: skip
    for seed in range(args.runs):
        release = tfdp.data.private_transitions(long.train, noise_multiplier=sigma)
        # Re-Attention needs frequencies only where they differ: the release's own are free.
        frequency = (release.popularity / max(release.popularity)).clip(delta, 1.0)
        frequency[0] = 1.0
        run = {"release_alone": evaluate(tfdp.models.TransitionRecommender(release), long)}
        for name, scale in (("re_attention", 1.0), ("vanilla", 0.0)):
            run[name] = train(data, long.test.x, release, frequency, scale, seed, args)
        result["runs"].append(run)
        result["summary"] = {
            name: interval([r[name]["ndcg_10"] for r in result["runs"]])
            for name in ("release_alone", "re_attention", "vanilla")
        }
        differences = [r["re_attention"]["ndcg_10"] - r["vanilla"]["ndcg_10"]
                       for r in result["runs"]]  # fmt: skip
        result["summary"]["re_attention - vanilla"] = interval(differences)
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)
        print({k: round(v["ndcg_10"], 2) for k, v in run.items()}, run["vanilla"], flush=True)


if __name__ == "__main__":
    main()
