"""The `tfdp` command. Its subcommands are the modules of `tfdp.commands`."""

import argparse
import sys

from tfdp.commands import audit, budget, plan, statement, train

_SUBCOMMANDS = (budget, plan, train, statement, audit)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit status (2 for arguments that make no sense)."""
    parser = argparse.ArgumentParser(
        prog="tfdp",
        description="Differential privacy for Keras 3 on TensorFlow.",
        epilog="example: tfdp train --data ml-1m.txt --model transitions --epsilon 8",
    )
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _SUBCOMMANDS:
        command.add(subparsers)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"tfdp: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tfdp: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
