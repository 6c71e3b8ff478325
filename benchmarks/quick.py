"""Every benchmark that needs no data set of its own, at a small size: in 20 minutes on two cores.

    python benchmarks/quick.py [--only step_time cliffs] [--into bench]

Each prints its table and writes INTO/NAME.json, with versions, cores, load and date.
The results in benchmarks/results/ come from the same scripts at full size.
"""

import argparse
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
NAMES = (
    "step_time", "cliffs", "start_and_noise", "sparse_step", "click_step", "person_step",
    "replicas", "data_size", "random_allocation", "plan", "persons_or_records", "float_attack",
    "kills", "kills_of_chains",
)  # fmt: skip


def run(name, into):
    print(f"\n== {name}", flush=True)
    start = time.perf_counter()
    command = [sys.executable, str(HERE / f"{name}.py"), "--small", "--out", f"{into}/{name}.json"]
    status = subprocess.run(command).returncode
    print(f"== {name}: {time.perf_counter() - start:.0f} s", flush=True)
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--into", type=pathlib.Path, default=pathlib.Path("bench"))
    args = parser.parse_args()
    failed = [name for name in args.only if run(name, args.into)]
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
