"""Components on their way through the plan: written by one method, read by one, whatever their fields are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, create_model

from declarative_train.components.component import Optimizer
from declarative_train.components.datasets import DATASETS
from declarative_train.components.fields import FIELDS
from declarative_train.components.inits import INITS
from declarative_train.components.layers import LAYERS
from declarative_train.components.losses import LOSSES
from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.components.metrics import METRICS
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.components.registry import ComponentError, Registry
from declarative_train.components.splits import SPLITS
from declarative_train.plan.codec import to_data
from declarative_train.planner.text.describe import describe
from declarative_train.run.launch import run
from tests.engine.made_recipes import DIGITS, compiled, write_data

PACKAGE = Path(__file__).parents[2] / "declarative_train"
NAMED: dict[str, Registry[Any]] = {
    "accuracy": METRICS,
    "adam": OPTIMIZERS,
    "category": FIELDS,
    "constant": INITS,
    "cosine": LR_SCHEDULES,
    "cross_entropy": LOSSES,
    "last": SPLITS,
    "linear": LAYERS,
    "sgd": OPTIMIZERS,
    "synthetic": DATASETS,
}
OWN = {"from": [1, 2]}  # in the class it has another name, and is a tuple
SOURCE = {"type": "synthetic", "kind": "classification", "rows": 40, "features": 4, "classes": 3, **OWN}
RECIPE: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": SOURCE,
        "fields": {"x": {"column": "x"}, "y": {"type": "category", "column": "y", "num_classes": 3, **OWN}},
        "split": {
            "validation": {"type": "last", "fraction": 0.2, **OWN},
            "test": {"type": "source", "source": {**SOURCE, "seed": 7}},
        },
    },
    "model": {
        "graph": {"logits": {"type": "linear", "out_features": 3, "input": "x", **OWN}},
        "parameters": {
            "logits.weight": {"init": {"type": "constant", "value": 0.5, **OWN}},
            "logits.bias": {"optimizer": {"type": "adam", "lr": 0.01, **OWN}},
        },
    },
    "objective": {
        "loss": {"type": "cross_entropy", "input": "logits", "target": "y", **OWN},
        "metrics": {"right": {"type": "accuracy", **OWN}},
    },
    "training": {
        "epochs": 1,
        "global_batch_size": 16,
        "optimizer": {"type": "sgd", "lr": 0.1, **OWN},
        "lr_schedule": {"type": "cosine", **OWN},
    },
}


def _mappings(data: object) -> list[dict[str, Any]]:
    """Every component in the data of a plan."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    found = [each for value in inner for each in _mappings(value)]
    return [data, *found] if isinstance(data, dict) and data.get("type") in NAMED else found


@pytest.mark.packs
def test_fields_with_another_name_in_the_recipe_reach_the_ranks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, table in NAMED.items():
        field = (tuple[int, ...], Field(alias="from"))
        aliased = create_model("Aliased", __base__=table[name], from_=field)
        if issubclass(aliased, Optimizer):  # torch's object knows no such keyword
            own = aliased.arguments
            aliased.arguments = lambda self, own=own: {key: value for key, value in own(self).items() if key != "from_"}
        monkeypatch.setitem(table._found, name, aliased)
    plan = compiled(tmp_path, RECIPE)
    held = _mappings(to_data(plan))
    assert {each["type"] for each in held} == set(NAMED)
    assert all(each["from"] == [1, 2] and "from_" not in each for each in held)
    assert describe(plan).count("from [1, 2]") >= 5
    assert run(plan, sinks=lambda _: ()) == 0


def test_a_plan_of_another_version_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other: Mapping[str, object] = {"type": "adam_of_tomorrow", "lr": 0.1}
    with pytest.raises(ComponentError, match="names `adam_of_tomorrow`, which this version"):
        OPTIMIZERS.read(other)
    with pytest.raises(ComponentError, match="`adam` does not fit this version of dtrain: Extra inputs"):
        OPTIMIZERS.read({"type": "adam", "lr": 0.1, "mu": 3})
    write_data(tmp_path)
    plan = compiled(tmp_path, DIGITS)
    assert run(replace(plan, training=replace(plan.training, optimizer=other)), sinks=lambda _: ()) == 3
    said = capsys.readouterr().err
    assert "the plan names `adam_of_tomorrow`, which this version of dtrain does not have" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("word", ["model_dump(mode", "model_dump_json(", "model_validate_json("])
def test_one_method_writes_and_one_reads(word: str) -> None:
    """A second writer forgets `by_alias`, a second reader what a strict model takes."""
    allowed = {"components/component.py"}
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if word in path.read_text()}
    assert found <= allowed
