"""The option `--plot FILE` of the subcommands."""

import argparse
import importlib.util
import pathlib

_FORMATS = (".pdf", ".png", ".svg")


def add_plot(parser, what: str) -> None:
    """Adds `--plot FILE`. A file that cannot be drawn is refused before anything is computed."""
    parser.add_argument(
        "--plot", metavar="FILE", type=_image_file, help=f"also draw {what} (needs matplotlib)"
    )


def _image_file(text):
    path = pathlib.Path(text)
    if path.suffix.lower() not in _FORMATS:
        raise argparse.ArgumentTypeError(f"the name must end in {', '.join(_FORMATS)}: {text}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}/")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("matplotlib is missing: pip install 'tfdp[plot]'")
    return path
