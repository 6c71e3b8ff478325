"""Every benchmark that needs no data set of its own, at a small size: in 20 minutes on two cores.

    python benchmarks/quick.py [--only step_time cliffs] [--into bench]

Each prints its table and writes INTO/NAME.json, to which versions, cores, load and date are added.
The results in benchmarks/results/ come from the same scripts at full size.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = ("tensorflow", "keras", "dp-accounting", "numpy")
ARGUMENTS = {
    "step_time": ["--lengths", "50", "--repeats", "9", "--memory"],
    "cliffs": ["--seconds", "2"],
    "start_and_noise": [],
    "sparse_step": ["--rows", "1000000", "--steps", "10", "--rounds", "1"],
    "click_step": ["--rows", "1000000", "--repeats", "2"],
    "person_step": ["--repeats", "5"],
    "replicas": ["--repeats", "3"],
    "data_size": ["--gigabytes", "1", "--repeats", "5"],
    "random_allocation": [],
    "plan": [],
    "persons_or_records": [],
    "float_attack": ["--draws", "100000", "--runs", "50"],
    "kills": ["--kills", "5"],
    "kills_of_chains": ["--kills", "5"],
}


def run(name, into):
    path = into / f"{name}.json"
    path.unlink(missing_ok=True)
    print(f"\n== {name} {' '.join(ARGUMENTS[name])}", flush=True)
    load, start = os.getloadavg()[0], time.perf_counter()
    status = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), *ARGUMENTS[name], "--out", str(path)]
    ).returncode
    seconds = time.perf_counter() - start
    if path.exists():
        measured = json.loads(path.read_text())
        made = {
            "versions": {p: importlib.metadata.version(p) for p in PACKAGES},
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_before": load,
            "date": datetime.date.today().isoformat(),
            "arguments": ARGUMENTS[name],
            "seconds": seconds,
        }
        path.write_text(json.dumps({"made": made, "measured": measured}, indent=1) + "\n")
    print(f"== {name}: {seconds:.0f} s", flush=True)
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=ARGUMENTS, default=list(ARGUMENTS))
    parser.add_argument("--into", type=pathlib.Path, default=pathlib.Path("bench"))
    args = parser.parse_args()
    args.into.mkdir(parents=True, exist_ok=True)
    failed = [name for name in args.only if run(name, args.into)]
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
