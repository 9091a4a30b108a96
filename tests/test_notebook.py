"""The example notebook: it runs from the top, shows what it should, and is kept without outputs."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from pages import save

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "inside.ipynb"
SHOWN = {"text/html", "image/svg+xml", "text/plain"}


def run(folder: Path) -> list:
    """Execute the notebook in a folder; return the outputs of its cells of code."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder.mkdir()
    client = NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("there", [False, True], ids=["no model", "a model"])
def test_every_cell_runs_and_shows_a_page_a_picture_and_a_line(there: bool, tmp_path: Path):
    if there:
        save(tmp_path / "transduce-demo")
    outputs = run(tmp_path / "examples")
    kinds = [set(one.data) for cell in outputs for one in cell if one.output_type != "stream"]
    assert kinds == [SHOWN, {"image/svg+xml", "text/plain"}]
    (page,) = [one for cell in outputs for one in cell if set(one.get("data", ())) == SHOWN]
    assert 'sandbox="allow-scripts"' in page.data["text/html"]
    printed = "".join(one.text for cell in outputs for one in cell if one.output_type == "stream")
    assert ("random" in printed) is not there
    assert "decoder.1.cross_attention without head 3: log P" in printed
    assert printed.count("of at most") == 8


def test_it_is_kept_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
