"""`dtrain trace RECIPE|RUN_DIR`: before a run, the way of the data; after one, its epochs and its loss."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from declarative_train.cli.compile import add_recipe_arguments, compile_recipe, report
from declarative_train.cli.views.flow import flow
from declarative_train.cli.views.story import chart, epochs_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, metavar="RECIPE|RUN_DIR")
    parser.add_argument("--plugins", action="store_true", help="import the recipe's plugins, to know their shapes")


def run(args: argparse.Namespace) -> int:
    if Path(args.recipe).is_dir():
        return trace_run(Path(args.recipe))
    compiled = compile_recipe(args, plugins=args.plugins)
    report(compiled)
    if compiled.plan is None:
        return 1
    print(flow(compiled.plan))
    return 0


def trace_run(folder: Path) -> int:
    events = read_events(folder)
    if events is None:
        return 2
    steps = [event for event in events if event["event"] == "StepDone"]
    epochs = [
        {"epoch": event["epoch"], "step": event["step"]} | event["values"]
        for event in events
        if event["event"] == "EpochDone"
    ]
    if epochs:
        print(epochs_table(epochs), end="\n\n")
    print("training loss\n")
    print(chart([event["step"] for event in steps], [event["loss"] for event in steps]))
    return 0


def read_events(folder: Path) -> list[dict[str, Any]] | None:
    """The events of a run, or of the newest run below a folder of runs."""
    logs = sorted(folder.rglob("events.jsonl"), key=lambda path: path.stat().st_mtime)
    if not logs:
        print(f"dtrain: {folder} is not a run: there is no events.jsonl in it", file=sys.stderr)
        return None
    if logs[-1].parent != folder:
        print(f"the newest run: {logs[-1].parent}\n")
    found = []
    for line in logs[-1].read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:  # a run that was killed may have left half a line
            continue
    return found
