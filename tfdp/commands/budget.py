"""`tfdp budget`: epsilon against noise multiplier."""

from tfdp.commands.image_file import add_plot


def add(subparsers) -> None:
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
    add_plot(parser, "epsilon against steps")
    parser.set_defaults(run=_run)


def _run(arguments) -> int:
    from tfdp.accounting.reports import budget_table

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
