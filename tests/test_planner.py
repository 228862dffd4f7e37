"""Predicted memory of a plan compared with that of its ranks: the cells of docs/planner-cells.md."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from declarative_train.plan.predictions import MemoryPlan
from declarative_train.planner.footprint.forecast import Forecast
from declarative_train.planner.footprint.live_bytes import CLASSES
from tests.engine.live_bytes import live_bytes
from tests.planner import __main__ as planner
from tests.planner.allocator import MIB, Allocator
from tests.planner.cells import QUICK, WAYS, Cell, cells
from tests.planner.footprint import Footprint
from tests.planner.measure import Result, compared, measure, measure_plan, off_by, plan_of
from tests.planner.record import Record
from tests.planner.shipped import RECIPES, TOO_LARGE, Shipped, shipped
from tests.record import Lines

ALL = list(cells())


def told(found: object) -> str:
    return str(dataclasses.asdict(found))  # type: ignore[call-overload]


@pytest.mark.parametrize("cell", [each for each in ALL if each.is_quick], ids=lambda cell: cell.name)
def test_the_plan_is_what_happens(cell: Cell) -> None:
    found = measure(cell)
    assert found.is_close, told(found)


@pytest.mark.long
@pytest.mark.parametrize("cell", [each for each in ALL if not each.is_quick], ids=lambda cell: cell.name)
def test_the_plan_is_what_happens_everywhere(cell: Cell) -> None:
    found = measure(cell)
    assert found.is_close, told(found)


@pytest.mark.long
@pytest.mark.parametrize("checkpointing", ["none", "blocks"])
@pytest.mark.parametrize(
    "parallelism",
    [
        "{context: 2, data: {shard: 2}}",
        "{context: {size: 2, keys: ring}, data: {shard: 2}}",
        "{context: 2, pipeline: {stages: 4, schedule: zbv, microbatches: 4}}",
        "{context: {size: 2, keys: ring}, tensor: 2}",
    ],
)
def test_divided_positions_need_what_the_plan_says(
    parallelism: str, checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WAYS, parallelism, (parallelism, 4))
    found = measure(Cell("llama", parallelism, "fp32", checkpointing))
    assert found.is_close, told(found)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("recipe", shipped(), ids=lambda each: each.name)
def test_a_shipped_recipe_needs_what_its_plan_says(recipe: Shipped) -> None:
    found = measure_plan(recipe.name, recipe.plan())
    assert found.is_close, told(found)


def test_no_recipe_is_forgotten() -> None:
    """Every recipe is measured except those that are too large; the page has a row of each, and of each cell."""
    measured = {path for each in shipped() for path in (each.path, *each.switches)}
    left_out = {path for path in RECIPES.rglob("*.yaml") if path not in measured}
    assert {path.stem for path in left_out} == set(TOO_LARGE)
    rows = planner.rows_of(planner.CELLS_PAGE.read_text(encoding="utf-8"))
    assert [row.name for row in rows] == [each.name for each in (*shipped(), *ALL)], "run make planner"
    assert planner.PAGE.read_text(encoding="utf-8") == planner.written_page(planner.size_part()), (
        "run python -m tests.planner --page"
    )


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_half_precision_and_recomputation_never_need_more(tmp_path: Path, way: str) -> None:
    """By the plan, which the cells hold against what happens; docs/planner-cells.md has it of all models, measured."""

    def most(precision: str, checkpointing: str) -> int:
        rows = Forecast().memory(plan_of(Cell("llama", way, precision, checkpointing), tmp_path)).rows
        assert rows
        return max(row.total for row in rows)

    found = {(a, b): most(a, b) for a in ("fp32", "bf16") for b in ("none", "blocks")}
    assert found["bf16", "none"] <= found["fp32", "none"], found
    assert found["bf16", "blocks"] <= found["fp32", "blocks"], found
    assert found["fp32", "blocks"] <= found["fp32", "none"] * 1.01, found
    assert found["bf16", "blocks"] <= found["bf16", "none"] * 1.01, found


def test_the_quick_ones_are_cells() -> None:
    assert sum(each.is_quick for each in ALL) == len(QUICK) >= 12  # as asked for


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_a_fifth_too_little_or_too_much_is_found(tmp_path: Path, factor: float) -> None:
    plan = plan_of(Cell("llama", "single", "fp32", "none"), tmp_path)
    rows, real = Forecast().memory(plan).rows, live_bytes(plan)
    assert compared("right", plan, rows, real, time.monotonic()).is_close
    assert not compared("wrong", plan, [off_by(row, factor) for row in rows], real, time.monotonic()).is_close


@pytest.mark.parametrize("kind", ["loss", "activations", "optimizer"])
def test_a_class_that_is_left_out_is_found(tmp_path: Path, kind: str) -> None:
    plan = plan_of(Cell("llama", "single", "fp32", "none"), tmp_path)
    rows, real = Forecast().memory(plan).rows, live_bytes(plan)
    left_out = [dataclasses.replace(row, **{kind: 0}) for row in rows]
    assert not compared("wrong", plan, left_out, real, time.monotonic()).is_close


def test_the_simulated_allocator_reuses_splits_and_joins() -> None:
    """A block of 30 MiB is split for 12, and joined for 30 again; another stream's is not taken."""
    allocator = Allocator()
    first = allocator.take(30 * MIB, "main")
    assert allocator.reserved == 30 * MIB
    allocator.give(first, 30 * MIB, "main")
    part, other = allocator.take(12 * MIB, "main"), allocator.take(18 * MIB, "main")
    assert allocator.reserved == 30 * MIB
    allocator.give(part, 12 * MIB, "main")
    allocator.give(other, 18 * MIB, "main")
    allocator.take(30 * MIB, "main")
    assert allocator.reserved == 30 * MIB
    allocator.take(1, "gathering")
    assert allocator.reserved == 32 * MIB  # a segment for small ones
    allocator.take(5 * MIB, "gathering")
    assert allocator.reserved == 52 * MIB  # and for middle ones
    allocator.take(11 * MIB, "gathering")
    assert allocator.reserved == 52 * MIB  # in what is left of it
    allocator.take(5 * MIB, "gathering")
    assert allocator.reserved == 72 * MIB  # 4 MiB were left


def test_a_stopped_pass_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands is not run again, nor lost by a line that the stop cut short."""
    record = Record(Lines(tmp_path / "runs" / "planner.jsonl"))
    ran: list[str] = []

    def measured(cell: Cell) -> Result:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(cell.name)
        row = MemoryPlan("r", parameters=100, gradients=0, optimizer=0, gathered=0, activations=50)
        return Result(
            cell.name, row, Footprint(dict.fromkeys(CLASSES, 0) | {"parameters": 100, "activations": 50}), 1, 0.1
        )

    monkeypatch.setattr(planner, "measure", measured)
    with pytest.raises(KeyboardInterrupt):
        planner.main(["llama, single, fp64"], record)
    with record.lines.path.open("a") as file:
        file.write('{"name": "llama, single, fp64, blo')
    first = ran.copy()
    ran.clear()
    planner.main(["llama, single, fp64"], record)
    assert ran == ["llama, single, fp64, blocks"]
    assert list(record.results()) == [*first, *ran]
    assert record.results()[first[0]].ratio == 1.0
