"""Command `dtrain verify RECIPE|PLAN.json`: compare one training step in the recipe's mode with the same step in one
process."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from declarative_train.app.commands.compare import find_run
from declarative_train.app.commands.run import compile_or_report
from declarative_train.app.compile import add_recipe_arguments
from declarative_train.app.numbers import positive
from declarative_train.app.printing import print_error, print_text

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, metavar="RECIPE|PLAN.json")
    parser.add_argument(
        "--step",
        type=positive,
        metavar="N",
        help="take the rows of step N (default: 1); with --against, compare up to step N",
    )
    parser.add_argument(
        "--dtype", choices=("float64",), help="compute in float64, to find small differences (default: the recipe's)"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="device of the ranks (default: GPUs if there are enough, else the CPU)",
    )
    parser.add_argument(
        "--microbatches", action="store_true", help="the one process takes a microbatch at a time, with less memory"
    )
    parser.add_argument(
        "--plan", action="store_true", help="run nothing; check that the plan's parts, reductions and scales add up"
    )
    parser.add_argument(
        "--against", metavar="RUN", help="run the first steps again, and compare them with those of an earlier run"
    )
    parser.add_argument("--dir", default="runs", help="folder in which runs are found by name (default: runs)")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(args: argparse.Namespace) -> int:
    args.quiet = True
    if args.against is not None and (args.plan or args.microbatches or args.dtype):
        print_error("--against compares recorded steps, so it takes neither --plan, --dtype nor --microbatches")
        return 2
    plan, code = compile_or_report(args)
    if plan is None:
        return code
    return _check(plan, args.json) if args.plan else _verify(plan, args)


def _check(plan: Plan, as_json: bool) -> int:
    from declarative_train.tools.verify.plan_checks import check_plan
    from declarative_train.tools.verify.text import format_checked, make_checked_data

    found = check_plan(plan)
    print_text(json.dumps(make_checked_data(found), indent=1) if as_json else format_checked(plan, found))
    return 1 if found.problems else 0


def _verify(plan: Plan, args: argparse.Namespace) -> int:
    from declarative_train.app.api.errors import DtrainError
    from declarative_train.tools.verify.against import compare_with_run
    from declarative_train.tools.verify.text import format_verified, make_verified_data
    from declarative_train.tools.verify.verify import verify

    run = None if args.against is None else find_run(args.against, args.dir)
    if args.against is not None and run is None:
        return 2
    try:
        if run is not None:
            found = compare_with_run(plan, run, step=args.step, device=args.device)
        else:
            found = verify(
                plan,
                step=args.step or 1,
                in_float64=args.dtype is not None,
                device=args.device,
                in_microbatches=args.microbatches,
            )
    except DtrainError as error:
        print_error(error.message)
        return error.exit_code
    print_text(json.dumps(make_verified_data(found), indent=1) if args.json else format_verified(found))
    return 0 if found.is_equal else 1
