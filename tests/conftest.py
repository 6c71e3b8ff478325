"""Fixtures shared by all tests."""

import collections
import gc
import os
import pathlib

import pytest
import tensorflow as tf

pytest_plugins = ["small_models"]

# For tests of several replicas. The devices of a process are fixed when TensorFlow first computes,
# which importing a test module may do: so before any is collected.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Cases of a test beyond the first n of `thorough_after(n)` are thorough."""
    seen = collections.Counter()
    for item in items:
        mark = item.get_closest_marker("thorough_after")
        if mark is None or item.get_closest_marker("evidence") is not None:
            continue
        test = item.nodeid.split("[")[0]
        seen[test] += 1
        if seen[test] > mark.args[0]:
            item.add_marker(pytest.mark.thorough)


def pytest_collection_finish(session):
    """Spares the collector what imports made, and passes over graphs that are being traced."""
    gc.freeze()
    gc.set_threshold(1_000_000, 1000, 1000)


def pytest_runtest_setup(item):
    """Frees what the test before left, and never looks at what remains again.

    A worker grows to gigabytes of graphs, of which the machine may have put pages aside: a single
    pass over them has taken more than a minute.
    """
    gc.collect(1)
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data():
    """Folder of the real data sets, which the project may not redistribute."""
    default = pathlib.Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = pathlib.Path(os.environ.get("TFDP_DATA", default))
    if not folder.is_dir():
        pytest.skip("real data sets are absent: no ../shared/data, and TFDP_DATA names no folder")
    return folder


@pytest.fixture(scope="session")
def outputs_with_rows():
    """Function (concrete function, V) -> names of operations that have an output with V rows.

    Bodies of loops, branches and called functions are searched, too. The variable itself is a
    resource and has no rows; reading all of it is an operation with V rows.
    """

    def find(function, rows):
        found, pending, seen = [], [function.graph], set()
        while pending:
            graph = pending.pop()
            for op in graph.get_operations():
                for output in op.outputs:
                    if output.shape.rank and rows in output.shape.as_list():
                        found.append(f"{op.type} {op.name} {output.shape}")
                for name in _called(op) - seen:
                    seen.add(name)
                    # The only way to the shapes inside a called function.
                    pending.append(graph._get_function(name).graph)
        return found

    return find


def _called(op):
    values = [op.node_def.attr[key] for key in op.node_def.attr]
    functions = [v.func.name for v in values] + [f.name for v in values for f in v.list.func]
    return {name for name in functions if name}
