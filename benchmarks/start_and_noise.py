"""What is paid before the first step, and for the noise of each: imports, budgets, draws.

    python benchmarks/start_and_noise.py [--out benchmarks/results/start_and_noise.json]

Noise is timed against `tf.random.normal`, which other libraries add, in alternation. Their draws
end at 5.7 standard deviations and are added to float32 sums, whose low bits they do not hide.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import record

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
BUDGETS = (  # epsilon, delta, sampling probability, steps
    (3, 1e-5, 0.05, 200), (8, 1e-4, 512 / 6040, 1200), (1, 1e-6, 0.001, 20_000),
    (3, 1e-5, 1, 100), (0.5, 1e-5, 0.01, 1000), (8, 1e-5, 0.3, 60), (3, 1e-3, 0.5, 10),
    (8, 1 / 6040, 256 / 6040, 2400),
)  # fmt: skip
IMPORT = """
import time, tensorflow, keras
start = time.perf_counter()
import tfdp
bare = time.perf_counter() - start
tfdp.optimizers.DPOptimizer, tfdp.make_private, tfdp.data.poisson_batches
used = time.perf_counter() - start
tfdp.accounting.Ledger
print(bare, used, time.perf_counter() - start)
"""


def imports():
    runs = [
        subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    bare, used, charged = zip(*(map(float, r.stdout.split()[-3:]) for r in runs), strict=True)
    return {"tfdp": min(bare), "with the optimizer": min(used), "with a charge": min(charged)}


def budgets():
    import tfdp
    from tfdp.accounting.calibration import calibrate_noise_multiplier

    calibrate_noise_multiplier(tfdp.PrivacyBudget(2, 1e-5), 0.1, 10)
    found = []
    for epsilon, delta, q, steps in BUDGETS:
        start = time.perf_counter()
        sigma = calibrate_noise_multiplier(tfdp.PrivacyBudget(epsilon, delta), q, steps)
        found.append({"epsilon": epsilon, "delta": delta, "sampling_probability": q,
                      "steps": steps, "noise_multiplier": sigma,
                      "seconds": time.perf_counter() - start})  # fmt: skip
    return found


def draws():
    import tensorflow as tf

    from tfdp.noise import NoiseSource
    from tfdp.noise.grid import Grid

    source, found = NoiseSource(), []
    for size in SIZES:
        values = tf.zeros([size])

        @tf.function(autograph=False)
        def theirs(values, size=size):
            return values + tf.random.normal([size])

        @tf.function(autograph=False)
        def ours(values, size=size):
            return source.release([values], Grid(tf.constant(1.0), 1.0, size))[0]

        seconds = {theirs: [], ours: []}
        for _ in range(max(5, min(300, 3 * 10**7 // size)) + 1):
            for run, times in seconds.items():
                start = time.perf_counter()
                run(values)[:1].numpy()
                times.append(time.perf_counter() - start)
        plain, private = (statistics.median(times[1:]) for times in seconds.values())
        found.append({"size": size, "normal": plain, "release": private, "ratio": private / plain})
        print(f"{size:>11,}  {1e3 * plain:9.3f} ms  {1e3 * private:9.3f} ms  {private / plain:.2f}",
              flush=True)  # fmt: skip
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args = record.parse(parser)
    result = record.Result(args.out, draws=draws(), budgets=budgets(), imports=imports())
    print(json.dumps({k: result[k] for k in ("budgets", "imports")}, indent=1))
    result.write()


if __name__ == "__main__":
    main()
