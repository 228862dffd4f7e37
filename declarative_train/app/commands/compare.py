"""Command `dtrain compare RUN RUN...`: the settings that differ between runs, and their metrics side by side."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from declarative_train.app.printing import print_text

if TYPE_CHECKING:
    from declarative_train.app.records.comparison import Comparison
    from declarative_train.app.records.record import Record

LONGEST = 40  # number of characters of a value that are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="two or more runs: folders, parts of their names, or a recipe's name for its newest run",
    )
    parser.add_argument("--dir", default="runs", help="folder in which runs are found by name (default: runs)")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(args: argparse.Namespace) -> int:
    from declarative_train.app.records.comparison import compare

    if len(args.runs) < 2:
        print("dtrain: at least two runs are needed; `dtrain runs` lists them", file=sys.stderr)
        return 2
    records = [found for name in args.runs if (found := find_run(name, args.dir)) is not None]
    if len(records) < len(args.runs):
        return 2
    comparison = compare(records)
    if args.json:
        print(json.dumps(as_json(comparison), indent=1))
    else:
        print_text(text(comparison))
    return 0


def find_run(name: str, folder: str) -> Record | None:
    """Return the run that `name` means. If there is none, or more than one, print that and return None. `name` can be:

    - a folder: the newest run in it, or the folder's own run
    - the name of a recipe: its newest run in `folder`
    - the beginning of a run's name in `folder` or, if no name begins so, any part of one
    """
    from declarative_train.app.records.record import read_record
    from declarative_train.app.records.tables import runs_below
    from declarative_train.core.names import EVENTS
    from declarative_train.plan.checkpoint_files import MANIFEST

    path = name.rstrip("/")
    if os.path.isdir(path):
        inside = runs_below(path)
        if not inside:
            is_checkpoint = os.path.exists(os.path.join(path, MANIFEST))
            why = "it is a checkpoint; give its run" if is_checkpoint else f"there is no {EVENTS} in it"
            print(f"dtrain: {name} is not a run: {why}", file=sys.stderr)
        return read_record(inside[-1]) if inside else None
    runs = runs_below(folder) if os.path.isdir(folder) else []
    of_recipe = [each for each in runs if os.path.basename(os.path.dirname(each)) == name]
    if of_recipe:
        return read_record(of_recipe[-1])
    found = [each for each in runs if os.path.basename(each).startswith(name)]
    found = found or [each for each in runs if name in os.path.basename(each)]
    if len(found) == 1:
        return read_record(found[0])
    if not found:
        where = "" if folder == "runs" else f" {folder}"
        print(f"dtrain: there is no run `{name}` below {folder}; `dtrain runs{where}` lists them", file=sys.stderr)
    else:
        print(f"dtrain: `{name}` may be any of {len(found)} runs: {', '.join(found[:4])}", file=sys.stderr)
    return None


def as_json(comparison: Comparison) -> dict[str, object]:
    from declarative_train.app.commands.runs import as_json as run_as_json

    return {
        "runs": [run_as_json(record) for record in comparison.runs],
        "settings": {row.name: list(row.values) for row in comparison.settings},
        "metrics": {row.name: [_jsonable(value) for value in row.values] for row in comparison.metrics},
        "num_alike": comparison.num_alike,
    }


def _jsonable(value: object) -> object:
    return str(value) if isinstance(value, float) and value - value != 0 else value


def text(comparison: Comparison) -> str:
    from declarative_train.app.views.table import table, terminal_width
    from declarative_train.core.amounts import format_count, format_number

    letters = [letter_of(at) for at in range(len(comparison.runs))]
    lines = [
        f"{letter}  {record.folder}  ({record.state})" for letter, record in zip(letters, comparison.runs, strict=True)
    ]
    width = terminal_width() or 80
    settings = [[row.name, *map(_format_setting, row.values)] for row in comparison.settings]
    alike = (
        f"{format_count(comparison.num_alike, 'other setting')} {'is' if comparison.num_alike == 1 else 'are'} the same"
    )
    blocks = ["\n".join(lines)]
    blocks.append(
        f"{table(['setting', *letters], settings, width=width)}\n{alike}"
        if settings
        else f"no setting differs; {alike}"
    )
    metrics = [[row.name, *(_number(value, format_number) for value in row.values)] for row in comparison.metrics]
    right = tuple(range(1, len(letters) + 1))
    blocks.append(table(["result", *letters], metrics, right=right, width=width))
    return "\n\n".join(blocks)


def letter_of(at: int) -> str:
    """Return the letter that tables use for the run with the index `at` (from 0): A, B, ... Z, A1, B1, ..."""
    return f"{chr(ord('A') + at % 26)}{at // 26 or ''}"


def _format_setting(value: object) -> str:
    from declarative_train.plan.settings import format_value

    text = "-" if value is None else format_value(value)
    return text if len(text) <= LONGEST else f"...{text[3 - LONGEST :]}"


def _number(value: object, number: object) -> str:
    assert callable(number)
    if value is None or isinstance(value, int):
        return "-" if value is None else f"{value:,}"
    return str(number(value))
