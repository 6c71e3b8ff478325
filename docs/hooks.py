"""Hooks of mkdocs: the home is README, and pictures follow the light or dark of the site."""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOME = "---\nhide: [toc]\n---\n\n"
#: On GitHub a picture follows the system of the reader; here it follows the switch of the site.
PICTURE = re.compile(
    r'<picture>\s*<source[^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img(?P<said>[^>]*) src="(?P<light>[^"]+)">\s*</picture>'
)
MARK = re.compile(r"^<!-- (?:plot .*: written by .*|end of plot .*) -->\n", re.M)


def readme():
    """README as a page: its links lead from docs/ and not from the root."""
    text = (ROOT / "README.md").read_text()
    return HOME + re.sub(r'(\]\(|src="|srcset=")docs/', r"\1", text)


def on_files(files, config):
    files.append(File.generated(config, "index.md", content=readme()))
    return files


def on_page_markdown(markdown, page, config, files):
    def both(picture):
        light, dark, said = picture["light"], picture["dark"], picture["said"]
        return f'<img{said} src="{light}#only-light"><img{said} src="{dark}#only-dark">'

    return PICTURE.sub(both, MARK.sub("", markdown))
