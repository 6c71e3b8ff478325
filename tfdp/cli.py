"""The `tfdp` command.

`tfdp --help` and `tfdp budget` import neither TensorFlow nor Keras: every subcommand imports what
it needs when it runs. A subcommand is one `_add_…` function, listed in `_SUBCOMMANDS`, that adds
its parser and sets `run` to a function of the parsed arguments.
"""

import argparse
import json
import pathlib
import sys


def main(argv=None):
    """Runs the command; returns its exit status (2 for arguments that make no sense)."""
    parser = argparse.ArgumentParser(
        prog="tfdp", description="Differential privacy for Keras 3 on TensorFlow."
    )
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in _SUBCOMMANDS:
        add(subparsers)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except (ValueError, OSError) as error:
        print(f"tfdp: error: {error}", file=sys.stderr)
        return 2


def _add_budget(subparsers):
    parser = subparsers.add_parser(
        "budget",
        help="epsilon <-> noise multiplier, as a table or a plot",
        description="Prints the noise multiplier that meets an epsilon, or the epsilon of a noise "
        "multiplier, for training with Poisson-sampled batches.",
        epilog="example: tfdp budget --epsilon 1 3 8 --num-examples 6040 --batch-size 512 "
        "--epochs 100 --delta 1e-4",
    )
    known = parser.add_mutually_exclusive_group(required=True)
    known.add_argument("--epsilon", type=float, nargs="+", metavar="E", help="budgets to meet")
    known.add_argument(
        "--noise-multiplier", type=float, nargs="+", metavar="S",
        help="noise standard deviations over the clip norm",
    )  # fmt: skip
    parser.add_argument("--num-examples", type=int, required=True, help="number of records, n")
    parser.add_argument(
        "--batch-size", type=float, required=True, help="expected batch size; n means no sampling"
    )
    duration = parser.add_mutually_exclusive_group(required=True)
    duration.add_argument("--steps", type=int, help="number of training steps")
    duration.add_argument(
        "--epochs", type=float, help="number of epochs; steps = ceil(epochs * n / batch size)"
    )
    parser.add_argument("--delta", type=float, required=True, help="at most 1/n")
    parser.add_argument("--accountant", choices=["pld", "rdp"], default="pld")
    parser.add_argument(
        "--adjacency",
        choices=["add_or_remove_one", "replace_one", "zero_out"],
        default="add_or_remove_one",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="also draw epsilon against steps (needs matplotlib)"
    )
    parser.set_defaults(run=_run_budget)


def _run_budget(arguments):
    from tfdp.accounting import budget_table

    plan = budget_table.TrainingPlan.of(
        num_examples=arguments.num_examples,
        batch_size=arguments.batch_size,
        steps=arguments.steps,
        epochs=arguments.epochs,
        delta=arguments.delta,
        accountant=arguments.accountant,
        adjacency=arguments.adjacency,
    )
    if arguments.epsilon is not None:
        rows = [plan.row_for_epsilon(epsilon) for epsilon in arguments.epsilon]
    else:
        rows = [plan.row_for_noise_multiplier(sigma) for sigma in arguments.noise_multiplier]
    print(plan.format(rows))
    if arguments.plot:
        budget_table.plot(plan, rows, arguments.plot)
        print(f"plot written to {arguments.plot}")
    return 0


def _add_audit(subparsers):
    parser = subparsers.add_parser(
        "audit",
        help="attacks every mechanism: epsilon claimed, and epsilon shown at least",
        description="Plays games against the mechanisms of this installation: one record, as bad "
        "as it may be, is in or not, and a test has to tell. Prints the epsilon that is claimed "
        "and the lower bound that the attack shows. Exits with 1 if a claim is refuted.",
        epilog='example: tfdp audit --mechanism "forward noise" --trials 20000 --plot audit.png',
    )
    parser.add_argument("--mechanism", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--trials", type=int, default=2000, help="runs of either kind")
    parser.add_argument("--delta", type=float, default=1e-3)
    parser.add_argument("--confidence", type=float, default=0.95, help="of the bounds")
    parser.add_argument("--json", metavar="FILE", help="also write the results")
    parser.add_argument("--plot", metavar="FILE", help="also draw them (needs matplotlib)")
    parser.set_defaults(run=_run_audit)


def _run_audit(arguments):
    from tfdp import audit
    from tfdp.audit import result

    results = []
    for name in arguments.mechanism or audit.GAMES:
        print(f"attacking: {name}", file=sys.stderr, flush=True)
        results.append(audit.play(name, arguments.trials, arguments.delta, arguments.confidence))
    print(result.table(results))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps([r.to_dict() for r in results], indent=1) + "\n"
        )
    if arguments.plot:
        result.plot(results, arguments.plot)
    return 0 if all(r.holds for r in results) else 1


def _add_plan(subparsers):
    parser = subparsers.add_parser(
        "plan",
        help="the batch size, steps and noise that an epsilon leaves",
        description="Prints, for one epsilon and one number of epochs, the noise multiplier of "
        "each batch size, and how much noise that is on the mean gradient: of a step, and of all.",
        epilog="example: tfdp plan --num-examples 6040 --epochs 100 --epsilon 8 --delta 1e-4",
    )
    parser.add_argument("--num-examples", type=int, required=True, help="number of records, n")
    parser.add_argument("--epochs", type=float, required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--delta", type=float, required=True, help="at most 1/n")
    parser.add_argument(
        "--batch-size", type=int, nargs="+", metavar="B", help="default: n/128 to n"
    )
    parser.add_argument("--accountant", choices=["pld", "rdp"], default="pld")
    parser.add_argument("--plot", metavar="FILE", help="also draw it (needs matplotlib)")
    parser.set_defaults(run=_run_plan)


def _run_plan(arguments):
    from tfdp.accounting import planner

    planned = planner.plan_training(
        arguments.num_examples, arguments.epochs, arguments.epsilon, arguments.delta,
        arguments.batch_size, arguments.accountant,
    )  # fmt: skip
    print(planner.table(planned))
    if arguments.plot:
        planner.plot(planned, arguments.plot)
    return 0


def _add_statement(subparsers):
    parser = subparsers.add_parser(
        "statement",
        help="prints the privacy statement of an export",
        description="Prints the privacy statement beside an exported model, or in a file.",
        epilog="example: tfdp statement exported/",
    )
    parser.add_argument("path", help="a folder made by tfdp.serving.export, or a JSON file")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.set_defaults(run=_run_statement)


def _run_statement(arguments):
    from tfdp.accounting.statement import Statement

    path = pathlib.Path(arguments.path)
    path = path / "privacy_statement.json" if path.is_dir() else path
    try:
        statement = Statement.from_dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"Argument `path` holds no privacy statement: {path} ({error})") from error
    print(statement.to_json() if arguments.json else statement)
    return 0


_SUBCOMMANDS = (_add_budget, _add_plan, _add_statement, _add_audit)


if __name__ == "__main__":
    sys.exit(main())
