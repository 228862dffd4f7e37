"""Command `dtrain trace RECIPE|RUN_DIR`: for a recipe, show the path of the data through the plan; for a run, its
epochs and its loss."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.app.compile import add_recipe_arguments, compile_recipe, report, report_missing
from declarative_train.app.printing import print_error, print_text
from declarative_train.app.views.data_flow import flow
from declarative_train.app.views.epoch_table import chart, epochs_table
from declarative_train.app.views.table import terminal_width
from declarative_train.core.amounts import format_count
from declarative_train.core.names import EVENTS
from declarative_train.run.event import EpochDone, RunEnded, StepDone
from declarative_train.run.sinks.jsonl import read_events

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, metavar="RECIPE|RUN_DIR")
    parser.add_argument(
        "--values",
        action="store_true",
        help="show the first rows in the file and as the model gets them, then outputs, loss and gradients on each "
        "rank; for a run: one row up to its prediction",
    )
    parser.add_argument("--plugins", action="store_true", help="import the recipe's plugins, for their shapes")


def run(args: argparse.Namespace) -> int:
    if Path(args.recipe).is_dir():
        if args.with_ or args.set_:
            print("dtrain: a run is shown as it was; --with and --set need a recipe", file=sys.stderr)
            return 2
        return trace_row(args.recipe, args.plugins) if args.values else trace_run(Path(args.recipe))
    if report_missing(args.recipe):
        return 2
    compiled = compile_recipe(args, plugins=args.plugins)
    report(compiled)
    if compiled.plan is None:
        return 1
    if args.values:
        return trace_step(compiled.plan)
    print_text(flow(compiled.plan, terminal_width()))
    return 0


def trace_step(plan: Plan) -> int:
    """Print the first rows of the data, then the values of the first step on each rank. Return the exit code."""
    from declarative_train.app.views.first_step import first_step
    from declarative_train.app.views.values import first_rows
    from declarative_train.data.field_reader import BadSampleError
    from declarative_train.data.spec import DataError
    from declarative_train.engine.failures import RunFailure
    from declarative_train.files.paths import SourceError

    try:
        print_text(first_rows(plan.data, terminal_width()), end="\n\n")
        print_text(first_step(plan, terminal_width()))
    except (RunFailure, DataError, SourceError, BadSampleError) as error:
        print_error(str(error))
        return 3
    return 0


def trace_row(path: str, plugins: bool) -> int:
    """Print how one sample passes through a trained model, from its row in the table to the prediction. Return the exit
    code. `path`: folder of the run."""
    from declarative_train.app.views.values import trace_values
    from declarative_train.data.field_reader import BadSampleError
    from declarative_train.data.spec import DataError
    from declarative_train.engine.failures import CheckpointFailure
    from declarative_train.files.paths import SourceError
    from declarative_train.inference.trained import UsageError, open_trained

    try:
        print_text(trace_values(open_trained(path, plugins=plugins), terminal_width()))
    except UsageError as error:
        print_error(str(error))
        return 2
    except (CheckpointFailure, DataError, SourceError, BadSampleError) as error:
        print_error(str(error))
        return 3
    return 0


def trace_run(folder: Path) -> int:
    logs = sorted(folder.rglob(EVENTS), key=lambda path: path.stat().st_mtime)
    if not logs:
        print(f"dtrain: {folder} is not a run: there is no {EVENTS} in it", file=sys.stderr)
        return 2
    if logs[-1].parent != folder:
        print_text(f"the newest run: {logs[-1].parent}\n")
    events = read_events(logs[-1])
    steps = [event for event in events if isinstance(event, StepDone)]
    epochs = [event for event in events if isinstance(event, EpochDone)]
    if epochs:
        print_text(epochs_table(epochs, terminal_width()), end="\n\n")
    print_text("training loss, the mean of each logging window\n")
    print_text(chart([event.step for event in steps], [event.loss for event in steps]))
    if ended := next((event for event in reversed(events) if isinstance(event, RunEnded)), None):
        how = "stopped early" if ended.status == "early_stop" else ended.status
        print_text(f"\n{how} after {format_count(ended.step, 'step')}")
    return 0
