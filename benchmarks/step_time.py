r"""What privacy costs: one private step against one plain Keras step of the same model.

Two transformer blocks, width 64, vocabulary 3,417, batch 64. Both steps are timed alternately in
one process, so that whatever else the machine does hits both. Writes JSON.

    python benchmarks/step_time.py [--repeats 15] [--policies float32 mixed_bfloat16] \
        [--out benchmarks/results/step_time.json]
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time

import record

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

VOCABULARY, WIDTH, BATCH = 3417, 64, 64
# Of memory: a tied head over a large vocabulary, where the logits are most of it.
LARGE, ENOUGH, GRAIN = {"tied": True, "length": 50, "vocabulary": 23_715}, 8 << 30, 16


def transformer(length, tied, vocabulary=VOCABULARY, width=WIDTH):
    import keras

    layers = keras.layers
    ids = keras.Input((length,), dtype="int32")
    table = layers.ReversibleEmbedding(vocabulary, width, tie_weights=tied)
    x = table(ids)
    for _ in range(2):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(1, width)(normed, normed, use_causal_mask=True)
        hidden = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(hidden)
    return keras.Model(ids, table(layers.LayerNormalization()(x), reverse=True))


def steps(length, tied, jit, batch=BATCH, vocabulary=VOCABULARY, which=("plain", "private")):
    """Two functions that run one training step each, on the same data."""
    import keras
    import tensorflow as tf

    import tfdp

    generator = tf.random.Generator.from_seed(0)
    x, y = (generator.uniform((batch, length), 1, vocabulary, tf.int32) for _ in range(2))
    weights = tf.ones([batch])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made = {}
    for name in which:
        model = transformer(length, tied, vocabulary)
        optimizer, data = keras.optimizers.Adam(1e-3), (x, y)
        if name == "private":
            model = tfdp.make_private(model)
            optimizer = tfdp.optimizers.DPOptimizer(
                optimizer, noise_multiplier=1.0, num_examples=100_000, expected_batch_size=batch
            )
            data = (x, y, weights)
        model.compile(optimizer, loss=loss, jit_compile=jit)
        optimizer.build(model.trainable_variables)
        function = tf.function(model.train_step, jit_compile=jit, autograph=False)
        made[name] = lambda function=function, data=data: function(data)
    return made


def measure(length, tied, jit, policy, repeats):
    import keras

    keras.config.set_dtype_policy(policy)
    made = steps(length, tied, jit)
    seconds = {name: [] for name in made}
    for step in made.values():
        step()
        step()
    for _ in range(repeats):
        for name, step in made.items():
            start = time.perf_counter()
            result = step()
            [float(v) for v in result.values()]
            seconds[name].append(time.perf_counter() - start)
    ratios = [b / a for a, b in zip(seconds["plain"], seconds["private"], strict=True)]
    return {
        "length": length, "tied": tied, "xla": jit, "policy": policy,
        "plain_seconds": statistics.median(seconds["plain"]),
        "private_seconds": statistics.median(seconds["private"]),
        "ratio": statistics.median(seconds["private"]) / statistics.median(seconds["plain"]),
        "ratio_of_pairs": statistics.median(ratios),
        "ratio_of_fastest": min(seconds["private"]) / min(seconds["plain"]),
    }  # fmt: skip


def largest_batch(which):
    """The largest batch, a multiple of `GRAIN`, whose steps stay within `ENOUGH` bytes."""
    # One float32 for each logit is more than that; TensorFlow cannot even address so many.
    fits, fails = 0, ENOUGH // (4 * LARGE["length"] * LARGE["vocabulary"] * GRAIN) + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if peak_memory(which, GRAIN * middle) <= ENOUGH:
            fits = middle
        else:
            fails = middle
    return GRAIN * fits


def peak_memory(which, batch):
    """Peak resident bytes of a process that runs two steps."""
    code = (
        "import sys; sys.path.insert(0, 'benchmarks'); import step_time\n"
        f"step = step_time.steps(jit=False, batch={batch}, which=['{which}'], **step_time.LARGE)\n"
        f"step['{which}'](); step['{which}']()\n"
        "print(step_time.peak_of_this_process())"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return int(output.stdout.split()[-1])


def peak_of_this_process():
    """Not `ru_maxrss`: in a process that another one started, that begins at the other's size."""
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--tied", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--jit", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--policies", nargs="+", default=["float32"], help="dtype policies")
    parser.add_argument("--memory", action="store_true", help="peak memory at B 512, V 23,715")
    parser.add_argument("--largest-batch", action="store_true", help="in 8 GiB, V 23,715")
    args = record.parse(parser, lengths=[50], repeats=9, memory=True)
    result = record.Result(args.out, steps=[])
    for policy, length, tied, jit in itertools.product(
        args.policies, args.lengths, args.tied, args.jit
    ):
        row = measure(length, bool(tied), bool(jit), policy, args.repeats)
        result["steps"].append(row)
        result.write()
        print(f"{policy:15} T {length:3}  {'tied' if tied else 'untied':7}"
              f"{'XLA' if jit else 'tf.function':12}"
              f"plain {row['plain_seconds']:.3f} s  private {row['private_seconds']:.3f} s"
              f"  ratio {row['ratio']:.2f} (pairs {row['ratio_of_pairs']:.2f},"
              f" fastest {row['ratio_of_fastest']:.2f})", flush=True)  # fmt: skip
    if args.memory:
        peaks = {w: peak_memory(w, 512) for w in ("plain", "private")}
        result["peak_bytes"] = {**peaks, "ratio": peaks["private"] / peaks["plain"]}
        print(f"peak memory, B 512, vocabulary 23,715, T 50, tied: {result['peak_bytes']}")
    if args.largest_batch:
        largest = {w: largest_batch(w) for w in ("plain", "private")}
        result["largest_batch"] = {**largest, "ratio": largest["private"] / largest["plain"]}
        print(f"largest batch of it in 8 GiB: {result['largest_batch']}")
    result.write()


if __name__ == "__main__":
    main()
