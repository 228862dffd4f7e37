"""The events of a run -> tables: a row for each logged step, and one for each epoch.

Columns are named as on TensorBoard: `training/loss`, `training/accuracy`, `validation/loss`.
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.run.event import EpochDone, EvaluationDone, Event, StepDone
from declarative_train.run.sinks.tensorboard import step_scalars

Row = dict[str, float | int | None]


def step_rows(events: Iterable[Event]) -> list[Row]:
    """By step: means over the window since the last logged step, and what evaluations found after it. Every row has
    every column, None where nothing was measured."""
    rows: dict[int, Row] = {}
    for event in events:
        if isinstance(event, StepDone):
            rows.setdefault(event.step, {"step": event.step, "epoch": event.epoch}).update(step_scalars(event))
        elif isinstance(event, EvaluationDone):
            rows.setdefault(event.step, {"step": event.step, "epoch": event.epoch}).update(event.values)
    return _filled([rows[step] for step in sorted(rows)])


def epoch_rows(events: Iterable[Event]) -> list[Row]:
    """By epoch: the training means over it, and what evaluations found at its end."""
    rows: list[Row] = []
    evaluated: dict[int, dict[str, float]] = {}
    for event in events:
        if isinstance(event, EvaluationDone):
            evaluated.setdefault(event.step, {}).update(event.values)
        elif isinstance(event, EpochDone):
            row: Row = {"epoch": event.epoch, "step": event.step}
            row |= event.values | evaluated.get(event.step, {})
            rows.append({**row, "seconds": event.seconds})
    return _filled(rows)


def _filled(rows: list[Row]) -> list[Row]:
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]
