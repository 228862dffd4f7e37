"""Command `dtrain runs [DIR]`: list the runs in a folder, with the settings in which they differ, and their results."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.app.printing import print_text

if TYPE_CHECKING:
    from declarative_train.app.records.record import Record

WIDTH = 80  # width of the table if that of the terminal is unknown
LONGEST_REASON = 3  # number of failed runs whose reasons are printed below the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", nargs="?", default="runs", help="a folder of runs, or one run, or the URL of one (default: runs)"
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects, newest first")
    parser.add_argument("--sort", metavar="METRIC", help="sort by this value, best first, such as validation/accuracy")


def run(args: argparse.Namespace) -> int:
    from declarative_train.app.records.remote import open_folder
    from declarative_train.app.records.tables import is_higher_better, records_below, sort_by

    if "://" not in args.dir and not Path(args.dir).is_dir():
        found = f"`{args.dir}` is a file" if Path(args.dir).exists() else f"there is no folder `{args.dir}`"
        print(f"dtrain: {found}; a run makes a folder: dtrain run RECIPE", file=sys.stderr)
        return 2
    with open_folder(args.dir) as folder:
        records = records_below(folder)
    if args.sort:
        known = {name for record in records for name in record.values}
        if records and args.sort not in known:
            from declarative_train.core.diagnostics.suggest import did_you_mean

            print(f"dtrain: no run has `{args.sort}`; {did_you_mean(args.sort, known)}", file=sys.stderr)
            return 2
        records = sort_by(records, args.sort, is_higher_better(args.sort, records))
    if args.json:
        print(json.dumps([as_json(record) for record in records], indent=1))
    elif not records:
        print_text(f"no run in {args.dir}")
    else:
        print_text(text(records, args.dir, args.sort))
    return 0


def as_json(record: Record) -> dict[str, object]:
    from declarative_train.app.views.result import result_json

    more: dict[str, object] = {"started_unix_s": record.started_unix_s, "updated_unix_s": record.updated_unix_s}
    more |= dict(zip(("step_s", "predicted_step_s"), _seconds(record), strict=True))
    return result_json(record) | more | {"settings": dict(record.settings)}


def text(records: Sequence[Record], folder: str, sort: str | None = None) -> str:
    """Return a text with one table of runs for each recipe, at most as wide as the terminal. Below each table are the
    reasons why runs in it failed. `folder`: the folder of the runs. `sort`: the metric by which `records` are sorted,
    which always gets a column; None: they are not sorted by a metric."""
    from declarative_train.app.records.tables import metric_columns, what_differs
    from declarative_train.app.views.table import table, terminal_width
    from declarative_train.core.amounts import format_count, format_number

    differs, width, blocks = what_differs(records), terminal_width() or WIDTH, []
    for name in dict.fromkeys(record.name for record in records):
        group = [record for record in records if record.name == name]
        columns = metric_columns(group, [sort] if sort else [])
        is_timed = any(record.predicted_step_s is not None for record in group)
        speed = ["step ms", "predicted ms"] if is_timed else []
        header = ["run", "differs in", "steps", *columns, *speed, "state", "age"]
        rows = [
            [
                short_run(record),
                differs[record.folder],
                str(record.step),
                *(format_number(record.values.get(column)) for column in columns),
                *("-" if each is None else f"{each * 1e3:.4g}" for each in _seconds(record)[: len(speed)]),
                record.state,
                age(time.time() - record.updated_unix_s),
            ]
            for record in group
        ]
        right = (2, *range(3, 3 + len(columns) + len(speed)), len(header) - 1)
        blocks.append(f"{name}: {format_count(len(group), 'run')}\n\n{table(header, rows, right=right, width=width)}")
        failed = [record for record in group if record.reason][:LONGEST_REASON]
        if failed:
            reasons = (f"{short_run(record)} failed: {record.reason}" for record in failed)
            blocks[-1] += "\n\n" + "\n".join(one if len(one) <= width else f"{one[: width - 3]}..." for one in reasons)
    blocks.append(f"below {folder}; `dtrain compare A B` shows two of them side by side")
    return "\n\n".join(blocks)


def _seconds(record: Record) -> tuple[float | None, float | None]:
    """Return (measured seconds of a step, predicted seconds of a step); None for an unknown value."""
    return record.step_s, record.predicted_step_s


def short_run(record: Record) -> str:
    """Return the time at the beginning of a run's name, or the whole name if it does not begin with a time. (The rest
    of the name is in another column of the table.)
    """
    name = record.run
    return name[:15] if name[:8].isdigit() and name[8:9] == "-" and name[9:15].isdigit() else name


def age(seconds: float) -> str:
    """Return a time span as text in its largest unit: `12s`, `3min`, `5h`, `2d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"
