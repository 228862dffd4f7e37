"""Command `dtrain run RECIPE|PLAN.json`: lint, compile, launch, train."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from declarative_train.app.compile import (
    STDIN,
    add_recipe_arguments,
    compile_recipe,
    read_saved_plan,
    report,
    report_missing,
)
from declarative_train.app.numbers import positive
from declarative_train.app.printing import print_text
from declarative_train.engine.launchers import Seat, SeatError, find_seat, is_one_of_many
from declarative_train.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, metavar="RECIPE|PLAN.json")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="auto|PATH",
        help="continue from a checkpoint: the newest of this recipe's runs, or a run or checkpoint folder",
    )
    parser.add_argument("--max-steps", type=positive, metavar="N", help="stop after N more optimizer steps")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    parser.add_argument(
        "--run-dir",
        metavar="PATH",
        help="folder of this run, instead of a new one in logging.dir; with --resume, continue the run in it",
    )
    parser.add_argument("--node", type=int, metavar="N", help="number of this node, from 0, if the recipe has several")
    parser.add_argument("--head", metavar="HOST[:PORT]", help="address of node 0, with --node")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show only the result and problems, no progress")


def run(args: argparse.Namespace) -> int:
    compiled = partial(plan_to_run, args)
    folder = None if args.run_dir is None else Path(args.run_dir)
    if folder is not None and args.resume not in (None, "auto"):
        print("dtrain: --run-dir names the folder of the run, so --resume must have no path", file=sys.stderr)
        return 2
    how = {"resume": args.resume, "max_steps": args.max_steps, "quiet": args.quiet, "folder": folder}
    try:
        seat = find_seat(args.node, args.head)
    except SeatError as error:
        print(f"dtrain: {error}", file=sys.stderr)
        return 2
    if seat is not None and not args.dry_run:
        return run_node(args, seat, compiled, how)
    if is_one_of_many():
        from declarative_train.run.torchrun import run_as_rank

        return run_as_rank(compiled, **how, on_end=partial(print_result, args.json))
    plan, code = compiled()
    if args.dry_run and code == 0:
        return 0
    return train(args.json, plan, code, how)


def train(as_json: bool, plan: Plan | None, code: int, how: dict[str, Any]) -> int:
    """Run the plan, print the result (`as_json`: as JSON), and return the exit code. `plan`: None if the recipe could
    not be compiled; then nothing is run, and `code` is returned. `how`: keyword arguments of `launch` in
    `run/launch.py`."""
    run_dir = None
    if plan is not None:
        from declarative_train.run.launch import launch
        from declarative_train.run.processes import say

        outcome = launch(plan, **how)
        say(outcome.why)
        code, run_dir = outcome.code, outcome.run_dir
    if run_dir is not None:
        print_result(as_json, run_dir, code)
    elif as_json:
        print(json.dumps({"run": None, "state": "not started", "exit_code": code}))
    return code


def run_node(
    args: argparse.Namespace, seat: Seat, compiled: Callable[[], tuple[Plan | None, int]], how: dict[str, Any]
) -> int:
    """Do this node's part of a run on several nodes (machines), and return the exit code.

    Node 0 calls `compiled`, which returns a plan and an exit code, and sends the plan to the other nodes. If the plan
    is None, nothing is run. `seat`: index of this node and address of node 0. `how`: arguments of `launch`.
    """
    from declarative_train.engine.failures import RunFailure
    from declarative_train.run.agent import follow, open_head
    from declarative_train.run.signals import EXIT_FAILED

    if seat.node > 0:
        return follow(seat)
    try:
        head = open_head(seat)
    except RunFailure as error:
        print(f"dtrain: {error}", file=sys.stderr)
        return EXIT_FAILED
    with head:
        plan, code = compiled()
        if plan is None:
            head.dismiss(code)
        return train(args.json, plan, code, {**how, "seat": seat, "head": head, "recompile": partial(recompile, args)})


def recompile(args: argparse.Namespace, num_nodes: int) -> Plan | None:
    """Return the plan for another number of nodes. Return None if it cannot be compiled: the recipe is a saved plan,
    came from standard input, or has an error for this number. Diagnostics are not printed again."""
    if args.recipe.endswith(".json") or args.recipe == STDIN:
        return None
    changed = argparse.Namespace(**vars(args) | {"set_": [*args.set_, f"layout.nodes={num_nodes}"]})
    return compile_recipe(changed, plugins=True).plan


def print_result(as_json: bool, run_dir: Path, code: int | None = None) -> None:
    """Print the result of a run on standard output: as JSON for scripts, with the exit code `code`, or as text."""
    from declarative_train.app.records.record import read_record
    from declarative_train.app.views.result import result_json, result_text

    record = read_record(str(run_dir))
    if as_json:  # `record` is None if the folder was removed meanwhile
        gone = {"run": str(run_dir), "state": "gone"}
        print(json.dumps((gone if record is None else result_json(record)) | {"exit_code": code}))
    elif record is None:
        print_text(f"run  {run_dir}")
    else:
        print_text(result_text(record))


def plan_to_run(args: argparse.Namespace) -> tuple[Plan | None, int]:
    """Return (plan to run, 0), or (None, exit code) if nothing is to be run. With `--dry-run` the plan is only
    printed."""
    plan, code = compile_or_report(args)
    if plan is not None and args.dry_run:
        from declarative_train.planner.text.describe import describe

        print_text(describe(plan))
        return None, code
    return plan, code


def compile_or_report(args: argparse.Namespace) -> tuple[Plan | None, int]:
    """Return (plan, 0), or print what is wrong and return (None, exit code)."""
    if report_missing(args.recipe):
        return None, 2
    if args.recipe.endswith(".json"):
        return read_saved_plan(args)
    compiled = compile_recipe(args, plugins=True)
    report(compiled)
    recipe = compiled.loaded.recipe
    if recipe is not None and recipe.sweep is not None and not args.quiet:
        print(
            f"note: this runs the recipe without its sweep; `dtrain sweep {args.recipe}` runs the sweep",
            file=sys.stderr,
        )
    return compiled.plan, 0 if compiled.plan is not None else 1
