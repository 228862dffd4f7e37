"""`checkpoint: {keep: 0}`: a run that leaves curves and no weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from declarative_train import recipe as recipe_room
from declarative_train.run.launch import launch
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data, write_recipe
from tests.engine.runs import newest

NONE = {"checkpoint": {"keep": 0, "every": None, "best": None}}


@pytest.mark.parametrize("early", [False, True])
def test_no_checkpoint_is_written(tmp_path: Path, early: bool) -> None:
    write_data(tmp_path)
    stop = {"early_stop": {"metric": "validation/loss", "mode": "min", "patience": "1 epoch"}} if early else {}
    plan = compiled(tmp_path, merged(merged(DIGITS, NONE), {"training": stop}))
    assert plan.checkpoint is None
    assert launch(plan, quiet=True).code == 0
    run_dir, _ = newest(tmp_path)
    assert '"RunEnded"' in (run_dir / "events.jsonl").read_text()
    assert not list((run_dir / "checkpoints").glob("*"))


@pytest.mark.parametrize(
    ("keys", "code", "severity", "key"),
    [
        ({"every": "1 epoch", "best": None}, "S009", "warning", "every"),
        ({"every": None, "best": {"metric": "validation/loss", "mode": "min"}}, "S009", "error", "best"),
    ],
)
def test_what_it_leaves_without_effect_is_said(
    tmp_path: Path, keys: dict[str, object], code: str, severity: str, key: str
) -> None:
    write_data(tmp_path)
    loaded = recipe_room.load(str(write_recipe(tmp_path, merged(DIGITS, {"checkpoint": {"keep": 0, **keys}}))))
    (found,) = loaded.diagnostics
    assert (found.code, found.severity) == (code, severity)
    assert f"`{key}`" in found.message
