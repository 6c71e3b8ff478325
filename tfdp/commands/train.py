"""`tfdp train`: from a file to a private model that TensorFlow Serving takes."""

import argparse
import os
import pathlib
import sys

from tfdp.commands.image_file import add_plot
from tfdp.commands.progress import working
from tfdp.commands.serving_hint import how_to_serve
from tfdp.commands.startup_log import started_quietly

_UNITS = {"dpformer": "user", "transitions": "user", "ctr": "impression", "text": "text"}
_IN_STEPS = ("dpformer", "ctr")  # models that every step adds to the cost of
_ADDS_UP = (
    "The statement covers this model only. Another run on the same people costs again, for an\n"
    "observer who sees both models, or the better one (tfdp.tuning accounts for choosing).\n"
)
_NOT_COMPARED = "not measured (--compare trains the same model again)"
_ON_RAW_DATA = "Both are computed on held-out raw data, and not covered: do not publish them."
_DESCRIPTION = """\
Trains a private model on a file, writes exported/ (a SavedModel and privacy_statement.json),
prints the statement and a summary, and says how TensorFlow Serving takes the export.

models:
  transitions  next item, from one private release; no training. The unit is a user.
  dpformer     next item, a transformer trained with DP-SGD. The unit is a user.
  ctr          clicks, sparse tables with DP-AdaFEST; in Criteo's format, or with --label and
               --categories. The unit is an impression.
  text         classes of texts, noise in the forward pass. The unit is a text.
"""
_EPILOG = """\
examples:
  tfdp train --data ml-1m.txt --model transitions --epsilon 8
  tfdp train --data orders.csv --user customer --item sku --timestamp time \\
      --items catalogue.txt --model dpformer --epsilon 8 --epochs 50
  tfdp train --data impressions.csv --label clicked --categories ad site --counts price \\
      --model ctr --epsilon 3
  tfdp train --data reviews.csv --text review --label stars --classes 1 2 3 4 5 \\
      --vocabulary vocab.txt --model text --epsilon 3
"""


