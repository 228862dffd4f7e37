"""The notebook of the docs runs in a real Jupyter kernel, two forked ranks included."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_steps.ipynb"

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Jupyter's own packages
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def kernel_finds_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    folder = tmp_path / "docs" / "notebooks"
    folder.mkdir(parents=True)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    return folder


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def shown(cell: nbformat.NotebookNode) -> str:
    parts = [each.get("text", "") or each.get("data", {}).get("text/html", "") for each in cell["outputs"]]
    return "".join("".join(part) for part in parts) + "".join(
        each.get("data", {}).get("text/plain", "") for each in cell["outputs"]
    )


@pytest.mark.long
def test_the_first_steps(kernel_finds_us: Path) -> None:
    made = executed(nbformat.read(NOTEBOOK, as_version=4), kernel_finds_us)
    texts = {cell["source"].splitlines()[-1]: shown(cell) for cell in made.cells if cell["cell_type"] == "code"}
    said = list(texts.values())
    assert "nothing wrong" in said[1]
    assert "out_features" in said[2]
    assert "<b>model</b>" in said[3]
    assert "finished" in said[4]
    apart = re.search(r"losses: (\S+)", said[6])
    assert apart is not None
    assert float(apart[1]) < 1e-5
    assert "logits" in said[8]
    labels = re.findall(r"\d+", re.sub(r"dtype=\w+", "", said[9].rpartition("array")[2]))
    assert len(labels) == 5
    assert all(label in said[7] for label in labels)


def test_a_mistake_is_shown_without_a_traceback(kernel_finds_us: Path) -> None:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell("import declarative_train as dt\ndt.loads('nmae: x').plan()"),
    ]
    with pytest.raises(CellExecutionError) as caught:
        executed(notebook, kernel_finds_us)
    assert "DtrainError: the recipe has" in str(caught.value)
    assert "did you mean `name`" in str(caught.value)
    assert "Traceback" not in "".join(notebook.cells[0]["outputs"][-1]["traceback"])
