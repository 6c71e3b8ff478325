"""Private steps against plain ones, and the law of the noise, on a device that JAX can use.

TensorFlow compiles nothing here for the device: it exports each step as an XLA program with the
values that it begins with, and JAX, in an environment of its own, compiles and runs it. Prints a
table and writes JSON with the device's name. Without a GPU it runs on JAX's CPU client.

    python benchmarks/gpu.py --jax .venv-peers-jax/bin/python [--small] [--out FILE]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = pathlib.Path(__file__).resolve().parent

#: Architectures of peer_workers/sizes.py.
STEPS = ("transformer, 50 positions", "encoder with LoRA", "clicks, 26 tables",
         "clicks, 12 larger tables")  # fmt: skip
NOISE, SMALL_NOISE = 10**8, 10**6


def values_of(function, arguments):
    """A traced function's parameters, in the order of its XLA program."""
    traced = function.get_concrete_function(*arguments)
    held = {id(v.handle): v for v in traced.graph.variables}
    captured = [held[id(c)] if id(c) in held else c for c in traced.captured_inputs]
    return [value.numpy() for value in [*arguments, *captured]]


def step_of(model):
    def step(*data):
        *x, y, weight = data
        return model.train_step((x if len(x) > 1 else x[0], y, weight))

    return step


def write(folder, name, function, arguments):
    import numpy as np

    program = function.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")
    (folder / f"{name}.hlo").write_bytes(program)
    np.savez(folder / f"{name}.npz", *values_of(function, arguments))
    print("exported", name, len(program), "bytes", flush=True)


def export(folder, small):
    sys.path.insert(0, str(HERE / "peer_workers"))
    import keras
    import keras_models
    import sizes
    import tensorflow as tf

    import tfdp
    from tfdp.noise import Grid, NoiseSource
    from tfdp.runtime.xla import for_platform

    tf.config.experimental.enable_tensor_float_32_execution(False)
    for i, name in enumerate(STEPS[2:3] if small else STEPS):
        inputs, labels = sizes.batch(name)
        for kind in ("plain", "private"):
            model, optimizer = keras_models.build(name), keras.optimizers.Adam(1e-3)
            if kind == "private":
                model = tfdp.make_private(model)
                optimizer = tfdp.optimizers.DPOptimizer(
                    optimizer, noise_multiplier=1.0, num_examples=sizes.NUM_EXAMPLES,
                    expected_batch_size=len(labels),
                )  # fmt: skip
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss=loss, jit_compile=True)
            optimizer.build(model.trainable_variables)

            step = tf.function(step_of(model), jit_compile=True, autograph=False)
            data = [tf.constant(v) for v in (*inputs, labels)] + [tf.ones([len(labels)])]
            with for_platform("GPU"):
                write(folder, f"{i}-{kind}", step, data)
    source, size = NoiseSource(), SMALL_NOISE if small else NOISE

    @tf.function(jit_compile=True, autograph=False)
    def noise(values):
        return source.release([values], Grid(tf.constant(1.0), 1.0, size))

    with for_platform("GPU"):
        write(folder, "noise", noise, [tf.zeros([size])])


def execute(folder, name):
    """Seconds of each of some runs of one program, and its first result; with JAX alone."""
    import time

    import jax
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jaxlib.mlir import ir

    jax.config.update("jax_enable_x64", True)
    device = jax.devices()[0]
    computation = xla_client.XlaComputation((folder / f"{name}.hlo").read_bytes())
    text = _jax.mlir.xla_computation_to_mlir_module(computation)
    options = xla_client.CompileOptions()
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    with mlir.make_ir_context():
        program = device.client.compile_and_load(
            ir.Module.parse(text), xla_client.DeviceList((device,)), options
        )
    with np.load(folder / f"{name}.npz") as held:
        values = [held[key] for key in held.files]
    seconds = []
    for _ in range(12):
        # Weights are given away to a step: each run gets its own.
        arguments = [jax.device_put(value, device) for value in values]
        jax.block_until_ready(arguments)
        start = time.perf_counter()
        results = program.execute_sharded(arguments).disassemble_into_single_device_arrays()
        jax.block_until_ready(results)
        seconds.append(time.perf_counter() - start)
    answer = {"device": device.device_kind, "platform": device.platform, "seconds": seconds[2:]}
    if name == "noise":
        drawn = np.sort(np.ravel(results[0][0]).astype(np.float64))
        answer["law"] = law_of(drawn)
    print(json.dumps(answer))


def law_of(drawn):
    """Distance of sorted values from the normal law, in units that exceed 2.7 once in a million."""
    import math

    import numpy as np

    places = np.linspace(0, len(drawn) - 1, 20_001).astype(int)
    expected = np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in drawn[places]])
    distance = np.max(np.abs(expected - (places + 0.5) / len(drawn)))
    return {"values": len(drawn), "kolmogorov": float(distance * math.sqrt(len(drawn))),
            "largest": float(np.max(np.abs(drawn)))}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jax", default=".venv-peers-jax/bin/python", help="a Python that has JAX")
    parser.add_argument("--small", action="store_true", help="one model, and a million draws")
    parser.add_argument("--out", help="JSON")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        execute(pathlib.Path(args.run[0]), args.run[1])
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        export(folder, args.small)
        for path in sorted(folder.glob("*.hlo")):
            output = subprocess.run(
                [args.jax, __file__, "--run", str(folder), path.stem],
                check=True, stdout=subprocess.PIPE, text=True,
            ).stdout  # fmt: skip
            found[path.stem] = answer = json.loads(output.splitlines()[-1])
            answer["median_seconds"] = statistics.median(answer["seconds"])
            print(path.stem, answer["device"], f"{1e3 * answer['median_seconds']:.2f} ms",
                  answer.get("law", ""), flush=True)  # fmt: skip
    names = STEPS[2:3] if args.small else STEPS
    for i, name in enumerate(names):
        plain, private = (found[f"{i}-{kind}"]["median_seconds"] for kind in ("plain", "private"))
        print(f"{name:34} private / plain {private / plain:.2f}")
    if args.out:
        result = {"device": found["noise"]["device"], "small": args.small,
                  "models": list(names), "programs": found}  # fmt: skip
        pathlib.Path(args.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
