"""`tfdp audit`: attacks against single mechanisms, and canaries in whole runs."""

import json
import pathlib

from tfdp.commands.image_file import add_plot
from tfdp.commands.progress import working


def add(subparsers) -> None:
    parser = subparsers.add_parser(
        "audit",
        help="attacks on mechanisms: the claimed epsilon, and a lower bound on the true one",
        description="Attacks the mechanisms of this installation. In games, one worst-case "
        "record is in the data or not, and a test must tell which. In canary attacks, fair "
        "coins decide which records are in the data of a whole run, and the attack "
        "guesses which. Prints the claimed epsilon and the lower bound that the "
        "attack proves. Exits with 1 if a claim is refuted.",
        epilog='example: tfdp audit --mechanism "forward noise" --trials 20000 --plot audit.png',
    )
    parser.add_argument("--mechanism", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument(
        "--trials", type=int, default=2000, help="runs with and without the record, or canaries"
    )
    parser.add_argument("--delta", type=float, default=1e-3, help="delta of games")
    parser.add_argument(
        "--canary-delta", type=float, default=1e-5, help="delta of canaries: at most 1/records"
    )
    parser.add_argument("--confidence", type=float, default=0.95, help="confidence of the bounds")
    parser.add_argument("--json", metavar="FILE", help="also write the results")
    add_plot(parser, "bounds under claims")
    parser.set_defaults(run=_run)


def _run(arguments) -> int:
    from tfdp import audit
    from tfdp.audit import result

    results = []
    for name in arguments.mechanism or (*audit.GAMES, *audit.CANARIES):
        delta = arguments.canary_delta if name in audit.CANARIES else arguments.delta
        with working(f"Attacking: {name}"):
            found = audit.play(name, arguments.trials, delta, arguments.confidence)
        results.append(found)
    print(result.table(results))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps([r.to_dict() for r in results], indent=1) + "\n"
        )
    if arguments.plot:
        result.plot(results, arguments.plot)
    return 0 if all(r.holds for r in results) else 1
