"""Steps of tfdp and of other libraries, side by side: time, memory, and whether they clip.

Every library runs in an environment of its own (`make peers` makes them), as one process that is
alive as long as a few architectures are timed; the methods take turns, so that whatever else the
machine does hits all of them.
Prints a table and writes JSON.

    python benchmarks/peers.py [--rounds 7] [--architectures ...] [--out FILE]

TF Privacy's vectorized steps take so much memory that steps beside them are slower by half: they
have a run of their own (`--only vectorized`), which leaves the rows of plain steps as they are.
"""

import argparse
import contextlib
import datetime
import itertools
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

import sizes  # noqa: E402

#: library: its environment (None: this one), its worker, and its methods with what plain training
#: each is compared with.
LIBRARIES = {
    "tfdp": (None, "tfdp_worker.py", {"private": "plain", "private, XLA": "plain, XLA"}),
    "TF Privacy": (
        ".venv-peers-tfp",
        "tf_privacy_worker.py",
        # "vectorized, XLA" works, too, but takes more than 12 GB for a tied transformer.
        {"DPModel": "plain", "DPModel, XLA": "plain, XLA", "vectorized": "plain"},
    ),
    "Opacus": (
        ".venv-peers-opacus",
        "opacus_worker.py",
        {"hooks": "plain", "ghost": "plain", "fast gradient clipping": "plain"},
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


#: What takes more than `sizes.MEMORY` bytes ends like this.
ENDED = "out of memory or crashed: the process ended with code "


class Worker:
    """One library's process, and those of its private methods that are asked for."""

    def __init__(self, library, methods):
        environment, script, _ = LIBRARIES[library]
        self.methods = methods
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
            return {"error": f"{ENDED}{self.process.wait()}"}
        return json.loads(line)

    def ask(self, do, **arguments):
        """The answer; a dict with "error" where the library could not."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": f"{ENDED}{self.process.wait()}"}
        return self._answer()

    def close(self):
        with contextlib.suppress(BrokenPipeError):  # it may have ended by itself
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # threads of a library that outlive its work
            self.process.kill()
            self.process.wait()


def checks(workers, architectures):
    """What each private method did with single examples; "error" where it does not clip them."""
    rows = []
    for name in architectures:
        for library, worker in workers.items():
            for method in worker.methods:
                answer = worker.ask("check", architecture=name, method=method)
                if answer.get("relative_error", 0.0) > TOLERANCE:
                    answer["error"] = "does not clip the gradient of each example to the clip norm"
                rows.append({"architecture": name, "library": library, "method": method, **answer})
                print(f"{name:34}{library:12}{method:24}{answer}", flush=True)
    return rows


def first_steps(workers, architectures):
    """Builds everything; {key: answer}."""
    found = {}
    for name in architectures:
        for library, worker in workers.items():
            for method in dict.fromkeys([*worker.methods.values(), *worker.methods]):
                answer = workers[library].ask("prepare", architecture=name, method=method)
                found[name, library, method] = answer
                print(f"{name:34}{library:12}{method:24}{answer}", flush=True)
                if answer.get("error", "").startswith(ENDED):
                    workers[library] = Worker(library, worker.methods)
                    for key, earlier in found.items():
                        if key[1] == library and "error" not in earlier:
                            workers[library].ask("prepare", architecture=key[0], method=key[2])
    return found


def timed(workers, keys, rounds, seconds, only_while=None):
    """{key: every measured second, None if it failed}; in each round every method has one turn.

    Rounds end early, all methods with as many turns, when the file `only_while` is gone.
    """
    found = {key: [] for key in keys}
    for number in range(rounds):
        start = time.perf_counter()
        of_round = {}
        for key in [key for key in found if found[key] is not None]:
            if only_while and not os.path.exists(only_while):
                return found
            of_round[key] = turn(workers, key, seconds)
        for key, measured in of_round.items():
            found[key] = None if measured is None else found[key] + measured
        print(f"round {number + 1}: {time.perf_counter() - start:.0f} s", flush=True)
    return found


def turn(workers, key, seconds):
    name, library, method = key
    answer = workers[library].ask("run", architecture=name, method=method, seconds=seconds)
    if "error" in answer:
        print(key, answer)
    return answer.get("seconds")


def times(workers, architectures, args):
    """Rows, and what the run was."""
    prepared = first_steps(workers, architectures)
    keys = [key for key, answer in prepared.items() if "error" not in answer]
    again = timed(workers, keys, 1, 0.0)  # what a second step still builds
    for key in [key for key in keys if again[key] is None]:
        prepared[key]["error"] = "the second step failed"
        keys.remove(key)
    print("ready", flush=True)
    while args.wait_for and not os.path.exists(args.wait_for):
        time.sleep(0.1)
    run = {
        "architectures": architectures,
        "date": datetime.date.today().isoformat(),
        "load_before": os.getloadavg(),
    }
    seconds = timed(workers, keys, args.rounds, args.seconds, args.wait_for)
    run["load_after"] = os.getloadavg()
    rows = [row_of(key, prepared[key], seconds) for key in prepared]
    for row in rows:
        text = row.get("error", "")[:90]
        if not text:
            ratio = f"  x {row['ratio']:.2f}" if "ratio" in row else ""
            text = f"{1e3 * row['median_seconds']:9.2f} ms{ratio}"
        print(f"{row['architecture']:34}{row['library']:12}{row['method']:24}{text}")
    return rows, run


def row_of(key, prepared, seconds):
    name, library, method = key
    baseline = LIBRARIES[library][2].get(method)
    row = {"architecture": name, "library": library, "method": method,
           "private": baseline is not None, **prepared}  # fmt: skip
    if "error" not in prepared and seconds[key] is None:
        row["error"] = "out of memory or crashed while it was timed"
    if "error" in row:
        return row
    median = statistics.median(seconds[key])
    row |= {"seconds": seconds[key], "median_seconds": median, "fastest_seconds": min(seconds[key])}
    if baseline:
        row["baseline"] = baseline
    if seconds.get((name, library, baseline)):
        row["ratio"] = median / statistics.median(seconds[name, library, baseline])
    return row


def peaks(methods, architectures):
    """Peak resident bytes of each method, in a process of its own after a few steps."""
    rows = []
    for name, library in itertools.product(architectures, methods):
        for method in dict.fromkeys([*methods[library].values(), *methods[library]]):
            worker = Worker(library, methods[library])
            answer = worker.ask("prepare", architecture=name, method=method)
            if "error" not in answer:
                answer |= worker.ask("run", architecture=name, method=method, seconds=0.0)
            worker.close()
            print(f"{name:34}{library:12}{method:24}{answer}", flush=True)
            if "error" not in answer:
                answer.pop("seconds")
                rows.append({"architecture": name, "library": library, "method": method, **answer})
    return rows


def keep(path, part, rows, run=None, versions=None):
    """Writes one part of the JSON, if there is a path; other rows that it has stay."""
    if path is None:
        return
    path = pathlib.Path(path)
    result = json.loads(path.read_text()) if path.exists() else {}
    new = {(row["architecture"], row["library"], row["method"]) for row in rows}
    kept = [r for r in result.get(part, ())
            if (r["architecture"], r["library"], r["method"]) not in new]  # fmt: skip
    result[part] = sorted([*kept, *rows], key=_place)
    if run:
        result["runs"] = [*result.get("runs", ()), run]
    result["versions"] = result.get("versions", {}) | (versions or {})
    result |= {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "threads": sizes.THREADS,
        "settings": {"clip_norm": sizes.CLIP_NORM, "noise_multiplier": sizes.NOISE_MULTIPLIER},
        "batch": {name: size for name, (_, _, size) in sizes.ARCHITECTURES.items()},
    }
    path.write_text(json.dumps(result, indent=1))


def _place(row):
    """Where a row stands in the tables, whenever it was measured."""
    methods = LIBRARIES[row["library"]][2]
    return (
        list(sizes.ARCHITECTURES).index(row["architecture"]),
        list(LIBRARIES).index(row["library"]),
        list(dict.fromkeys([*methods.values(), *methods])).index(row["method"]),
    )


def check_and_time(methods, architectures, args):
    """Keeps the checks and times of a few architectures, in processes of their own."""
    workers = {library: Worker(library, methods[library]) for library in methods}
    versions = {name: worker.versions for name, worker in workers.items()}
    if "checks" in args.parts:
        keep(args.out, "checks", checks(workers, architectures), versions=versions)
    if "times" in args.parts:
        rows, run = times(workers, architectures, args)
        keep(args.out, "rows", [r for r in rows if r["private"] or not args.only], run, versions)
    for worker in workers.values():
        worker.close()


def asked_for(library, args):
    """The library's private methods of this run, with the plain ones they are compared with."""
    return {
        method: plain for method, plain in LIBRARIES[library][2].items()
        if method not in args.leave_out and (not args.only or method in args.only)
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["checks", "times", "peaks"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.25, help="of a turn")
    parser.add_argument("--architectures", nargs="+", default=list(sizes.ARCHITECTURES))
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES))
    parser.add_argument("--only", nargs="+", help="these private methods, and their rows alone")
    parser.add_argument("--leave-out", nargs="+", default=[], help="private methods")
    parser.add_argument("--wait-for", help="time only while this file exists")
    parser.add_argument("--out", help="JSON; other rows that it has are kept")
    args = parser.parse_args()
    methods = {library: asked_for(library, args) for library in args.libraries}
    methods = {library: found for library, found in methods.items() if found}
    for group in sizes.TOGETHER if {"checks", "times"} & set(args.parts) else ():
        architectures = [name for name in group if name in args.architectures]
        if architectures:
            check_and_time(methods, architectures, args)
    if "peaks" in args.parts:
        rows = peaks(methods, args.architectures)
        private = [r for r in rows if r["method"] in methods[r["library"]]]
        keep(args.out, "peaks", private if args.only else rows)


if __name__ == "__main__":
    main()
