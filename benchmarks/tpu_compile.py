"""Compiles the steps of `tpu_export.py` for TPUs that this machine does not have, with libtpu.

    python benchmarks/tpu_compile.py folder index v5e

Needs jax, jaxlib and libtpu, and no TensorFlow: `make tpu` makes an environment for it.
"""

import json
import os
import pathlib
import re
import sys
import tempfile
import time

TOPOLOGIES = {"v5e": "v5e:2x2", "v6e": "v6e:2x2"}

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def compile_step(hlo, topology, shapes, dumped):
    """Costs of one compiled step: flops, bytes by kind, and copies of arrays of these shapes.

    `dumped` is the folder into which XLA writes the compiled program.
    """
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jaxlib.mlir import ir

    text = _jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(hlo))
    # XLA's own copies are no operation of the stable dialect; a barrier keeps what they keep.
    text = re.sub(r'"?mhlo\.copy"?(?=[ (])', "stablehlo.optimization_barrier", text)
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[0]]))
    devices = xla_client.DeviceList((topology.devices[0],))
    client = topology.devices[0].client
    start = time.perf_counter()
    with mlir.make_ir_context():
        executable = client.compile(ir.Module.parse(text), devices, options)
    seconds = time.perf_counter() - start
    memory = executable.get_compiled_memory_stats()
    (program,) = pathlib.Path(dumped).glob("*.after_optimizations.txt")
    copies, staged = count_copies(program.read_text(), shapes)
    cost = executable.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return {
        "seconds": seconds,
        "flops": cost.get("flops"),
        "bytes_accessed": cost.get("bytes accessed"),
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "large_copies": copies,
        "large_staged": staged,
    }


def count_copies(program, shapes):
    """Copies of arrays of these shapes: within a TPU's memory, and to or from its fast memory.

    The second kind, in space S(1), is how XLA prefetches what fits there and writes it back to
    where it was; the array keeps its place.
    """
    if not shapes:
        return 0, 0
    large = rf"f32\[(?:{'|'.join(','.join(map(str, shape)) for shape in shapes)})\]"
    within = len(re.findall(rf"= {large}\S* copy\(", program))
    staged = 0
    for to, start in re.findall(rf"= \(({large}\S*), ({large}\S*), \S+ copy-start\(", program):
        if ("S(1)" in to) != ("S(1)" in start):
            staged += 1
        else:
            within += 1
    return within, staged


def main(folder, index, kind, dumped):
    """Compiles one program of the folder for one kind of TPU and prints a line of JSON."""
    from jax.experimental import topologies

    folder = pathlib.Path(folder)
    program = json.loads((folder / "programs.json").read_text())[int(index)]
    topology = topologies.get_topology_desc(TOPOLOGIES[kind], platform="tpu")
    hlo = (folder / program["file"]).read_bytes()
    costs = compile_step(hlo, topology, program["large_shapes"], dumped)
    print(json.dumps({"tpu": kind, **program, **costs}), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        # Read when jax is imported. The executable itself cannot always show its program.
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={made} --xla_dump_hlo_as_text"
        main(*sys.argv[1:], made)
