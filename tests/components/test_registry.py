"""The table that imports an entry when it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from declarative_train import components
from declarative_train.components.adapters import ADAPTERS
from declarative_train.components.adapters.adapter import Adapter
from declarative_train.components.component import Component, Init, Layer, Loss, LrSchedule, Metric, Optimizer
from declarative_train.components.inits import INITS
from declarative_train.components.layers import LAYERS
from declarative_train.components.losses import LOSSES
from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.components.metrics import METRICS
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.components.registry import Registry

FOLDER = Path(components.__file__).parent
TABLES: dict[str, tuple[Registry[Any], type[Component]]] = {
    "adapters": (ADAPTERS, Adapter),
    "inits": (INITS, Init),
    "layers": (LAYERS, Layer),
    "losses": (LOSSES, Loss),
    "lr_schedules": (LR_SCHEDULES, LrSchedule),
    "metrics": (METRICS, Metric),
    "optimizers": (OPTIMIZERS, Optimizer),
}


@pytest.mark.parametrize(("table", "kind"), TABLES.values(), ids=TABLES)
def test_entries_are_what_the_table_says(table: Registry[Any], kind: type[Component]) -> None:
    for name, found in table.items():
        assert issubclass(found, kind)
        assert found.model_fields["type"].default == name
        assert found.model_config["extra"] == "forbid"
        assert not getattr(found, "__abstractmethods__", None)


@pytest.mark.parametrize("folder", TABLES)
def test_the_table_is_sorted_and_complete(folder: str) -> None:
    table, _ = TABLES[folder]
    assert list(table) == sorted(table)
    declared = {
        node.annotation.slice.value
        for path in (FOLDER / folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "type"
        and isinstance(node.annotation, ast.Subscript)
        and isinstance(node.annotation.slice, ast.Constant)
    }
    assert declared == {name for name, kind in table.items() if kind.__module__.startswith(components.__name__)}


def test_it_is_a_mapping() -> None:
    assert "linear" in LAYERS
    assert "lineer" not in LAYERS
    assert 3 not in LAYERS
    assert len(LAYERS) == len(list(LAYERS))
    assert LAYERS.get("lineer") is None
    assert LAYERS.kind == "layer"
    with pytest.raises(KeyError):
        LAYERS["lineer"]


def test_an_entry_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys\nfrom declarative_train.components.layers import LAYERS\n"
        "assert 'linear' in LAYERS and len(list(LAYERS)) > 50\n"
        "before = {name for name in sys.modules if 'components.layers.' in name}\nassert not before, before\n"
        "LAYERS['conv2d'](out_channels=3, kernel_size=3)\nassert 'torch' not in sys.modules\n"
        "assert 'declarative_train.components.layers.pool' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
