"""The tables of losses, metrics, optimizers and lr schedules: sorted, and complete."""

from __future__ import annotations

from pathlib import Path

import pytest

import declarative_train.components as components
from declarative_train.components.component import Component
from declarative_train.components.losses import LOSSES
from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.components.metrics import METRICS
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.components.registry import Registry

SHARED = {  # what the components of a folder have in common
    "losses": {"fit", "class_weights"},
    "lr_schedules": {"warmup", "duration_field"},
    "metrics": {"task"},
    "optimizers": {"numbers"},
}


@pytest.mark.parametrize(
    ("folder", "table"),
    [("losses", LOSSES), ("lr_schedules", LR_SCHEDULES), ("metrics", METRICS), ("optimizers", OPTIMIZERS)],
)
def test_a_table_is_sorted_and_has_every_file(folder: str, table: Registry[Component]) -> None:
    files = {path.stem for path in (Path(next(iter(components.__path__))) / folder).glob("*.py")} - {"__init__"}
    assert list(table) == sorted(table)
    assert set(table) == files - SHARED[folder]
    assert all(table[name].model_config["extra"] == "forbid" for name in table)
