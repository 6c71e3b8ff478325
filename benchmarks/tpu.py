"""Private steps compiled for TPUs ahead of time, without a TPU: memory, flops, and the checks.

The steps are exported by TensorFlow in one process and compiled by libtpu in others. Writes JSON
after each of them and prints a table; fails if a large table or its slots are copied, or if the
private step of DPFormer needs more than 1.3 times the temporary memory of the plain one. `make tpu`
calls it.

    python benchmarks/tpu.py --jax .venv-tpu/bin/python [--tpus v5e v6e]
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MAX_MEMORY_RATIO = 1.3  # aim for the temporary memory of a private step against the plain one


def compile_all(jax, tpus):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(HERE / "tpu_export.py"), folder], check=True)
        count = len(json.loads(pathlib.Path(folder, "programs.json").read_text()))
        for tpu in tpus:
            for index in range(count):
                # One after another: libtpu locks the machine.
                output = subprocess.run(
                    [jax, str(HERE / "tpu_compile.py"), folder, str(index), tpu],
                    check=True, stdout=subprocess.PIPE, text=True,
                ).stdout  # fmt: skip
                yield json.loads(output.splitlines()[-1])


def table(results):
    lines = [
        "| TPU | step | GFLOP | bytes accessed GB | arguments MB | temporary MB | aliased MB "
        "| compiled in s |",
        "|" + "---|" * 8,
    ]
    for r in results:
        lines.append(
            f"| {r['tpu']} | {r['name']} | {r['flops'] / 1e9:.1f} | "
            f"{r['bytes_accessed'] / 1e9:.2f} | {r['argument_bytes'] / 1e6:.1f} | "
            f"{r['temporary_bytes'] / 1e6:.1f} | {r['aliased_bytes'] / 1e6:.1f} | "
            f"{r['seconds']:.0f} |"
        )
    return "\n".join(lines)


def check(results):
    """What was found against what is aimed at; sentences, and whether an aim was missed."""
    found, missed = [], False
    for tpu in dict.fromkeys(r["tpu"] for r in results):
        by_name = {r["name"]: r for r in results if r["tpu"] == tpu}
        private = by_name.get("DPFormer, private")
        for name in ("DPFormer, plain", "DPFormer, plain, float32 products"):
            if private and name in by_name:
                ratio = private["temporary_bytes"] / by_name[name]["temporary_bytes"]
                verdict = "within" if ratio <= MAX_MEMORY_RATIO else "MISSES"
                missed |= ratio > MAX_MEMORY_RATIO
                found.append(
                    f"{tpu}: the private DPFormer step needs {ratio:.2f} times the temporary "
                    f"memory of {name!r}; {verdict} the aim of {MAX_MEMORY_RATIO}"
                )
        for r in by_name.values():
            if not r["large_shapes"]:
                continue
            sizes = [4 * math.prod(shape) for shape in r["large_shapes"]]
            # A copy is an instruction; or an output that takes nobody's place; and that of the
            # largest table would not fit into the temporary memory.
            in_place = (
                r["large_copies"] == 0
                and r["aliased_bytes"] >= sum(sizes)
                and r["output_bytes"] - r["aliased_bytes"] < min(sizes)
                and r["temporary_bytes"] < max(sizes)
            )
            missed |= not in_place
            found.append(
                f"{tpu}: {r['name']}: large tables and their slots, {sum(sizes) / 1e6:.0f} MB, are "
                f"{'updated in place' if in_place else 'COPIED'}; "
                f"{r['large_staged']} copies of them to or from the fast memory"
            )
    return found, missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jax", required=True, help="python with jax, jaxlib and libtpu")
    parser.add_argument("--tpus", nargs="+", default=["v5e", "v6e"])
    parser.add_argument("--out", default=str(HERE / "results" / "tpu.json"))
    arguments = parser.parse_args()
    if subprocess.run([arguments.jax, "-c", "import jax, libtpu"], capture_output=True).returncode:
        print(f"Skipped: {arguments.jax} has no jax and libtpu, which exist for Linux only.")
        return
    results = []
    for result in compile_all(arguments.jax, arguments.tpus):
        results.append(result)
        pathlib.Path(arguments.out).write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    found, missed = check(results)
    print("\n".join(found))
    sys.exit(missed)


if __name__ == "__main__":
    main()
