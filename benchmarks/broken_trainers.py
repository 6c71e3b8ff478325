"""Deliberately broken trainers, and what catches each of them: an audit, or a test of the suite.

    python benchmarks/broken_trainers.py            # all, prints the table and writes the JSON
    python benchmarks/broken_trainers.py --only "no noise"

For a test, pytest runs it in a process that loads this file as a plugin (`-p broken_trainers`) and
breaks the library before the test begins. "sound" is the library as it is: audits must not refute
it, and the tests must pass.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = pathlib.Path(__file__).resolve().parent
VARIABLE = "TFDP_BROKEN"


def no_noise():
    import tensorflow as tf

    from tfdp.noise import NoiseSource

    NoiseSource.release = lambda self, tensors, *a, **k: [tf.identity(t) for t in tensors]


def half_of_the_noise():
    from tfdp.noise.grid import Grid

    true = Grid.__init__

    def init(self, stddev, *args, **kwargs):
        true(self, 0.5 * stddev, *args, **kwargs)

    Grid.__init__ = init


def noise_reused():
    import tensorflow as tf

    from tfdp.noise import NoiseSource

    def stands_still(self, size):
        words = (self._key.read_value(), self._counter.read_value())
        return tuple(tf.bitcast(w, tf.uint64) for w in words)

    NoiseSource._advance = stands_still


def no_clipping():
    import tensorflow as tf

    from tfdp.clipping import factors

    factors._flat = lambda squared_norm, bound: tf.ones_like(squared_norm)


def clipped_to_twice_the_norm():
    from tfdp.clipping import factors

    true = factors._flat
    factors._flat = lambda squared_norm, bound: true(squared_norm, 2 * bound)


def clipped_by_each_layer_alone():
    from tfdp.clipping import engine, factors

    true = factors.clip_factors

    def alone(squared_norms, example_mask, clip_norm, clipping):
        found = [true([n], example_mask, clip_norm, clipping) for n in squared_norms]
        return [f for (f,), _ in found], found[0][1]

    engine.clip_factors = alone


def tied_tables_clipped_by_branch():
    from tfdp.clipping import gradients

    def squared_norm(self):
        parts = (self.rows.squared_norm(), self.outer.squared_norm())
        return tuple(a + b for a, b in zip(*parts, strict=True))

    gradients._Tied.squared_norm = squared_norm


def padding_counted():
    import tensorflow as tf

    from tfdp.selection import contribution_map

    true = contribution_map.activations
    contribution_map.activations = lambda rows, example_mask, norm: true(
        rows, tf.ones_like(example_mask), norm
    )


def not_a_number_let_through():
    from tfdp.clipping import gradients

    gradients.only_finite = lambda finite, *tensors: tensors if len(tensors) > 1 else tensors[0]


def shuffled_called_poisson():
    from tfdp.accounting.sampling import Sampling

    Sampling.is_poisson = property(lambda self: True)


def steps_not_charged():
    from tfdp.optimizers.charging import Charging

    Charging.charge_step = lambda self: None


def releases_not_charged():
    from tfdp.accounting import participant
    from tfdp.training import charged_model

    participant.releases_of = lambda participants: []
    charged_model.participant.releases_of = participant.releases_of


def cut_batches_not_charged():
    from tfdp.accounting.sampling import Sampling

    Sampling.overflow_probability = property(lambda self: 0.0)


def selection_on_raw_counts():
    import tensorflow as tf

    from tfdp.selection import contribution_map

    contribution_map.draws.standard_normal = lambda source, count: tf.zeros(
        tf.reshape(count, [1]), tf.float64
    )


def noise_of_the_map_forgotten():
    from tfdp.selection.contribution_map import ContributionMap

    true = ContributionMap.survivors
    ContributionMap.survivors = lambda self, threshold, noise_multiplier, source: true(
        self, threshold, 1e-9, source
    )


def untouched_rows_never_survive():
    import tensorflow as tf

    from tfdp.noise import draws

    draws.each_with_probability = lambda source, probability, bound: tf.zeros([0], tf.int64)


def noised_only_where_touched():
    import tensorflow as tf

    from tfdp.optimizers import logical_step

    true = logical_step.release_rows

    def release_rows(sums, grid, source):
        noisy = true(sums, grid, source)
        return [
            tf.where(tf.reduce_any(s != 0, axis=1, keepdims=True), n, s)
            for s, n in zip(sums, noisy, strict=True)
        ]

    logical_step.release_rows = release_rows


def mixtures_without_clipping():
    import numpy as np

    from tfdp.data import representations

    representations._clipped = lambda h, clip_norm: h.astype(np.float64)


def forward_noise_without_clipping():
    from tfdp.layers import dp_forward_noise

    dp_forward_noise.clip_examples = lambda inputs, clip_norm, mask: inputs


def top_k_without_noise():
    from tfdp.selection import top_k

    top_k._noisy = lambda counts, *others: counts


def seeds_by_default():
    from tfdp.noise import NoiseSource

    true = NoiseSource.__init__
    NoiseSource.__init__ = lambda self, seed=None: true(self, 0 if seed is None else seed)


FAULTS = "tests/contracts/test_faults.py::test_fault_"
#: name -> (what breaks it, an attack of tfdp.audit or a test of the suite, trials)
BROKEN = {
    "no noise": (no_noise, "step, full batch", 2000),
    "half of the noise": (half_of_the_noise, "step, full batch", 12000),
    "no clipping": (no_clipping, "step, full batch", 2000),
    "clipped to twice the norm": (clipped_to_twice_the_norm, "step, full batch", 12000),
    "Poisson step, no clipping": (no_clipping, "step, Poisson sampled", 6000),
    "selection on raw counts": (selection_on_raw_counts, "step with AdaFEST", 12000),
    "untouched rows never survive": (untouched_rows_never_survive, "step with AdaFEST", 2000),
    "forward noise without clipping": (forward_noise_without_clipping, "forward noise", 4000),
    "frequencies without noise": (no_noise, "item frequencies", 500),
    "transitions with half of the noise": (half_of_the_noise, "transitions", 12000),
    "click statistics with half of the noise": (half_of_the_noise, "click statistics", 12000),
    "top-k without noise": (top_k_without_noise, "top-k (FEST)", 500),
    "rows noised only where touched": (noised_only_where_touched, "canary rows, AdaFEST", 2000),
    "noise of the map forgotten": (noise_of_the_map_forgotten, "canary rows, AdaFEST", 2000),
    "untouched rows never survive, in fit": (
        untouched_rows_never_survive, "canary rows, AdaFEST", 2000),
    "FEST without noise, in fit": (top_k_without_noise, "canary rows, FEST", 2000),
    "mixtures without noise": (no_noise, "canaries in mixtures", 2000),
    "mixtures without clipping": (mixtures_without_clipping, "canaries in mixtures", 2000),
    "each layer clipped by itself": (
        clipped_by_each_layer_alone, "tests/clipping/test_exactness.py", 0),
    "tied tables clipped by branch": (tied_tables_clipped_by_branch, FAULTS + "12", 0),
    "padding counted in the map": (padding_counted, "tests/selection/test_contribution_map.py", 0),
    "not a number let through": (
        not_a_number_let_through, "tests/clipping/test_sensitivity.py", 0),
    "shuffled called Poisson": (shuffled_called_poisson, FAULTS + "14", 0),
    "steps not charged": (steps_not_charged, FAULTS + "17", 0),
    "releases not charged": (
        releases_not_charged, "tests/models/test_transition_recommender.py", 0),
    "cut batches not charged": (cut_batches_not_charged, "tests/accounting/test_truncation.py", 0),
    "noise reused": (noise_reused, "tests/noise/test_noise.py", 0),
    "seeds by default": (seeds_by_default, "tests/contracts/test_fresh_noise.py", 0),
}  # fmt: skip


def pytest_configure(config):
    """As a plugin of pytest: breaks the library for the tests of this process."""
    name = os.environ.get(VARIABLE)
    if name:
        BROKEN[name][0]()


def run_test(name, node):
    path, _, prefix = node.partition("::")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "broken_trainers", path]
    if prefix:
        command += ["-k", prefix]
    environment = {**os.environ, VARIABLE: name or "",
                   "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}  # fmt: skip
    done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: tests failed
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    what = failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else ""
    return {"by": node, "caught": done.returncode == 1, "what": what}


def run_game(name, game, trials):
    code = (
        "import json, broken_trainers as b, tfdp.audit\n"
        f"name = {name!r}\n"
        "if name: b.BROKEN[name][0]()\n"
        f"print('RESULT', json.dumps(tfdp.audit.play({game!r}, {trials}).to_dict()))\n"
    )
    environment = {**os.environ,
                   "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True)  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found = json.loads(done.stdout.split("RESULT")[1])
    return {"by": f"audit: {game}", "caught": not found["holds"], "claim": found["claim"],
            "bound": found["bound"], "trials": trials,
            "what": f"ε ≥ {found['bound']:.2f} shown, {found['claim']:.2f} claimed"}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(BROKEN), default=list(BROKEN))
    parser.add_argument("--out", default=HERE / "results" / "broken_trainers.json")
    args = parser.parse_args()
    path, date = pathlib.Path(args.out), time.strftime("%Y-%m-%d")
    result = {"broken": {}, "sound": {}}
    if args.only != list(BROKEN) and path.exists():  # the other rows stay, with their dates
        result = json.loads(path.read_text())
    for name in args.only:
        _, by, trials = BROKEN[name]
        broken = run_game(name, by, trials) if trials else run_test(name, by)
        key = by if not trials else f"{by}, {trials} trials"
        if result["sound"].get(key, {}).get("date") != date:
            sound = run_game("", by, trials) if trials else run_test("", by)
            result["sound"][key] = sound | {"date": date}
        sound = result["sound"][key]
        result["broken"][name] = broken | {"date": date}
        verdict = "caught" if broken["caught"] else "NOT CAUGHT"
        other = "REFUTED" if sound["caught"] else "stands"
        print(
            f"{name:36} {verdict:10} {broken['by']}: {broken['what']}; sound: {other}", flush=True
        )
        path.write_text(json.dumps(result, indent=1) + "\n")
    missed = [n for n, r in result["broken"].items() if not r["caught"]]
    refuted = [n for n, r in result["sound"].items() if r["caught"]]
    print(f"{len(result['broken'])} broken, not caught: {missed}; sound, but refuted: {refuted}")
    return 1 if missed or refuted else 0


if __name__ == "__main__":
    sys.exit(main())
