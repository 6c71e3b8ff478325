"""Items for users by tensorflow_recommenders' factorized top-k, from towers that tfdp trained.

Runs in an environment of its own, without tfdp and Keras 3: tensorflow_recommenders is of Keras 2.

    python examples/two_tower.py --export towers
    .venv-retrieval/bin/python examples/retrieve_tfrs.py towers     (`make retrieval` makes it)
"""

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("towers", help="folder written by examples/two_tower.py")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--out", help="also write what was found, as .npz")
    args = parser.parse_args(arguments)
    towers = tf.saved_model.load(args.towers)
    held_out = np.load(pathlib.Path(args.towers) / "held_out.npz")
    users, items = towers.user_vectors(held_out["history"]), towers.item_vectors()

    top_k = tfrs.layers.factorized_top_k
    brute_force = top_k.BruteForce(k=args.k).index(items)
    streaming = top_k.Streaming(k=args.k).index_from_dataset(
        tf.data.Dataset.from_tensor_slices(items).batch(64)
    )
    found = {name: index(users) for name, index in
             {"brute_force": brute_force, "streaming": streaming}.items()}  # fmt: skip
    metric = tfrs.metrics.FactorizedTopK(brute_force, ks=[args.k])
    following = held_out["following"][:, None]
    # By ids: of scores, the rounding of a product decides who is tenth.
    metric.update_state(users, tf.gather(items, following[:, 0]), true_candidate_ids=following)
    share = float(metric.result()[0])
    print(f"users with the next item among the {args.k} found: {share:.3f}")
    if args.out:
        arrays = {}
        for name, (scores, ids) in found.items():
            arrays |= {f"{name}_scores": scores.numpy(), f"{name}_ids": ids.numpy()}
        np.savez(args.out, share=share, **arrays)


if __name__ == "__main__":
    main()
