"""What records of a pipeline were made with: known before it runs, or refused where it shows."""

from tfdp.data.provenance.origins import Origin


def refuse_other_origin(record, parsed, known):
    """Refuses a record that was made with what the draw does not say.

    Args:
        record: of the pipeline.
        parsed: what `parse` made of it.
        known: the `Origin` that is written beside the draw.

    Raises:
        ValueError: if it was.
    """
    if Origin.all_of([known, Origin.of((record, parsed))]) != known:
        raise ValueError(
            "Records that carry the charge of a release must be given as `Indexed(source)`, and "
            "all of them must be made with the same releases: their cost must be known before "
            "the draw. Received: a record made with other releases"
        )


def refuse_any_origin(record):
    """Refuses a record of a log that was made with a release.

    Raises:
        ValueError: if it was.
    """
    if Origin.of(record):
        raise ValueError(
            "Records of a log must not be made with a release, because the workers would lose "
            "its charge. Make releases from arrays (`tfdp.data`, `tfdp.selection`), which carry "
            "it. Received: a record that carries an origin"
        )
