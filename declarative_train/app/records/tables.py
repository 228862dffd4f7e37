"""Contents of tables of runs: which runs exist, which settings differ, which values get a column."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence

from declarative_train.app.records.record import Record, is_run, read_record
from declarative_train.plan.settings import Settings, find_differing, format_value, shorten_names

DEEPEST = 6  # levels of folders to search, as in runs/NAME/sweeps/TIME/POINT
MOST_METRICS = 2  # number of metric columns by default
MOST_SETTINGS = 4  # settings of one run


def runs_below(folder: str) -> list[str]:
    """Return the folders of the runs in `folder`, the oldest first; only `folder` itself if it is the folder of a run.
    Folders inside a run are not searched."""
    if is_run(folder):
        return [folder]
    return sorted(_runs_in(folder, 1), key=lambda path: (os.path.basename(path), path))


def _runs_in(folder: str, depth: int) -> Iterator[str]:
    try:
        inside = [entry for entry in os.scandir(folder) if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:
        return
    for entry in inside:
        if is_run(entry.path):
            yield entry.path
        elif depth < DEEPEST:
            yield from _runs_in(entry.path, depth + 1)


def records_below(folder: str) -> list[Record]:
    """Return the records of the runs in a folder, the newest first."""
    found = [record for path in runs_below(folder) if (record := read_record(path)) is not None]
    return sorted(found, key=lambda record: (record.started_unix_s, record.run), reverse=True)


def what_differs(records: Sequence[Record]) -> dict[str, str]:
    """Return {folder of a run: the settings by which the run differs from other runs with the same recipe name, as
    text}. The text has at most MOST_SETTINGS settings, then the number of further ones. If no setting differs, it is
    the run's mode."""
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.name, []).append(record)
    found = {}
    for group in by_name.values():
        settings = [with_mode(record) for record in group]
        keys = find_differing(settings) or ["parallelism"]
        names = shorten_names(keys)
        for record, own in zip(group, settings, strict=True):
            words = [short_setting(names[key], own[key]) for key in keys if key in own]
            more = f" +{len(words) - MOST_SETTINGS}" if len(words) > MOST_SETTINGS else ""
            found[record.folder] = " ".join(words[:MOST_SETTINGS]) + more
    return found


def short_setting(name: str, value: object) -> str:
    """Return a setting as short text, `name=value`; for the setting `mode` only the value."""
    text = format_value(value)
    text = text if len(text) <= 24 else f"{text[:21]}..."
    return text if name == "mode" else f"{name}={text.replace(' ', '_')}"


def with_mode(record: Record) -> Settings:
    """Return the settings of a run. `parallelism` in them is the mode that was used, even if the recipe has `auto`."""
    rest = {key: value for key, value in record.settings.items() if key not in ("parallelism", "parallelism.mode")}
    return {"parallelism": record.mode, **rest}


def metric_columns(records: Sequence[Record], wanted: Sequence[str] = ()) -> list[str]:
    """Return the names of the metric columns of a table of runs: all of `wanted`, then other metrics, up to
    MOST_METRICS columns.

    The other metrics are in this order: first those that at least half of the runs have, then the rest. Within these
    two groups: test set, best values, other sets, training set. Within a set, metrics come before losses."""
    counts: dict[str, int] = {}
    for record in records:
        for name in record.values:
            counts[name] = counts.get(name, 0) + 1
    order = {name: at for at, name in enumerate(counts)}
    ranked = sorted(counts, key=lambda name: (2 * counts[name] < len(records), *_interest(name), order[name]))
    left = [name for name in ranked if name not in wanted]
    return [*wanted, *left[: max(0, MOST_METRICS - len(wanted))]]


def _interest(name: str) -> tuple[int, int]:
    first, _, last = name.partition("/")
    where = {"test": 0, "best": 1, "training": 3}.get(first, 2)
    return where, int(last.rpartition("/")[2] == "loss" or last.startswith("loss"))


def sort_by(records: Sequence[Record], metric: str, higher_is_better: bool) -> list[Record]:
    """Return the runs sorted by the final value of a metric, the best first; runs without a value, or with nan, are
    last."""

    def key(record: Record) -> tuple[bool, float]:
        value = record.values.get(metric, math.nan)
        return math.isnan(value), -value if higher_is_better else value

    return sorted(records, key=key)


def is_higher_better(metric: str, records: Sequence[Record]) -> bool:
    """Return whether larger values of a metric are better, according to the metric's type. The type is found in the
    settings of the runs; if it is not there, the metric's name is taken as its type."""
    from declarative_train.components.metrics import METRICS

    name = metric.rpartition("/")[2]
    kinds = (record.settings.get(f"objective.metrics.{name}.type") for record in records)
    kind = next(filter(None, kinds), name)
    return isinstance(kind, str) and kind in METRICS and METRICS[kind].higher_is_better