def add(subparsers) -> None:
    parser = subparsers.add_parser(
        "train",
        help="a private model from a file, exported for serving",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", required=True, metavar="FILE", help="training data")
    parser.add_argument("--model", required=True, choices=list(_UNITS))
    parser.add_argument("--export", default="exported", metavar="FOLDER", help="default: exported")
    privacy = parser.add_argument_group("privacy")
    privacy.add_argument("--epsilon", type=float, required=True, help="total of everything charged")
    privacy.add_argument("--delta", type=float, help="at most 1/n; default: 1/(10 n)")
    privacy.add_argument(
        "--unit", choices=sorted(set(_UNITS.values())),
        help="required unit of privacy; an error if the model protects another",
    )  # fmt: skip
    training = parser.add_argument_group("training")
    training.add_argument(
        "--compare", action="store_true",
        help="also train the same model without privacy, show its quality on this terminal, and "
        "keep nothing: neither model nor quality is private",
    )  # fmt: skip
    training.add_argument("--epochs", type=int, help="default: dpformer 20, ctr 4, text 20")
    training.add_argument("--batch-size", type=int, help="default: dpformer n/8, ctr 2048")
    training.add_argument("--learning-rate", type=float, help="of Adam")
    add_plot(training, "epsilon over steps (dpformer, ctr)")
    training.add_argument("--max-length", type=int, help="items of a history, tokens of a text")
    tables = parser.add_argument_group("tables (CSV with a header; Parquet)")
    for column in ("user", "item", "timestamp", "text", "label"):
        tables.add_argument(f"--{column}", metavar="COLUMN")
    tables.add_argument("--delimiter", help="default: a comma, in .tsv files a tab")
    tables.add_argument(
        "--items", metavar="FILE",
        help="the public catalogue, one item a line; or from_data, which the statement lists",
    )  # fmt: skip
    others = parser.add_argument_group("options of some models")
    others.add_argument("--num-items", type=int, help="number of items, if ids are numbers")
    others.add_argument(
        "--exclude-seen", action="store_true", help="transitions: recommend new items only"
    )
    others.add_argument("--categories", nargs="+", metavar="COLUMN", help="ctr, with --label")
    others.add_argument("--counts", nargs="+", metavar="COLUMN", help="ctr: columns of numbers")
    others.add_argument("--hash-buckets", type=int, help="ctr: rows of each table")
    others.add_argument("--vocabulary", metavar="FILE", help="text: a public WordPiece vocabulary")
    others.add_argument("--backbone", metavar="FOLDER", help="text: a public keras_hub preset")
    others.add_argument("--classes", nargs="+", metavar="LABEL", help="text: default 0 1")
    parser.set_defaults(run=_run)


def _run(arguments) -> int:
    _check(arguments)
    print("Starting TensorFlow", flush=True)
    with started_quietly():
        from tfdp import serving
        from tfdp.commands import recipes

    trained = recipes.train(arguments)
    statement = trained.model.privacy_statement(trained.delta)
    with working("Exporting the model"):
        folder = serving.export(trained.model, arguments.export, delta=trained.delta)
    if trained.items is not None:
        # Line i is the item of id i.
        names = "".join(f"{item}\n" for item in trained.items)
        (folder / "items.txt").write_text(names, encoding="utf-8")
    if arguments.plot is not None:
        trained.curve.plot(arguments.plot)
    print(f"\n{statement}\n\n{_ADDS_UP}")
    # After all files are written: no figure on raw data can be in one of them.
    quality = [trained.quality(trained.model), _NOT_COMPARED]
    if arguments.compare:
        print("The same model without privacy, to compare; it is not kept.")
        quality[1] = trained.quality(trained.without_privacy())
    print(f"\n{_summary(statement, quality, folder, arguments.plot)}\n")
    print(f"{how_to_serve(folder, arguments.model)}\n")
    print(f"Next: tfdp statement {folder} --html > card.html   # a model card for readers")
    return 0


def _summary(statement, quality, folder, plot):
    """What a run made, in a few lines; `quality` has the figures with and without privacy."""
    from tfdp.accounting.rounding import round_up

    spent = f"epsilon = {round_up(statement.epsilon)}, delta = {round_up(statement.delta)}"
    rows = [
        ("privacy", f"{spent}, for {statement.unit}"),
        ("quality", f"{quality[0]}; with privacy"),
        ("", f"{quality[1]}; without privacy"),
        ("", _ON_RAW_DATA),
        ("model", f"{folder}/, a SavedModel and privacy_statement.json"),
    ]  # fmt: skip
    if plot is not None:
        rows.append(("plot", str(plot)))
    return "\n".join(["Summary", *(f"  {name:9}{value}" for name, value in rows)])


def _check(arguments):
    """What can be refused before TensorFlow is loaded."""
    unit = _UNITS[arguments.model]
    if arguments.unit not in (None, unit):
        raise ValueError(
            f"--unit {arguments.unit}: the model {arguments.model!r} protects one {unit}. "
            f"Leave --unit out, or choose a model that protects one {arguments.unit}"
        )
    for name in ("epsilon", "delta", "epochs", "batch_size", "learning_rate", "max_length"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} must be positive. Received: {value}")
    if arguments.delta is not None and arguments.delta >= 1:
        raise ValueError(f"--delta must be below 1. Received: {arguments.delta}")
    if arguments.plot is not None and arguments.model not in _IN_STEPS:
        raise ValueError(
            f"--plot draws epsilon over steps, for --model {' and '.join(_IN_STEPS)}. The model "
            f"{arguments.model!r} is charged once, without steps. Leave --plot out"
        )
    if arguments.compare and not sys.stdout.isatty():
        raise ValueError(
            "--compare shows figures that are not private, so it works on a terminal only. "
            "Received: an output that goes to a file or another program. Leave --compare out"
        )
    if not os.path.isfile(arguments.data):
        raise ValueError(f"--data must name a file. Received: {arguments.data}")
    if arguments.model == "text":
        missing = [n for n in ("text", "label", "vocabulary") if getattr(arguments, n) is None]
        if missing:
            raise ValueError(f"--model text needs {', '.join(f'--{name}' for name in missing)}")
    export = pathlib.Path(arguments.export)
    if export.exists() and (not export.is_dir() or any(export.iterdir())):
        raise ValueError(f"--export must name a new or an empty folder. Received: {export}")
