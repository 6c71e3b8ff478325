"""Writes tables and plots of the pages from the JSON in benchmarks/results, between their marks.

python benchmarks/render.py       (needs matplotlib)
"""

import os
import pathlib
import re

import plots
import tables
import tables_audits
import tables_clicks
import tables_data
import tables_gpu
import tables_paper
import tables_peers
import tables_scales
import tables_short
import tables_towers
import tables_transitions

DOCS = pathlib.Path(__file__).parents[1] / "docs"
ROOT = DOCS.parent
BEGIN, END = "<!-- {name}: written by benchmarks/render.py -->\n", "<!-- end of {name} -->\n"
BENCHMARKS = {
    "step time": tables.step_time,
    "other libraries": tables_peers.steps,
    "fastest of other libraries": tables_peers.fastest,
    "checks of other libraries": tables_peers.checks,
    "memory of other libraries": tables_peers.memory,
    "start and noise": tables.start_and_noise,
    "random allocation": tables.random_allocation,
    "audits": tables_audits.audits,
    "cliffs": tables.cliffs,
    "papers' tables": tables_paper.dpformer_tables,
    "repeated runs": tables_paper.repeated,
    "without privacy": tables_paper.references,
    "less noise": tables_paper.less_noise,
    "signal and noise": tables_paper.signal,
    "ablations": tables_paper.ablations,
    "layer shares": tables_paper.layer_shares,
    "larger batches": tables_paper.larger_batches,
    "sparse steps": tables_paper.adafest_times,
    "transitions": tables_transitions.everything,
    "click statistics": tables_clicks.click_statistics,
    "sst2": tables.sst2,
    "sst2 from scratch": tables.sst2_scratch,
}
#: The tables of each page, by their marks.
PAGES = {
    "../README.md": {"in short": tables_short.in_short},
    "benchmarks.md": BENCHMARKS,
    "sparse_embeddings.md": {
        "what a step costs": tables.sparse_step,
        "what a step of the click model costs": tables.click_step,
    },
    "data.md": {"files": tables_data.files},
    "gpu.md": {"steps on a GPU": tables_gpu.steps},
    "choosing_training.md": {"scales": tables_scales.scales},
    "streaming.md": {
        "one pass over a log": tables_clicks.one_pass,
        "one pass over a log by tables": tables_clicks.one_pass_of_tables,
        "one pass over millions": tables_clicks.one_pass_of_millions,
    },
    "two_towers.md": {
        "a made catalogue": tables_towers.catalogue,
        "two towers on MovieLens": tables_towers.movielens,
        "two towers on Amazon": tables_towers.amazon_games,
    },
    "persons.md": {
        "persons or records": tables_data.persons_or_records,
        "person step": tables_data.person_step,
    },
}


def rendered(page, sections):
    """The text `page` with all of its tables made anew."""
    for name, lines in sections.items():
        begin, end = (mark.format(name=name) for mark in (BEGIN, END))
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = before + begin + "\n" + "\n".join(lines()) + "\n" + end + after
    return page


PLOT = re.compile(
    "("
    + BEGIN.format(name=r"plot (\w+)(?: at (\d+%))?")
    + ").*?("
    + END.format(name=r"plot \2")
    + ")",
    re.S,
)


def with_pictures(page, path):
    """The text `page` of the file `path`, with each `<!-- plot NAME at WIDTH: …` filled anew."""
    images = pathlib.PurePath(os.path.relpath(plots.IMAGES, path.parent)).as_posix()

    def picture(mark):
        begin, name, width, end = mark.groups()
        lines = plots.PLOTS[name].picture(images, width or "640")
        return begin + "\n".join(lines) + "\n" + end

    return PLOT.sub(picture, page)


def pages_with_plots():
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


if __name__ == "__main__":
    for plot in plots.PLOTS.values():
        plots.write(plot)
    for name, sections in PAGES.items():
        path = DOCS / name
        path.write_text(rendered(path.read_text(), sections))
    for path in pages_with_plots():
        path.write_text(with_pictures(path.read_text(), path))
