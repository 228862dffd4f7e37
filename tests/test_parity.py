"""Every mode computes the same gradients: the cells of tests/parity, some in every run, more in the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from declarative_train.components.component import Collective
from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.engine.axes import replicate
from declarative_train.engine.step import scale
from declarative_train.recipe.sections.parallelism import WORDS
from tests.parity import __main__ as table
from tests.parity.cells import SCHEDULES, Cell, cells, long_cells, short_cells, ways
from tests.parity.measure import BOUND, Result, measure
from tests.record import Lines

LONG = [cell for cell in long_cells() if cell not in short_cells()]


@pytest.mark.parametrize("cell", short_cells(), ids=lambda cell: cell.name)
def test_a_way_to_run_computes_the_same_gradients(cell: Cell) -> None:
    result = measure(cell)
    assert result.difference <= BOUND, (result.parameter, result.step)


@pytest.mark.long
@pytest.mark.parametrize("cell", LONG, ids=lambda cell: cell.name)
def test_more_cells_of_the_table(cell: Cell) -> None:
    result = measure(cell)
    assert result.difference <= BOUND, (result.parameter, result.step)


def test_the_long_cells_leave_out_nothing_but_repetitions() -> None:
    """Every way keeps its hardest cell and an easier one; all five kinds of easier ones are there."""
    found = [cell for cell in long_cells() if cell.model == "plain" and not cell.options]
    assert {cell.way for cell in found} == {way for way, _, _ in ways()}
    assert {cell.way for cell in found if (cell.rows, cell.accumulation) == ("masked", 2)} == {w for w, _, _ in ways()}
    assert len({(cell.rows, cell.accumulation) for cell in found}) == 6
    assert len(found) == 2 * len(list(ways()))


def test_every_mode_and_schedule_that_a_recipe_can_name_has_its_cells() -> None:
    named = {way.split(",")[0].split(" ")[0] for way, _, _ in ways()}
    assert named == {*WORDS, "tensor"} - {"auto"}  # auto is one of the others
    assert set(SCHEDULES) == set(PIPELINE_SCHEDULES)
    for schedule in SCHEDULES:
        rows = {way for way, _, _ in ways() if f"pipeline {schedule}" in way}
        assert len(rows) == 4, "2 ranks, 4 ranks, x ddp, x fsdp"


def test_a_table_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def measured(cell: Cell) -> Result:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(cell.name)
        return Result(cell, 1e-3 if len(ran) == 2 else 1e-15, "head.weight", 1, 0.1)

    monkeypatch.setattr(table, "measure", measured)
    record = Lines(tmp_path / "runs" / "parity.jsonl")
    with pytest.raises(KeyboardInterrupt):
        table.main(["single", "uneven"], record)
    first = ran.copy()
    ran.clear()
    monkeypatch.setattr(table, "measure", lambda cell: Result(cell, 1e-15, "", 0, 0.1))
    assert table.main(["single", "uneven"], record) == 1, "the one that was wrong before the stop still is"
    lines = record.by_name()
    assert list(lines)[:2] == first
    assert len(lines) > 2
    assert [name for name, line in lines.items() if line["difference"] > BOUND] == [first[1]]


def test_a_rank_whose_gradients_are_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(gradients: list[torch.Tensor], ranks: Collective, dtype: torch.dtype | None) -> None:
        """Leaves each rank with its own gradients."""

    monkeypatch.setattr(replicate, "average_gradients", forgetful)
    cell = next(cell for cell in cells() if "1f1b x ddp" in cell.way and cell.rows == "masked")
    with pytest.raises(Exception, match="ranks hold other values"):
        measure(cell)


def test_a_microbatch_that_is_scaled_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = scale.Scale.of

    def of(self: scale.Scale, chunks: list[object], num_rows: int) -> object:
        factors, counts = honest(self, chunks, num_rows)  # type: ignore[arg-type]
        return [factor * 2 for factor in factors], counts

    monkeypatch.setattr(scale.Scale, "of", of)
    cell = next(cell for cell in short_cells() if cell.way == "ddp, 2 ranks")
    assert measure(cell).difference > 0.1
