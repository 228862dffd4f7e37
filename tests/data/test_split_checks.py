"""Sets whose numbers say nothing: rows of another set, a class without a row; and shares of what is no class."""

from __future__ import annotations

from pathlib import Path

import pytest

from declarative_train import planner
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.plan import Plan
from declarative_train.recipe import load

RECIPE = """
name: sets
data:
  source: {type: csv, path: rows.csv}
  fields:
    x: {columns: [a, b]}
    y: {type: category, column: kind}
  split: %s
model: {graph: {net: {type: linear, out_features: 2, input: x}}}
objective: {loss: {type: cross_entropy, input: net, target: y}, metrics: [f1]}
training: {epochs: 3, global_batch_size: 10, optimizer: {type: sgd, lr: 0.1}}
"""


def compiled(folder: Path, split: str, more: str = "") -> tuple[Plan | None, list[Diagnostic]]:
    rows = [f"{i}.25,{i * i},{'fraud' if i in (3, 7) else 'fair'}" for i in range(100)]
    for name in ("rows.csv", "other.csv"):
        (folder / name).write_text("\n".join(["a,b,kind", *rows]) + "\n")
    (folder / "link.csv").unlink(missing_ok=True)
    (folder / "link.csv").symlink_to("rows.csv")
    (folder / "recipe.yaml").write_text(RECIPE % split + more)
    loaded = load(str(folder / "recipe.yaml"))
    assert loaded.recipe is not None, loaded.diagnostics
    return planner.compile(loaded.recipe)


def own(path: str) -> str:
    return f"{{source: {{type: csv, path: {path}}}}}"


@pytest.mark.parametrize(
    ("split", "told"),
    [
        (f"{{validation: {own('rows.csv')}}}", ["`validation` reads `{}/rows.csv`, as `training` does"]),
        (f"{{validation: {own('link.csv')}}}", ["`validation` reads `{}/link.csv`, as `training` does"]),
        (
            f"{{test: {own('other.csv')}, validation: {own(chr(34) + 'o*.csv' + chr(34))}}}",
            ["`validation` reads `{}/other.csv`, as `test` does"],
        ),
        (f"{{validation: {own('other.csv')}}}", []),
    ],
)
def test_two_sets_of_one_file_are_an_error(tmp_path: Path, split: str, told: list[str]) -> None:
    """Validation on the training file looked like a good model."""
    _, found = compiled(tmp_path, split)
    said = [item.message for item in found if item.code == "D032" and item.is_error]
    assert said == [each.format(tmp_path) for each in told]


def test_a_set_without_a_class_is_told_with_the_split_that_has_it(tmp_path: Path) -> None:
    """f1 was 1.0000 and auroc nan, of a test set without a positive."""
    _, found = compiled(tmp_path, "{test: {type: last, fraction: 0.2}}")
    (told,) = [item for item in found if item.code == "D033"]
    assert told.message == "`test` has no row whose `y` is 1 (`fraud`)"
    assert told.help is not None
    assert "{type: stratified, fraction: 0.2, column: kind}" in told.help
    plan, found = compiled(tmp_path, "{test: {type: stratified, fraction: 0.5, column: kind}}")
    assert plan is not None
    assert not [item for item in found if item.code == "D033"]


def test_many_classes_without_a_row_are_counted(tmp_path: Path) -> None:
    """60 of 100 species had no row in the set, and lint said nothing."""
    rows = [f"{i}.25,{i * i},kind {i % 25:02}" for i in range(100)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n")
    recipe = RECIPE.replace("out_features: 2", "out_features: 25")
    for split, message, words in (
        (
            "{type: last, fraction: 0.1}",
            "of 15 of the 25 classes of `y`: 0 (`kind 00`), 1 (`kind 01`), ",
            "its 10 rows",
        ),
        ("{type: last, fraction: 0.26}", "", ""),
    ):
        (tmp_path / "recipe.yaml").write_text(recipe % f"{{test: {split}}}")
        loaded = load(str(tmp_path / "recipe.yaml"))
        assert loaded.recipe is not None
        found = [item for item in planner.compile(loaded.recipe)[1] if item.code == "D033"]
        assert [message in item.message and words in (item.help or "") for item in found] == [True] * bool(message), (
            found
        )


def test_a_share_of_every_fraction_is_refused(tmp_path: Path) -> None:
    _, found = compiled(tmp_path, "{test: {type: stratified, fraction: 0.5, column: a}}")
    assert [(item.code, "`a` has fractional values such as 0.25" in item.message) for item in found] == [("D016", True)]


@pytest.mark.parametrize(
    ("more", "every"),
    [
        ("", None),
        ("checkpoint: {best: {metric: validation/f1, mode: max}}\n", 5),
        ("checkpoint: {best: {metric: validation/f1, mode: max}}\nevaluation: {every: 2 steps}\n", 2),
    ],
)
def test_a_best_checkpoint_has_something_to_be_chosen_from(tmp_path: Path, more: str, every: int | None) -> None:
    """It was the last one: there was a single evaluation, at the end."""
    plan, found = compiled(tmp_path, "{validation: {type: stratified, fraction: 0.5, column: kind}}", more)
    assert plan is not None, found
    assert plan.evaluation is not None
    assert plan.evaluation.every_steps == every


def test_a_ranking_of_one_answer_is_reported(tmp_path: Path) -> None:
    """`validation/auroc nan` and `test/auroc nan`, and the run ended with 0."""
    for split, wanted in (
        ("{test: {type: last, fraction: 0.2}}", ["all rows of `test` have the same `y`, so `auroc` is nan"]),
        ("{test: {type: stratified, fraction: 0.5, column: kind}}", []),
    ):
        (tmp_path / "recipe.yaml").write_text(RECIPE.replace("[f1]", "[f1, auroc]") % split)
        rows = [f"{i}.25,{i * i},{'fraud' if i in (3, 7) else 'fair'}" for i in range(100)]
        (tmp_path / "rows.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n")
        loaded = load(str(tmp_path / "recipe.yaml"))
        assert loaded.recipe is not None
        found = planner.compile(loaded.recipe)[1]
        assert [item.message for item in found if item.code == "D034"] == wanted


def test_a_spread_of_nothing_is_reported(tmp_path: Path) -> None:
    recipe = RECIPE
    for was, now in {"[f1]": "[r2]", "type: category, column: kind": "columns: [a, b]", "cross_entropy": "mse"}.items():
        recipe = recipe.replace(was, now)
    (tmp_path / "recipe.yaml").write_text(recipe % "{test: {type: last, fraction: 0.1}}")
    rows = [f"{i}.25,{min(i, 50)},fair" for i in range(100)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n")
    loaded = load(str(tmp_path / "recipe.yaml"))
    assert loaded.recipe is not None
    (found,) = [item.message for item in planner.compile(loaded.recipe)[1] if item.code == "D034"]
    assert found == "all rows of `test` have the same value in an element of `y`, so `r2` is nan"
