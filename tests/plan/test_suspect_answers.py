"""Answers that are as they should be: no warning of filled ones, of weights, or of several classes."""

from __future__ import annotations

import pytest

from declarative_train import planner
from declarative_train.recipe import load

_ROWS = [(n % 7, "" if n % 6 == 0 else n % 5, n % 10 // 9, int(n % 3 == 0), int(n % 3 != 0)) for n in range(60)]
_RECIPE = """
data:
  source: {type: csv, path: rows.csv}
  fields: {x: {column: x}, y: %s}
model:
  graph:
    known: y > -1
    wide: unsqueeze(x, -1)
    out: {type: linear, out_features: 2}
    one: out[:, 0]
objective: {loss: %s}
training: {epochs: 1, global_batch_size: 8, optimizer: {type: adam, lr: 1e-3}}
"""


@pytest.mark.parametrize(
    ("field", "loss", "code"),
    [
        ("{column: open, missing: zero}", "{type: mse, input: one, target: y}", "R150"),
        ("{column: open, missing: -9}", "{type: mse, input: one, target: y, mask: known}", None),
        ("{column: rare, missing: zero}", "{type: mse, input: one, target: y}", None),
        ("{column: rare}", "{type: bce_with_logits, input: one, target: y, pos_weight: 0.11}", "R151"),
        ("{column: rare}", "{type: bce_with_logits, input: one, target: y, pos_weight: 9}", None),
        ("{column: rare}", "{type: bce_with_logits, input: one, target: y, pos_weight: 0.5}", None),
        ("{columns: [rare, no]}", "{type: cross_entropy, input: out, target: y}", "R152"),
        ("{columns: [yes, no]}", "{type: cross_entropy, input: out, target: y}", None),
    ],
)
def test_answers(tmp_path, field: str, loss: str, code: str | None) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "rows.csv").write_text("\n".join(["x,open,rare,yes,no", *(",".join(map(str, row)) for row in _ROWS)]))
    recipe = _RECIPE % (field, loss)
    if "mask" not in loss:
        recipe = recipe.replace("    known: y > -1\n", "")
    if "one" not in loss:
        recipe = recipe.replace("    one: out[:, 0]\n", "")
    (tmp_path / "recipe.yaml").write_text(recipe)
    loaded = load(str(tmp_path / "recipe.yaml"))
    assert loaded.recipe is not None, loaded.diagnostics
    _, found = planner.compile(loaded.recipe)
    assert [each.code for each in found] == ([] if code is None else [code])
