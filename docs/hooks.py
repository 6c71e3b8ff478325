"""Hooks of mkdocs: pages show images that lie outside of docs/, as GitHub does."""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"\]\(\.\./(benchmarks/results/[\w./-]+\.png)\)")


def on_files(files, config):
    names = set()
    for path in pathlib.Path(config.docs_dir).rglob("*.md"):
        names |= set(OUTSIDE.findall(path.read_text()))
    for name in sorted(names):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown, page, config, files):
    return OUTSIDE.sub(r"](\1)", markdown)
