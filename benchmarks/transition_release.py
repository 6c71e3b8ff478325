"""Time and memory of one release of transitions: a million items, ten million pairs.

python benchmarks/transition_release.py --out benchmarks/results/transition_release.json
"""

import argparse
import json
import os
import resource
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import record

import tfdp
from tfdp.data.releases.transition_counts import Histories, transition_sums


def sequences(num_users, length, num_items, seed=0):
    """Items of Zipf popularity, one follows another by habit in half of the cases."""
    rng = np.random.default_rng(seed)
    rank = np.minimum(
        (num_items ** rng.random((num_users, length + 1))).astype(np.int64), num_items
    )
    habit = rng.random((num_users, length)) < 0.5
    for t in range(length):
        follower = (rank[:, t] * 48271 + 11) % num_items + 1
        rank[:, t + 1] = np.where(habit[:, t], follower, rank[:, t + 1])
    rank = rank.astype(np.int32)
    return rank[:, :-1], rank[:, 1:]


def peak():
    """Gigabytes of memory that the process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=10**6)
    parser.add_argument("--users", type=int, default=240_000)
    parser.add_argument("--length", type=int, default=12)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=1)
    args = record.parse(parser, items=10**5, users=24_000)
    x, y = sequences(args.users, args.length, args.items)
    before = peak()
    start, computing = time.time(), time.process_time()
    release = tfdp.data.private_transitions(
        (x, y), epsilon=args.epsilon, num_items=args.items, window=args.window, rounds=args.rounds
    )
    seconds, computing, memory = time.time() - start, time.process_time() - computing, peak()
    histories = Histories(np.concatenate([x, y[:, -1:]], axis=1), args.items)
    touched = len(transition_sums(histories, args.window, 0.7, False)[0])
    users = np.diff(np.searchsorted(histories.users, np.arange(args.users + 1)))
    pairs = sum(int(np.maximum(users - gap, 0).sum()) for gap in range(1, args.window + 1))
    result = record.Result(args.out, arguments=vars(args))
    result |= {
        "seconds": round(seconds, 1),
        "seconds_of_computing": round(computing, 1),
        "peak_gib": round(memory, 2),
        "gib_before": round(before, 2),
        "pairs": pairs,
        "distinct_pairs": touched,
        "survivors": len(release.values),
        "threshold": release.details["thresholds"][0],
    }
    result.write()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
