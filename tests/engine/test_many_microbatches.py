"""Of many microbatches a few tell: the plan of 64 does not take 64 tries of a stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from declarative_train.plan.plan import Plan
from declarative_train.planner.footprint import forecast
from declarative_train.planner.footprint.forecast import Forecast
from tests.planner.cells import Cell
from tests.planner.measure import compiled


def with_microbatches(folder: Path, schedule: str, number: int, precision: str) -> Plan:
    text = Cell("llama", f"{schedule} 2", precision, "none").recipe("", str(folder))
    text = text.replace("microbatches: 4", f"microbatches: {number}").replace("rows: 8000", "rows: 80000")
    path = folder / "many.yaml"
    path.write_text(text.replace("global_batch_size: 16", f"global_batch_size: {2 * number}"))
    return compiled(path, "many")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zbv", "dualpipev"])
def test_few_microbatches_tell_of_many(
    tmp_path: Path, schedule: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = with_microbatches(tmp_path, schedule, 48, precision)
    assert sum(map(forecast._chunks, forecast._fewer_microbatches(plan))) < 48
    rows = Forecast().memory(plan).rows
    monkeypatch.setattr(forecast, "_fewer_microbatches", lambda _: [])
    monkeypatch.setattr(forecast, "MOST_CALLS", 10**6)
    every = Forecast().memory(plan).rows
    assert len(rows) == len(every) == 2
    for row, whole in zip(rows, every, strict=True):
        assert row.is_traced
        assert row.total == pytest.approx(whole.total, rel=0.01)


@pytest.mark.long
def test_64_microbatches_are_tried_and_not_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    course = forecast._memory_trace

    def counted(plan: Plan, *args: object) -> object:
        tried.append(forecast._chunks(plan))
        return course(plan, *args)

    monkeypatch.setattr(forecast, "_memory_trace", counted)
    monkeypatch.setattr(forecast, "in_children", lambda works: [work() for work in works])
    plan = with_microbatches(tmp_path, "1f1b", 64, "fp32")
    found = Forecast().memory(plan)
    assert found.rows, found.why_not
    assert max(tried) == 8
    few = Forecast().memory(with_microbatches(tmp_path, "1f1b", 8, "fp32")).rows
    wire = 2 * 64 * 64 * 4  # bytes of a microbatch between the stages
    for row, other in zip(found.rows, few, strict=True):
        # what is under way is as much; for each microbatch torch keeps what it receives into
        assert 0.9 * 56 * wire < row.activations - other.activations < 1.1 * 56 * wire


def test_what_does_not_grow_evenly_is_not_carried_on() -> None:
    import numpy as np

    def at(number: float) -> dict[int, object]:
        return {0: np.array([[1.0, 1.0], [number, 10.0]])}

    found = forecast.extrapolate_microbatches([at(4.0), at(6.0), at(8.0)], 20, [4, 6, 8])
    assert found is not None
    assert found[0].tolist() == [[20.0, 10.0]]
    assert forecast.extrapolate_microbatches([at(4.0), at(6.0), at(9.0)], 20, [4, 6, 8]) is None
