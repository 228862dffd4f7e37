"""Plugins of a recipe: their layers are read without running them, and what is wrong is told at its own line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.recipe.load import Loaded, load

Laid = Callable[..., Loaded]
Wrong = Callable[..., list[Diagnostic]]

GATE = '''\
"""A gate."""
from torch import nn, Tensor

raise RuntimeError("it ran")


class Gate(nn.Module):
    """Gates what comes."""

    def __init__(self, in_features: int, width: int, bias: bool = True):
        super().__init__()
        self.linear = nn.Linear(in_features, width, bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.linear(x)
'''


def over(fields: str, file: str = "gates.py") -> str:
    return f"plugins: [{file}]\nmodel: {{graph: {{hidden: {{type: gate, {fields}, input: x}}}}}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gates.py"
    path.write_text(GATE)
    return path


def test_a_layer_of_a_plugin_is_a_type_like_any(file: Path, laid: Laid) -> None:
    loaded = laid(over("width: 4"))
    assert loaded.diagnostics == []
    assert loaded.recipe is not None
    assert loaded.recipe.plugins == (str(file),)
    node = loaded.recipe.model.scope.nodes[0]
    assert node.layer.width == 4  # type: ignore[union-attr]
    assert "plugin" in {each.role for each in loaded.recipe.document.files}


@pytest.mark.parametrize(
    ("fields", "code", "column", "words"),
    [
        ("widht: 4", "S001", 38, "`gate` has no key `widht`"),
        ("width: four", "S003", 45, "`width` is the text `four`"),
        ("bias: true", "S002", 32, "`gate` needs `width`"),
    ],
)
def test_its_fields_are_checked_at_their_place(
    file: Path, wrong: Wrong, fields: str, code: str, column: int, words: str
) -> None:
    (problem,) = wrong(over(fields))
    assert (problem.code, problem.span.line, problem.span.column) == (code, 3, column)
    assert words in problem.message


def test_a_file_that_is_missing(file: Path, wrong: Wrong) -> None:
    problem = next(d for d in wrong(over("width: 4", "gate.py")) if d.code == "X001")
    assert (problem.span.line, problem.span.column) == (2, 11)
    assert problem.help == "did you mean `gates.py`?"


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("def broken(:\n", "X002", 1),
        (GATE.replace("x: Tensor,", "x: Tensor, scale=1.0,"), "X003", 14),
        (GATE.replace("bias", "when"), "B002", 10),
        (GATE.replace("class Gate", "class Linear"), "B001", 7),
    ],
)
def test_what_is_wrong_with_a_file_is_told_at_its_line(file: Path, laid: Laid, text: str, code: str, line: int) -> None:
    file.write_text(text)
    loaded = laid(over("width: 4"))
    problem = next(d for d in loaded.diagnostics if d.code == code)
    assert problem.span.path.endswith("gates.py")
    assert problem.span.line == line
    assert loaded.document is not None
    assert loaded.document.texts()[problem.span.path] == text


def test_a_file_without_a_layer(file: Path, wrong: Wrong) -> None:
    file.write_text("x = 3\n")
    (problem,) = wrong("plugins: [gates.py]\n")
    assert problem.code in ("X003", "X004")
    assert "layer" in problem.message


def test_code_runs_only_when_asked(file: Path, laid: Laid, tmp_path: Path) -> None:
    assert laid(over("width: 4")).recipe is not None
    loaded = load(str(tmp_path / "over.yaml"), plugins=True)
    (problem,) = loaded.diagnostics
    assert problem.code == "X005"
    assert "RuntimeError: it ran" in problem.message
    file.write_text(GATE.replace('raise RuntimeError("it ran")', ""))
    assert load(str(tmp_path / "over.yaml"), plugins=True).recipe is not None


def test_a_type_of_a_plugin_that_was_replaced_names_the_list_that_is_gone(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(GATE.replace("class Gate", "class Other"))
    (tmp_path / "base.yaml").write_text("plugins: [gates.py]\nmodel: {graph: {a: {type: gate, width: 3, input: x}}}\n")
    (tmp_path / "over.yaml").write_text("extends: base.yaml\nplugins: [other.py]\n")
    problem = next(each for each in load(str(tmp_path / "over.yaml")).diagnostics if each.code == "S005")
    (gone,) = problem.related
    assert (Path(gone.span.path).name, gone.span.line) == ("base.yaml", 1)
    assert gone.message == "the list of this recipe replaces these plugins, so it must contain all"


def test_input_is_a_port_as_torch_calls_it(file: Path, laid: Laid) -> None:
    file.write_text(GATE.replace("x: Tensor, mask: Tensor", "input: Tensor, target: Tensor"))
    for written in ("input: x", "inputs: {input: x}", "inputs: [x, x]"):
        assert laid(over("width: 4").replace("input: x", written)).diagnostics == []
