"""`tfdp statement`: what an exported model promises, in the form that a reader needs."""

import dataclasses
import json
import pathlib

_FILE = "privacy_statement.json"
_RELEASES = (
    "The model releases attention weights at every call. privacy_statement.json lists the cost "
    "of a call under releases_at_inference, and that of a whole request under "
    "release_of_one_request. It is not part of this epsilon."
)


def add(subparsers) -> None:
    parser = subparsers.add_parser(
        "statement",
        help="prints the privacy statement of an export",
        description="Prints the privacy statement beside an exported model, or in a file.",
        epilog="example: tfdp statement exported/ --html --about about.toml > card.html",
    )
    parser.add_argument("path", help="a folder made by tfdp.serving.export, or a JSON file")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON, for programs")
    form.add_argument(
        "--html", action="store_true", help="as a model card of one page, for readers"
    )
    form.add_argument("--markdown", action="store_true", help="as a section of a model card")
    parser.add_argument(
        "--about", metavar="FILE",
        help="with --html: your own text for the card, as TOML (docs/statement.md)",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _run(arguments) -> int:
    from tfdp.accounting.reports import model_card, statement_pages
    from tfdp.accounting.reports.about import About
    from tfdp.accounting.reports.statement import Statement

    if arguments.about is not None and not arguments.html:
        raise ValueError("--about is for the model card. Add --html, or leave --about out")
    path = pathlib.Path(arguments.path)
    path = path / _FILE if path.is_dir() else path
    if path.suffix in (".keras", ".h5"):
        raise ValueError(
            f"Argument `path` is a saved model, not a statement: {path}. Load it with "
            "keras.models.load_model and print model.privacy_statement(), or give the folder that "
            "tfdp.serving.export made"
        )
    try:
        fields = json.loads(path.read_text())
        if _is_bare(fields) and not (arguments.html or arguments.markdown):
            remarks = "\n".join(fields.get("remarks", ()))
            print(json.dumps(fields, indent=2) if arguments.json else f"NOT PRIVATE. {remarks}")
            return 0
        statement = Statement.from_dict(fields)
    except (ValueError, TypeError) as error:
        raise ValueError(f"Argument `path` holds no privacy statement: {path} ({error})") from error
    if fields.get("releases_at_inference"):
        statement = dataclasses.replace(statement, remarks=(*statement.remarks, _RELEASES))
    if arguments.json:
        print(json.dumps(fields, indent=2, allow_nan=False))
    elif arguments.html:
        about = About()
        if arguments.about is not None:
            about = About.from_toml(pathlib.Path(arguments.about).read_text(encoding="utf-8"))
        print(model_card.to_html(statement, about))
    elif arguments.markdown:
        print(statement_pages.to_markdown(statement))
    else:
        print(statement)
    return 0


def _is_bare(fields) -> bool:
    """Whether it is what `export` writes beside a model that was trained without privacy."""
    return (
        isinstance(fields, dict)
        and fields.get("epsilon") == "infinity"
        and ("entries" not in fields)
    )
