"""Tables from the events of a run: one row per logged step, and one row per epoch.

Columns are named as on TensorBoard: `training/loss`, `training/accuracy`, `validation/loss`.
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.run.event import EpochDone, EvaluationDone, Event, StepDone
from declarative_train.run.sinks.tensorboard import step_scalars

Row = dict[str, float | int | None]


def step_rows(events: Iterable[Event]) -> list[Row]:
    """Return one row per step: training means since the last logged step, and the evaluations after this step. Every
    row has every column; a value that was not measured is None."""
    rows: dict[int, Row] = {}
    for event in events:
        if isinstance(event, StepDone):
            rows.setdefault(event.step, {"step": event.step, "epoch": event.epoch}).update(step_scalars(event))
        elif isinstance(event, EvaluationDone):
            rows.setdefault(event.step, {"step": event.step, "epoch": event.epoch}).update(event.values)
    return _fill([rows[step] for step in sorted(rows)])


def epoch_rows(events: Iterable[Event]) -> list[Row]:
    """Return one row per epoch: the training means over it, and the evaluations at its end."""
    rows: list[Row] = []
    evaluated: dict[int, dict[str, float]] = {}
    for event in events:
        if isinstance(event, EvaluationDone):
            evaluated.setdefault(event.step, {}).update(event.values)
        elif isinstance(event, EpochDone):
            row: Row = {"epoch": event.epoch, "step": event.step}
            row |= event.values | evaluated.get(event.step, {})
            rows.append({**row, "seconds": event.seconds})
    return _fill(rows)


def _fill(rows: list[Row]) -> list[Row]:
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]
