"""One cell: what the plan foretells of each rank, next to the live bytes of real ranks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from declarative_train import recipe as recipe_room
from declarative_train.plan.plan import Plan
from declarative_train.plan.predictions import MemoryPlan
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.planner.estimate.shortened import kinds_of_rank
from declarative_train.planner.footprint.forecast import Forecast
from declarative_train.planner.footprint.live_bytes import CLASSES
from tests.engine.live_bytes import live_bytes
from tests.planner.cells import Cell
from tests.planner.footprint import Footprint

BOUND, CLASS_BOUND = 0.10, 0.15
SMALL = 0.05  # of the total: a class below it is told, not judged
UNEVEN = "mixtral, "  # a rank gets the rows that a router chooses, so that its peak may be at another moment


@dataclass(frozen=True, slots=True)
class Result:
    """Of the rank whose figure is furthest off: predicted over measured, of all together and of its worst class."""

    name: str
    predicted: MemoryPlan
    measured: Footprint
    num_ranks: int
    seconds: float

    @property
    def ratio(self) -> float:
        return self.predicted.total / self.measured.total

    @property
    def worst_class(self) -> tuple[str, float]:
        """The class that is furthest off, by the larger of the two figures."""
        found = ("", 0.0)
        for kind in CLASSES:
            foretold, real = getattr(self.predicted, kind), self.measured.by_class[kind]
            if max(foretold, real) > SMALL * self.measured.total:
                off = abs(foretold - real) / max(foretold, real)
                found = max(found, (kind, off), key=lambda each: each[1])
        return found

    @property
    def is_close(self) -> bool:
        return self.error <= 1

    @property
    def error(self) -> float:
        """Return the largest error, in parts of its bound."""
        of_class = 0.0 if self.name.startswith(UNEVEN) else self.worst_class[1] / CLASS_BOUND
        return max(abs(self.ratio - 1) / BOUND, of_class)


def measure(cell: Cell) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(cell, Path(folder))
        return measure_plan(cell.name, plan)


def measure_plan(name: str, plan: Plan) -> Result:
    begun_s = time.monotonic()
    return compared(name, plan, Forecast().memory(plan).rows, live_bytes(plan), begun_s)


def compared(
    name: str, plan: Plan, predicted: Sequence[MemoryPlan], measured: Sequence[Footprint], begun_s: float
) -> Result:
    rows = dict(zip(kinds_of_rank(plan.layout), predicted, strict=True))
    results = [
        Result(name, rows[rank.coordinates.get("pipeline", 0)], found, len(measured), time.monotonic() - begun_s)
        for rank, found in zip(plan.layout.ranks, measured, strict=True)
    ]
    return max(results, key=lambda each: each.error)


def plan_of(cell: Cell, folder: Path) -> Plan:
    data = folder / "data.npz"
    random = np.random.default_rng(5)
    np.savez(data, x=random.random((64, 3, 16, 16), dtype=np.float32), y=random.integers(0, 10, 64))
    path = folder / "recipe.yaml"
    path.write_text(cell.recipe(str(data), str(folder / "runs")))
    return compiled(path, cell.name)


def compiled(path: Path, name: str, switches: Sequence[Path] = ()) -> Plan:
    loaded = recipe_room.load(str(path), with_=[str(switch) for switch in switches])
    assert loaded.recipe is not None, (name, loaded.diagnostics)
    plan, diagnostics = compile_plan(loaded.recipe)
    assert plan is not None, (name, diagnostics)
    return plan


def off_by(row: MemoryPlan, factor: float) -> MemoryPlan:
    """A row as a planner would give it that is wrong."""
    values = {each.name: round(getattr(row, each.name) * factor) for each in fields(row) if each.name in CLASSES}
    return MemoryPlan(row.name, **values, is_traced=row.is_traced)
