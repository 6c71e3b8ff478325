"""Every notebook in examples/ is its script, cell by cell, and runs from end to end."""

import pathlib

import pytest

jupytext = pytest.importorskip("jupytext")

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = [path for path in sorted(EXAMPLES.glob("*.py")) if path.read_text().startswith("# %%")]
NAMES = [path.stem for path in SCRIPTS]


def cells(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_there_is_a_notebook_for_each_script_in_cells_and_no_other():
    assert {"criteo", "image_classifier", "movielens", "own_layer", "sst2", "tabular"} <= set(NAMES)
    assert sorted(path.stem for path in EXAMPLES.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_script_and_shows_nobodys_data(name):
    notebook = jupytext.read(EXAMPLES / f"{name}.ipynb")
    assert cells(notebook) == cells(jupytext.read(EXAMPLES / f"{name}.py")), "`make notebooks`"
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs"


@pytest.mark.evidence
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    notebook = jupytext.read(EXAMPLES / f"{name}.ipynb")
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())
    )
    assert "Privacy statement" in shown and "epsilon = " in shown
