"""Code blocks of a page, and how they are run: as printed, one after another, in one namespace.

A comment before a block says what it finds in place, `<!-- given: ratings, texts -->`: functions of
`page_setups.py`, which write small files, or stand in for downloads and devices. No text of a
block is changed. `<!-- elsewhere: opacus -->` names a package that tfdp does without; where it is
not installed, that block is left out.
"""

import dataclasses
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: What a fence may be; `text` is a drawing or an output, and is not run.
LANGUAGES = ("python", "sh", "text")
_BLOCK = re.compile(
    r"(?P<comments>(?:^<!--[^\n]*-->\n+)*)^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S
)
_COMMENT = re.compile(r"<!-- (given|elsewhere): ([\w, -]+) -->")


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line it begins at, and the comments before."""

    language: str
    code: str
    line: int
    given: tuple
    elsewhere: tuple


def blocks_of(text):
    """The blocks of a page, in order."""
    found = []
    for match in _BLOCK.finditer(text):
        named = {"given": (), "elsewhere": ()}
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
            _RUN[block.language](self, block, path)
            ran += 1
        return ran

    def _python(self, block, path):
        # Empty lines in front: tracebacks have the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        exec(code, self.names)

    def _shell(self, block, path):
        paths = [str(self.folder / "bin"), str(pathlib.Path(sys.executable).parent)]
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([*paths, os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code], cwd=self.folder, env=environment,
            capture_output=True, text=True,
        )  # fmt: skip
        assert not done.returncode, f"{path}:{block.line}\n{done.stdout}{done.stderr}"


_RUN = {"python": Page._python, "sh": Page._shell}


def _installed(package):
    return importlib.util.find_spec(package) is not None
