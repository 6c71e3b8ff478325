"""`tfdp plan`: which batch size leaves the least noise."""

from tfdp.commands.image_file import add_plot


def add(subparsers) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="batch sizes, with the steps and noise for an epsilon",
        description="For one epsilon and one number of epochs, prints the noise multiplier of "
        "each batch size, and the noise on the mean gradient: of one step, and over "
        "all steps.",
        epilog="example: tfdp plan --num-examples 6040 --epochs 100 --epsilon 8 --delta 1e-4",
    )
    parser.add_argument("--num-examples", type=int, required=True, help="number of records, n")
    parser.add_argument("--epochs", type=float, required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--delta", type=float, required=True, help="at most 1/n")
    parser.add_argument(
        "--batch-size", type=int, nargs="+", metavar="B", help="default: n/128 to n"
    )
    parser.add_argument("--accountant", choices=["pld", "rdp"], help="default: as for tfdp budget")
    add_plot(parser, "both kinds of noise against the batch size")
    parser.add_argument(
        "--ways", action="store_true",
        help="also compare ways to draw batches and to add noise, for the first batch size",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _run(arguments) -> int:
    from tfdp.accounting import planner, ways

    planned = planner.plan_training(
        arguments.num_examples, arguments.epochs, arguments.epsilon, arguments.delta,
        arguments.batch_size, arguments.accountant,
    )  # fmt: skip
    print(planner.table(planned))
    if arguments.ways:
        size = planned[0].batch_size
        print(f"\nways to train with batches of {size}:")
        print(ways.table(ways.compare_ways(
            arguments.num_examples, arguments.epochs, arguments.epsilon, arguments.delta, size,
            arguments.accountant,
        )))  # fmt: skip
    if arguments.plot:
        planner.plot(planned, arguments.plot)
        print(f"plot written to {arguments.plot}")
    return 0
