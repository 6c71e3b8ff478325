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

from breakages import (
    bands_of_sampler_and_noise_differ,
    chains_not_charged_again,
    charges_dropped_by_arithmetic,
    charges_of_scores_dropped,
    clipped_by_each_layer_alone,
    clipped_to_twice_the_norm,
    cut_batches_not_charged,
    details_override_accounting,
    draws_declared_anew,
    files_numbered_by_the_process,
    forward_noise_without_clipping,
    half_of_the_noise,
    keys_of_chains_saved,
    mixtures_without_clipping,
    no_clipping,
    no_noise,
    noise_of_the_map_forgotten,
    noise_reused,
    noised_only_where_touched,
    not_a_number_let_through,
    padding_counted,
    participations_not_counted,
    parts_drawn_anew_in_each_round,
    records_of_a_stream_in_all_steps,
    records_of_a_stream_twice,
    releases_not_charged,
    runs_named_one_after_another,
    seeds_by_default,
    selection_on_raw_counts,
    sensitivity_of_independent_noise,
    sensitivity_of_one_band,
    separation_forgotten,
    shuffled_called_poisson,
    steps_not_charged,
    steps_of_a_chain_draw_alike,
    tied_tables_clipped_by_branch,
    top_k_without_noise,
    turns_shared_by_tables,
    two_models_in_one_run,
    untouched_rows_never_survive,
)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = pathlib.Path(__file__).resolve().parent
VARIABLE = "TFDP_BROKEN"

FAULTS = "tests/contracts/test_faults.py::test_fault_"
#: name -> (what breaks it, an attack of tfdp.audit or a test of the suite, trials)
BROKEN = {
    "no noise": (no_noise, "step, full batch", 2000),
    "half of the noise": (half_of_the_noise, "step, full batch", 12000),
    "no clipping": (no_clipping, "step, full batch", 2000),
    "clipped to twice the norm": (clipped_to_twice_the_norm, "step, full batch", 12000),
    "Poisson step, no clipping": (no_clipping, "step, Poisson sampled", 6000),
    "selection on raw counts": (selection_on_raw_counts, "step with AdaFEST", 12000),
    "chain with the noise of single steps": (
        sensitivity_of_independent_noise, "chain of correlated noise", 2000),
    "persons of a chain taken for records": (
        participations_not_counted, "chain of correlated noise", 2000),
    "records of persons too soon": (
        separation_forgotten, "tests/data/test_stream.py", 0),
    "steps of a chain draw alike": (steps_of_a_chain_draw_alike, "chain of one pass", 2000),
    "turns of rows shared by tables": (turns_shared_by_tables, "chains of rows", 2000),
    "chains not charged again": (chains_not_charged_again, "several chains", 2000),
    "records of a stream in all steps": (
        records_of_a_stream_in_all_steps, "chain of one pass", 2000),
    "steps of a chain draw alike, in fit": (
        steps_of_a_chain_draw_alike, "canaries in a stream", 2000),
    "banded matrix with the noise of one band": (
        sensitivity_of_one_band, "banded matrix", 6000),
    "noise of a banded matrix reused": (noise_reused, "banded matrix", 6000),
    "records of a stream twice": (
        records_of_a_stream_twice, "tests/training/test_chains.py::test_a_record", 0),
    "bands of sampler and noise differ": (
        bands_of_sampler_and_noise_differ, "tests/training/test_bands.py::test_batches_and_noise",
        0),
    "parts drawn anew in each round": (
        parts_drawn_anew_in_each_round, "tests/data/test_cyclic_poisson.py", 0),
    "keys of chains saved": (keys_of_chains_saved, "chain and its files", 2000),
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
    "charges dropped by arithmetic": (
        charges_dropped_by_arithmetic, "tests/data/test_origins.py", 0),
    "charges of scores dropped": (
        charges_of_scores_dropped, "tests/tuning/test_tuning.py::test_what_a_score_was_made_with",
        0),
    "details override accounting": (
        details_override_accounting, "tests/contracts/test_described_fields.py", 0),
    "draws declared anew": (draws_declared_anew, "tests/data/test_provenance.py", 0),
    "two models in one run": (two_models_in_one_run, "tests/training/test_claims.py", 0),
    "files numbered by the process": (
        files_numbered_by_the_process, "tests/serving/test_saved_models.py", 0),
    "runs named one after another": (
        runs_named_one_after_another, "tests/contracts/test_files.py::test_files_of_a_tuning", 0),
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
