"""Compiles and runs the programs of `gpu.py --export` by JAX. Needs JAX and NumPy alone.

A private step is also run on the machine's CPU, from the same values and the same keys of noise:
products of the device that kept fewer bits than float32 would show as a difference.

    python benchmarks/gpu_run.py FOLDER [--out FILE] [--seconds 400]
"""

import argparse
import gzip
import json
import math
import pathlib
import re
import statistics
import time

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib import _jax, xla_client
from jaxlib.mlir import ir

WARM, RUNS = 3, 20


def compiled(device, program):
    computation = xla_client.XlaComputation(program)
    text = _jax.mlir.xla_computation_to_mlir_module(computation)
    # Devices' plugins take StableHLO, which has no copy: a reshape to the same shape is one.
    text = re.sub(
        r"= mhlo\.copy (%\S+) : (tensor<[^>]*>)", r"= stablehlo.reshape \1 : (\2) -> \2", text
    )
    options = xla_client.CompileOptions()
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        return device.client.compile_and_load(module, xla_client.DeviceList((device,)), options)


def values_of(folder, name, about):
    """The step's parameters; large ones are drawn with the mean and spread that they had."""
    generator, values = np.random.default_rng(0), []
    with np.load(folder / f"{name}.npz") as kept:
        for i in range(about["parameters"]):
            if str(i) in about["large"]:
                shape, kind, mean, spread = about["large"][str(i)]
                drawn = generator.standard_normal(shape, np.float32) if spread else np.float32(0)
                values.append(np.broadcast_to(mean + spread * drawn, shape).astype(kind))
            else:
                values.append(kept[str(i)])
    return values


def run(device, program, values):
    """Seconds of one run, and its results. A step takes its weights away: each run has its own."""
    arguments = [jax.device_put(value, device) for value in values]
    jax.block_until_ready(arguments)
    start = time.perf_counter()
    results = program.execute_sharded(arguments).disassemble_into_single_device_arrays()
    jax.block_until_ready(results)
    return time.perf_counter() - start, results


def on_host(results):
    return [np.asarray(result[0]) for result in results]


def difference(ours, theirs):
    """Largest difference of two steps' results, relative to the largest number of its array."""
    found = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.dtype.kind == "f" and a.size:
            scale = max(float(np.max(np.abs(b))), 1e-30)
            found = max(found, float(np.max(np.abs(a.astype(np.float64) - b))) / scale)
    return found


def law_of(drawn):
    """Distance of values from the normal law, in units that exceed 2.7 once in a million."""
    drawn = np.sort(np.ravel(drawn).astype(np.float64))
    places = np.linspace(0, len(drawn) - 1, 20_001).astype(int)
    expected = np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in drawn[places]])
    distance = np.max(np.abs(expected - (places + 0.5) / len(drawn)))
    return {"values": len(drawn), "kolmogorov": float(distance * math.sqrt(len(drawn))),
            "largest": float(np.max(np.abs(drawn)))}  # fmt: skip


def measured(folder, name, device):
    about = json.loads((folder / f"{name}.json").read_text())
    text = gzip.decompress((folder / f"{name}.hlo.gz").read_bytes())
    values = values_of(folder, name, about)
    start = time.perf_counter()
    program = compiled(device, text)
    answer = {key: about[key] for key in ("model", "kind", "batch")}
    answer["compile_seconds"] = time.perf_counter() - start
    seconds = []
    for _ in range(WARM + RUNS):
        one, results = run(device, program, values)
        seconds.append(one)
    results = on_host(results)
    answer["milliseconds"] = 1e3 * statistics.median(seconds[WARM:])
    answer["all_milliseconds"] = [round(1e3 * one, 4) for one in seconds[WARM:]]
    if about["kind"] == "noise":
        answer["law"] = law_of(results[0])
    elif about["compared"] and device.platform != "cpu":
        host = jax.devices("cpu")[0]
        theirs = on_host(run(host, compiled(host, text), values)[1])
        answer["difference_from_cpu"] = difference(results, theirs)
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out", help="JSON, written after each program")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no program after")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    device, start = jax.devices()[0], time.monotonic()
    found = {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__,
             "programs": {}, "failed": {}}  # fmt: skip
    names = sorted(path.stem for path in args.folder.glob("*.json"))
    for name in names:
        if time.monotonic() - start > args.seconds:
            found["failed"][name] = "no time left"
            continue
        try:
            found["programs"][name] = answer = measured(args.folder, name, device)
            shown = {k: v for k, v in answer.items() if k not in ("model", "all_milliseconds")}
            print(f"{time.monotonic() - start:.0f} s", name, answer["model"], shown, flush=True)
        except Exception as error:
            found["failed"][name] = f"{type(error).__name__}: {error}"[:500]
            print(name, "failed:", found["failed"][name], flush=True)
        if args.out:
            pathlib.Path(args.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
