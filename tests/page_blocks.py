"""Code blocks of a page, and how they are run: as printed, one after another, in one namespace.

A comment before a block says what it finds in place, `<!-- given: ratings, texts -->`: functions of
`page_setups.py`, which write small files, or stand in for downloads and devices. No text of a
block is changed. `<!-- elsewhere: keras_rs -->` names a package that tfdp does without; where it is
not installed, that block is left out. `<!-- alone: opacus -->` is one that runs in a process of its
own, whose Python may be another: TFDP_OTHER_PYTHON names it.

    python tests/page_blocks.py docs/quick_start.md

runs a page without pytest, with the tfdp that is installed.
"""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: What a fence may be; `text` is a drawing or an output, and is not run.
LANGUAGES = ("python", "sh", "text")
_BLOCK = re.compile(
    r"(?P<comments>(?:^<!--[^\n]*-->\n+)*)^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S
)
_COMMENT = re.compile(r"<!-- (given|elsewhere|alone): ([\w, -]+) -->")


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line it begins at, and the comments before."""

    language: str
    code: str
    line: int
    given: tuple
    elsewhere: tuple
    alone: tuple


def blocks_of(text):
    """The blocks of a page, in order."""
    found = []
    for match in _BLOCK.finditer(text):
        named = {"given": (), "elsewhere": (), "alone": ()}
        for kind, names in _COMMENT.findall(match["comments"]):
            named[kind] += tuple(name.strip() for name in names.split(","))
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(match["language"], match["code"], line, **named))
    return found


class Page:
    """What the blocks of one page share.

    Attributes:
        names: the namespace of its Python blocks.
        folder: working directory of all of its blocks.
        patch: pytest's monkeypatch.
        stack: an ExitStack, closed after the last block.
    """

    def __init__(self, folder, patch, stack):
        self.names = {"__name__": "__main__"}
        self.folder = folder
        self.patch = patch
        self.stack = stack

    def run(self, path, setups):
        """Runs the blocks of a page; `setups` is a dict of functions of the page."""
        ran = 0
        for block in blocks_of(path.read_text(encoding="utf-8")):
            if block.language == "text" or not all(map(_installed, block.elsewhere)):
                continue
            for name in block.given:
                setups[name](self)
            if block.alone:
                ran += self._alone(block, path)
                continue
            _RUN[block.language](self, block, path)
            ran += 1
        return ran

    def _python(self, block, path):
        # Empty lines in front: tracebacks have the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        exec(code, self.names)

    def _alone(self, block, path):
        python = os.environ.get("TFDP_OTHER_PYTHON", sys.executable)
        found = "import importlib.util as u; assert all(map(u.find_spec, {}))".format
        if subprocess.run([python, "-c", found(block.alone)], capture_output=True).returncode:
            return 0
        self._done(subprocess.run(
            [python, "-c", block.code], cwd=self.folder, capture_output=True, text=True
        ), block, path)  # fmt: skip
        return 1

    @staticmethod
    def _done(done, block, path):
        assert not done.returncode, f"{path}:{block.line}\n{done.stdout}{done.stderr}"

    def _shell(self, block, path):
        import tfdp

        paths = [str(self.folder / "bin"), str(pathlib.Path(sys.executable).parent)]
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([*paths, os.environ["PATH"]]),
            "PYTHONPATH": str(pathlib.Path(tfdp.__file__).parents[1]),
        }
        self._done(subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code], cwd=self.folder, env=environment,
            capture_output=True, text=True,
        ), block, path)  # fmt: skip


_RUN = {"python": Page._python, "sh": Page._shell}


def _installed(package):
    return importlib.util.find_spec(package) is not None


def main(path):
    """Runs the blocks of one page in a folder of its own."""
    import page_setups

    path = pathlib.Path(path).resolve()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        os.chdir(folder)
        ran = Page(pathlib.Path(folder), None, stack).run(path, page_setups.SETUPS)
        os.chdir(path.parent)
    print(f"{path.name}: {ran} blocks ran")


if __name__ == "__main__":
    main(sys.argv[1])
