"""How a benchmark takes its arguments, and records what it measures.

args = record.parse(parser, repeats=5)            # with --small: 5 repeats unless given
result = record.Result(args.out, steps=[])
result["steps"].append(row)
result.write()
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import sys


def parse(parser, **small):
    """The arguments of the command line, with `--out` and `--small`.

    Args:
        parser: an ArgumentParser of the other arguments.
        small: their defaults under `--small`, by name.
    """
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--small", action="store_true", help=f"a short run, with {small or 'all'}")
    if "--small" in sys.argv[1:]:
        parser.set_defaults(**small)
    return parser.parse_args()


class Result(dict):
    """What a benchmark found, with the machine, the versions, the load and the date."""

    def __init__(self, path, **found):
        processor = platform.processor() or platform.machine()
        super().__init__(
            machine=f"{processor}, {os.cpu_count()} cores",
            load=os.getloadavg()[0],
            date=datetime.date.today().isoformat(),
            tensorflow=importlib.metadata.version("tensorflow"),
            keras=importlib.metadata.version("keras"),
            **found,
        )
        self.path = None if path is None else pathlib.Path(path)

    def write(self):
        """Writes all of it, in place of what the file held; without a path, does nothing."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")  # who stops a run keeps what was measured
        part.write_text(json.dumps(self, indent=1) + "\n")
        part.replace(self.path)
