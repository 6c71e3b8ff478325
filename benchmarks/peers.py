"""Steps of tfdp and of other libraries, side by side: time, memory, and whether they clip.

Every library runs in an environment of its own (`make peers` makes them), as one process that is
alive all the time; the methods take turns, so that whatever else the machine does hits all of them.
Prints a table and writes JSON.

    python benchmarks/peers.py [--rounds 7] [--architectures ...] [--out FILE]
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peer_workers"))

import architectures as sizes  # noqa: E402

#: library: its environment (None: this one), its worker, and its methods with what plain training
#: each is compared with.
LIBRARIES = {
    "tfdp": (None, "tfdp_worker.py", {"private": "plain", "private, XLA": "plain, XLA"}),
    "TF Privacy": (
        ".venv-peers-tfp",
        "tf_privacy_worker.py",
        {"DPModel": "plain", "DPModel, XLA": "plain, XLA", "vectorized": "plain",
         "vectorized, XLA": "plain, XLA"},
    ),
    "Opacus": (
        ".venv-peers-opacus",
        "opacus_worker.py",
        {"hooks": "plain", "expanded weights": "plain", "ghost": "plain",
         "fast gradient clipping": "plain"},
    ),
    "JAX-Privacy": (
        ".venv-peers-jax",
        "jax_privacy_worker.py",
        {"clipped_grad": "plain", "Keras": "plain, Keras"},
    ),
}  # fmt: skip
#: Of one step against single examples in float64; tfdp raises norms by what float32 may hide of
#: them, 0.1% at most for each of the sums of a norm.
TOLERANCE = 5e-3


class Worker:
    """One library's process."""

    def __init__(self, library):
        environment, script, self.methods = LIBRARIES[library]
        python = pathlib.Path(sys.executable)
        if environment is not None:
            python = HERE.parent / environment / "bin" / "python"
        variables = {
            **os.environ,
            "PYTHONPATH": str(HERE.parent),
            "OMP_NUM_THREADS": str(sizes.THREADS),
        }
        self.process = subprocess.Popen(
            [str(python), str(HERE / "peer_workers" / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(os.devnull, "w"),
            text=True,
            env=variables,
        )
        self.versions = self._answer()["versions"]

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            return {"error": f"the process ended with code {self.process.wait()}"}
        return json.loads(line)

    def ask(self, do, **arguments):
        """The answer; a dict with "error" where the library could not."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": f"the process ended with code {self.process.wait()}"}
        return self._answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def all_methods(worker):
    """Methods of a worker, each plain one before those that it is the baseline of."""
    return list(dict.fromkeys([*worker.methods.values(), *worker.methods]))


def checks(workers, architectures):
    """{(architecture, library, method): answer} for every private method."""
    found = {}
    for name in architectures:
        for library, worker in workers.items():
            for method in worker.methods:
                answer = worker.ask("check", architecture=name, method=method)
                if answer.get("relative_error", 0.0) > TOLERANCE:
                    answer["error"] = "does not clip the gradient of each example to the clip norm"
                found[name, library, method] = answer
                print(f"{name:34}{library:12}{method:24}{answer}", flush=True)
    return found


def first_steps(workers, architectures, failed):
    """Builds everything; {key: answer}."""
    found = {}
    for name in architectures:
        for library, worker in workers.items():
            for method in all_methods(worker):
                if (name, library, method) in failed:
                    continue
                answer = worker.ask("prepare", architecture=name, method=method)
                found[name, library, method] = answer
                print(f"{name:34}{library:12}{method:24}{answer}", flush=True)
    return found


def timed(workers, keys, rounds, seconds):
    """{key: every measured second}; in each round every method of an architecture has one turn."""
    found = {key: [] for key in keys}
    for name in dict.fromkeys(key[0] for key in keys):
        start = time.perf_counter()
        for _ in range(rounds):
            for key in keys:
                if key[0] == name:
                    found[key] += turn(workers, key, seconds)
        print(f"{name}: {rounds} rounds in {time.perf_counter() - start:.0f} s", flush=True)
    return found


def turn(workers, key, seconds):
    name, library, method = key
    answer = workers[library].ask("run", architecture=name, method=method, seconds=seconds)
    if "error" in answer:
        raise RuntimeError(f"{key}: {answer['error']}")
    return answer["seconds"]


def peak_memory(library, name, method):
    """Peak resident bytes of a process of its own after a few steps."""
    worker = Worker(library)
    try:
        answer = worker.ask("prepare", architecture=name, method=method)
        if "error" not in answer:
            answer |= worker.ask("run", architecture=name, method=method, seconds=0.0)
        return answer
    finally:
        worker.close()


def rows_of(keys, checked, prepared, seconds):
    rows = []
    for name, library, method in keys:
        key = name, library, method
        private = method in LIBRARIES[library][2]
        row = {"architecture": name, "library": library, "method": method, "private": private}
        if key in checked:
            row["check"] = {k: v for k, v in checked[key].items() if k != "error"}
        error = checked.get(key, {}).get("error") or prepared.get(key, {}).get("error")
        if error:
            rows.append({**row, "error": error})
            continue
        row |= prepared[key]  # seconds of the first step, and perhaps a note
        row["seconds"] = seconds[key]
        row["median_seconds"] = statistics.median(seconds[key])
        row["fastest_seconds"] = min(seconds[key])
        baseline = LIBRARIES[library][2].get(method)
        if baseline:
            row["baseline"] = baseline
            row["ratio"] = row["median_seconds"] / statistics.median(
                seconds[name, library, baseline]
            )
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--architectures", nargs="+", default=list(sizes.ARCHITECTURES))
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES))
    parser.add_argument("--memory", nargs="*", help="peak memory of these architectures instead")
    parser.add_argument("--wait-for", help="time only when this file exists")
    parser.add_argument("--out", help="JSON; rows of other architectures that it has are kept")
    args = parser.parse_args()
    if args.memory is not None:
        rows = peaks(args.libraries, args.memory or args.architectures)
        return args.out and add_peaks(args.out, rows)
    workers = {library: Worker(library) for library in args.libraries}
    checked = checks(workers, args.architectures)
    failed = {key for key, answer in checked.items() if "error" in answer}
    prepared = first_steps(workers, args.architectures, failed)
    keys = [key for key, answer in prepared.items() if "error" not in answer]
    timed(workers, keys, 1, 0.0)  # what a second step still builds
    print("ready", flush=True)
    while args.wait_for and not os.path.exists(args.wait_for):
        time.sleep(0.1)
    run = {
        "architectures": args.architectures,
        "date": datetime.date.today().isoformat(),
        "load_before": os.getloadavg(),
    }
    seconds = timed(workers, keys, args.rounds, args.seconds)
    run["load_after"] = os.getloadavg()
    rows = rows_of(list(dict.fromkeys([*prepared, *checked])), checked, prepared, seconds)
    for row in rows:
        if "error" in row:
            text = row["error"][:90]
        else:
            text = f"{1e3 * row['median_seconds']:9.2f} ms"
            text += f"  x {row['ratio']:.2f}" if "ratio" in row else ""
        print(f"{row['architecture']:34}{row['library']:12}{row['method']:24}{text}")
    if args.out:
        write(args.out, run, {name: w.versions for name, w in workers.items()}, rows)
    for worker in workers.values():
        worker.close()


def write(path, run, versions, rows):
    """What was measured, beside other architectures' rows of the same versions."""
    path = pathlib.Path(path)
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("versions") != versions:
        before = {}
    names = run["architectures"]
    kept = [row for row in before.get("rows", []) if row["architecture"] not in names]
    runs = [r for r in before.get("runs", []) if set(r["architectures"]) - set(names)]
    result = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "threads": sizes.THREADS,
        "versions": versions,
        "settings": {"clip_norm": sizes.CLIP_NORM, "noise_multiplier": sizes.NOISE_MULTIPLIER},
        "batch": {name: size for name, (_, _, size) in sizes.ARCHITECTURES.items()},
        "runs": [*runs, run],
        "rows": [*kept, *rows],
        "peaks": before.get("peaks", []),
    }
    path.write_text(json.dumps(result, indent=1))


def peaks(libraries, names):
    """Peak memory of every method."""
    rows = []
    for name in names:
        for library in libraries:
            for method in dict.fromkeys([*LIBRARIES[library][2].values(), *LIBRARIES[library][2]]):
                answer = peak_memory(library, name, method)
                if "error" not in answer:
                    rows.append(
                        {"architecture": name, "library": library, "method": method,
                         "first_seconds": answer["first_seconds"],
                         "peak_bytes": answer["peak_bytes"]}
                    )  # fmt: skip
                print(f"{name:34}{library:12}{method:24}{answer}", flush=True)
    return rows


def add_peaks(path, rows):
    path = pathlib.Path(path)
    result = json.loads(path.read_text())
    names = {row["architecture"] for row in rows}
    kept = [row for row in result.get("peaks", []) if row["architecture"] not in names]
    result["peaks"] = [*kept, *rows]
    path.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
