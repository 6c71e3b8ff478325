"""ε of random allocation beside that of Poisson samples of q = 1/T, at equal noise.

With `--outside`, bounds from above and from below by `PLD_accounting` (Feldman and Shenfeld 2026),
which is run in an environment of its own. Writes JSON.

    python -m venv .venv-outside && .venv-outside/bin/pip install PLD_accounting
    python benchmarks/random_allocation.py --outside .venv-outside/bin/python \
        --out benchmarks/results/random_allocation.json
"""

import argparse
import json
import os
import subprocess

import record

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

DELTA = 1e-6
#: Noise multiplier, steps of an epoch, epochs.
SETTINGS = (
    (1.0, 2, 1), (0.5, 10, 1), (0.7, 100, 1), (1.0, 100, 1),
    (1.0, 100, 10), (2.0, 10, 20), (0.8, 1000, 5), (1.5, 20, 30),
)  # fmt: skip
OUTSIDE = """
import json, sys
from PLD_accounting import gaussian_allocation_epsilon_range
sigma, steps, epochs, delta = json.loads(sys.argv[1])
print(json.dumps(gaussian_allocation_epsilon_range(
    delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs)))
"""


def measured(sigma, steps, epochs, outside):
    import dp_accounting

    from tfdp.accounting import epsilon
    from tfdp.accounting.events.composition import compose, training_event
    from tfdp.accounting.events.random_allocation import RandomAllocationGaussianDpEvent

    allocated = RandomAllocationGaussianDpEvent(steps, sigma)
    found = {
        "noise_multiplier": sigma,
        "steps_per_epoch": steps,
        "epochs": epochs,
        "allocation": epsilon(compose([(allocated, epochs)]), DELTA),
        "poisson": epsilon(compose([(training_event(sigma, 1 / steps), steps * epochs)]), DELTA),
        "without_amplification": epsilon(
            compose([(dp_accounting.GaussianDpEvent(sigma), epochs)]), DELTA
        ),
    }
    if outside:
        call = [outside, "-c", OUTSIDE, json.dumps([sigma, steps, epochs, DELTA])]
        printed = subprocess.run(call, capture_output=True, text=True, check=True).stdout
        found["outside_upper"], found["outside_lower"] = json.loads(printed.splitlines()[-1])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outside", help="a Python that has PLD_accounting")
    arguments = record.parse(parser)
    result = record.Result(arguments.out, delta=DELTA, settings=[])
    for setting in SETTINGS:
        result["settings"].append(measured(*setting, arguments.outside))
        print(result["settings"][-1], flush=True)
        result.write()
    if arguments.outside:
        code = "import importlib.metadata as m; print(m.version('PLD_accounting'))"
        version = subprocess.run([arguments.outside, "-c", code], capture_output=True, text=True)
        result["outside"] = f"PLD_accounting {version.stdout.strip()}"
        result.write()


if __name__ == "__main__":
    main()
