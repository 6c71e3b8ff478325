"""`tfdp budget`: epsilon against noise multiplier."""

from tfdp.commands.image_file import add_plot

_OF_PERSONS = ("max_participations", "min_separation", "num_persons")


def add(subparsers) -> None:
    parser = subparsers.add_parser(
        "budget",
        help="epsilon <-> noise multiplier, as a table or a plot",
        description="Prints the noise multiplier that meets an epsilon, or the epsilon of a noise "
        "multiplier, for training with Poisson-sampled batches, or over a stream.",
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
        "--epochs", type=float, help="number of epochs, of n / batch size steps each, rounded"
    )
    parser.add_argument("--delta", type=float, required=True, help="at most 1/n")
    parser.add_argument(
        "--accountant", choices=["pld", "rdp"],
        help="default: that of a privacy statement, pld, or rdp where pld would be too large or "
        "too coarse",
    )  # fmt: skip
    parser.add_argument(
        "--adjacency",
        choices=["add_or_remove_one", "replace_one", "zero_out"],
        help="default: add_or_remove_one; for a stream, zero_out",
    )
    parser.add_argument(
        "--bands", type=int, metavar="B",
        help="for cyclic Poisson samples of B parts, with noise of a matrix of B bands",
    )  # fmt: skip
    add_plot(parser, "epsilon against steps")
    _add_stream(parser.add_argument_group(
        "a stream in order, with noise correlated over steps (--stream)"
    ))  # fmt: skip
    parser.set_defaults(run=_run)


def _add_stream(group):
    group.add_argument("--stream", action="store_true", help="in place of Poisson batches")
    group.add_argument(
        "--fits", type=int, metavar="F",
        help="chains that contain the same records or persons, crashed ones included (default 1)",
    )  # fmt: skip
    group.add_argument(
        "--max-participations", type=int, metavar="K", help="most steps that one person is in"
    )
    group.add_argument(
        "--min-separation", type=int, metavar="G", help="fewest steps between two of them"
    )
    group.add_argument(
        "--num-persons", type=int, metavar="P", help="with these two: number of persons, for delta"
    )


def _run(arguments) -> int:
    from tfdp.accounting.reports import budget_table

    plan = _stream(arguments) if arguments.stream else _poisson(arguments)
    if arguments.epsilon is not None:
        rows = [plan.row_for_epsilon(epsilon) for epsilon in arguments.epsilon]
    else:
        rows = [plan.row_for_noise_multiplier(sigma) for sigma in arguments.noise_multiplier]
    print(plan.format(rows))
    if arguments.plot:
        budget_table.plot(plan, rows, arguments.plot)
        print(f"plot written to {arguments.plot}")
    return 0


def _poisson(arguments):
    from tfdp.accounting.reports.budget_table import TrainingPlan

    _refuse(arguments, "need --stream", "fits", *_OF_PERSONS)
    return TrainingPlan.of(
        num_examples=arguments.num_examples,
        batch_size=arguments.batch_size,
        steps=arguments.steps,
        epochs=arguments.epochs,
        delta=arguments.delta,
        accountant=arguments.accountant,
        adjacency=arguments.adjacency or "add_or_remove_one",
        bands=1 if arguments.bands is None else arguments.bands,
    )


def _stream(arguments):
    from tfdp.accounting.reports import stream_table

    # A chain has one adjacency, and costs the same after every number of steps.
    _refuse(arguments, "cannot be used with --stream", "adjacency", "plot", "bands")
    return stream_table.StreamPlan.of(
        num_examples=arguments.num_examples,
        batch_size=_whole(arguments.batch_size),
        passes=stream_table.passes_of(arguments.steps, arguments.epochs),
        fits=1 if arguments.fits is None else arguments.fits,
        delta=arguments.delta,
        accountant=arguments.accountant,
        **{name: getattr(arguments, name) for name in _OF_PERSONS},
    )


def _whole(number):
    return int(number) if number.is_integer() else number


def _refuse(arguments, why, *names):
    given = [
        f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name) is not None
    ]
    if given:
        raise ValueError(f"These arguments {why}. Received: {', '.join(given)}")
