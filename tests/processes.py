"""Python programs in processes of their own, without importing TensorFlow in each of them.

Every program runs in a fork of a server that has imported TensorFlow and Keras, and nothing of
tfdp. TensorFlow computed nothing there: it starts no thread, reads no device and makes no random
number before the program asks for it. What must see the import itself starts Python anew.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import sys
import tempfile
import traceback

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tensorflow", "keras"])


def preload(*modules):
    """Names what the server imports, before it starts; of tfdp for what is no test of importing."""
    _SERVER.set_forkserver_preload(list(modules))


@dataclasses.dataclass
class Finished:
    """What a program left: `returncode` as of `subprocess`, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str

    def checked(self):
        """Itself; an AssertionError with the end of stderr if the program failed."""
        assert self.returncode == 0, self.stderr[-3000:]
        return self


class Running:
    """A program that has been started."""

    def __init__(self, code, *arguments, cwd=None):
        self._files = [tempfile.NamedTemporaryFile("r", suffix=".txt") for _ in range(2)]
        names = [file.name for file in self._files]
        self.process = _SERVER.Process(
            target=_main, args=(code, list(map(str, arguments)), os.fspath(cwd or "."), names)
        )
        self.process.start()

    def finish(self, timeout=300):
        """Waits for its end; a `Finished`."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        out, errors = (file.read() for file in self._files)
        for file in self._files:
            file.close()
        return Finished(self.process.exitcode, out, errors)


def run(code, *arguments, cwd=None):
    """Runs a program to its end, which must be a good one; returns what it wrote to stdout."""
    return Running(code, *arguments, cwd=cwd).finish().checked().stdout


def _main(code, arguments, cwd, names):
    for number, name in zip((1, 2), names, strict=True):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
    sys.argv = ["-c", *arguments]
    os.chdir(cwd)
    status = 0
    try:
        exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as error:
        status = error.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)
