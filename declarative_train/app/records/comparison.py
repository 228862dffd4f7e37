"""Comparison of runs: the settings that differ, value by value, and the final metrics side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from declarative_train.app.records.record import Record
from declarative_train.app.records.tables import with_mode
from declarative_train.plan.settings import importance, select_distinguishing

_PLACES = ("logging.dir",)


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a comparison: a setting or metric, and its value in each run; None for a run that does not have it."""

    name: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    runs: tuple[Record, ...]
    settings: tuple[Row, ...]
    metrics: tuple[Row, ...]
    num_alike: int  # settings with the same value in all runs


def compare(records: Sequence[Record]) -> Comparison:
    """Return every setting that differs between the runs, even if it cannot change results, and all metrics of the
    runs."""
    settings = [with_mode(record) for record in records]
    keys = sorted({key for one in settings for key in one if key not in _PLACES}, key=importance)
    rows = [Row(key, tuple(one.get(key) for one in settings)) for key in keys]
    different = [row for row in rows if any(value != row.values[0] for value in row.values)]
    decisive = set(select_distinguishing(row.name for row in different))
    different.sort(key=lambda row: row.name not in decisive)
    names = list(dict.fromkeys(name for record in records for name in record.values))
    metrics = [Row(name, tuple(record.values.get(name) for record in records)) for name in names]
    metrics += [
        Row("steps", tuple(record.step for record in records)),
        Row("seconds", tuple(round(record.seconds, 3) or None for record in records)),
    ]
    return Comparison(tuple(records), tuple(different), tuple(metrics), len(rows) - len(different))
