"""`dtrain run RECIPE|PLAN.json`: lint, compile, launch, train."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from declarative_train.cli.compile import add_recipe_arguments, compile_recipe, is_missing, read_saved_plan, report
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
    parser.add_argument("--max-steps", type=positive, metavar="N", help="end this session after N more optimizer steps")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    parser.add_argument("--quiet", action="store_true", help="print only what goes wrong")


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of steps")
    return value


def run(args: argparse.Namespace) -> int:
    compiled = partial(compile_or_report, args)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from declarative_train.runtime.torchrun import run_as_rank

        return run_as_rank(compiled, resume=args.resume, max_steps=args.max_steps, quiet=args.quiet)
    plan, code = compiled()
    if plan is None:
        return code
    if args.dry_run:
        from declarative_train.plan.text.describe import describe

        print(describe(plan))
        return 0
    from declarative_train.runtime.launch import run as launch

    return launch(plan, resume=args.resume, max_steps=args.max_steps, quiet=args.quiet)


def compile_or_report(args: argparse.Namespace) -> tuple[Plan | None, int]:
    """The plan, or None and the exit code after the reasons were printed."""
    if is_missing(args.recipe):
        return None, 2
    if args.recipe.endswith(".json"):
        if args.with_ or args.set_:
            print("dtrain: a saved plan is run as it is; --with and --set belong to `dtrain plan`", file=sys.stderr)
            return None, 2
        plan = read_saved_plan(args.recipe)
        return plan, 0 if plan is not None else 3
    compiled = compile_recipe(args, plugins=True)
    report(compiled)
    return compiled.plan, 0 if compiled.plan is not None else 1
