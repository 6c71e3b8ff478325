"""Prints the requirements of one extra of pyproject.toml, without those of tfdp itself.

python docs/extra.py docs
"""

import pathlib
import sys

import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
print("\n".join(project["optional-dependencies"][sys.argv[1]]))
