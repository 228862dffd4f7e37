"""A key that was renamed: it works as before, is told, and is mended; with a table of keys made for these tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from declarative_train.diagnostics.diagnostic import Severity
from declarative_train.recipe.load import Loaded
from declarative_train.recipe.old_forms import DEPRECATED, Renamed
from tests.linted import dtrain, write

Laid = Callable[..., Loaded]


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPRECATED, ("training", "passes"), Renamed("epochs", "0.2"))
    monkeypatch.setitem(DEPRECATED, ("model", "graph", "*", "units_out"), Renamed("out_features", "0.3"))


def test_it_means_what_it_meant(laid: Laid) -> None:
    loaded = laid("training: {passes: 7}\n")
    assert loaded.recipe is not None
    assert loaded.recipe.training.epochs == 7
    [found] = loaded.diagnostics
    assert (found.code, found.severity) == ("S008", Severity.WARNING)
    assert found.message == "`passes` is called `epochs` since dtrain 0.2"
    assert (found.span.line, found.span.column, found.span.end_column) == (2, 12, 18)


def test_any_name_on_the_way(laid: Laid) -> None:
    loaded = laid("model: {graph: {hidden: {units_out: 9}}}\n")
    assert [each.code for each in loaded.diagnostics] == ["S008"]
    assert loaded.recipe is not None


def test_it_meets_the_new_name_of_a_base_and_its_alternatives(laid: Laid, small: str) -> None:
    """Renamed before merging: the old name replaces the base's value, or displaces its `steps`."""
    loaded = laid("training: {passes: 7}\n", base=small.replace("epochs: 5", "steps: 60"))
    assert loaded.recipe is not None
    assert (loaded.recipe.training.epochs, loaded.recipe.training.steps) == (7, None)


def test_both_names_are_one_too_many(laid: Laid) -> None:
    [found] = laid("training: {passes: 7, epochs: 8}\n").diagnostics
    assert found.code == "S001"


def test_fix_writes_the_new_name_and_nothing_else(tmp_path: Path, small: str) -> None:
    old = small.replace("  epochs: 5", "  'passes':   5   # of all rows")
    write(tmp_path, {"old.yaml": old})
    output = dtrain("lint", str(tmp_path / "old.yaml"), "--static", "--fix", "--format", "concise")
    assert (output.code, output.out) == (0, "")
    assert (tmp_path / "old.yaml").read_text() == old.replace("'passes'", "'epochs'")
