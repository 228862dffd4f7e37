"""Command `dtrain plan RECIPE`: show the plan: ranks, batches, memory and time, before anything starts."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from pathlib import Path

from declarative_train.app.api.compiling import CompileResult, texts_of
from declarative_train.app.compile import (
    add_recipe_arguments,
    compile_recipe,
    load_recipe,
    read_saved_plan,
    report,
    report_missing,
)
from declarative_train.app.printing import print_text
from declarative_train.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, metavar="RECIPE|PLAN.json")
    parser.add_argument(
        "-o", "--output", metavar="PLAN.json", help="save the plan; `dtrain run PLAN.json` runs exactly this plan"
    )
    parser.add_argument(
        "--for",
        dest="for_",
        type=hardware_overrides,
        metavar="[[NODESx]GPUSx]HARDWARE",
        help="plan for other devices, such as 4xh100-sxm or 16x8xh100-sxm (`dtrain list hardware`)",
    )
    parser.add_argument(
        "--diff",
        metavar="OTHER",
        help="compare with another recipe (without this --with and --set) or saved plan; exit code 1 if they differ",
    )
    parser.add_argument(
        "--scale",
        type=numbers_of_gpus,
        metavar="1,2,4,8",
        help="predict the step time for these numbers of GPUs",
    )
    parser.add_argument("--json", action="store_true", help="print the plan, or what --diff or --scale found, as JSON")
    parser.add_argument("--plugins", action="store_true", help="import the recipe's plugins, for their shapes")


def numbers_of_gpus(text: str) -> list[int]:
    if re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text) is None:
        raise argparse.ArgumentTypeError(f"`{text}` is not a list of numbers such as 1,2,4,8")
    return sorted({int(each) for each in text.split(",")})


def hardware_overrides(text: str) -> list[str]:
    """Return options for `--set` that select the hardware of `text`, such as `4xh100-sxm` (4 GPUs of this name)."""
    found = re.fullmatch(r"(?:(?:(?P<nodes>[1-9]\d*)x)?(?P<gpus>[1-9]\d*)x)?(?P<hardware>[A-Za-z][\w-]*)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"`{text}` does not have the form h100-sxm, 4xh100-sxm or 16x8xh100-sxm")
    overrides = [f"layout.hardware={found['hardware']}"]
    if found["nodes"] is not None:
        overrides += [f"layout.nodes={found['nodes']}", f"layout.gpus_per_node={found['gpus']}"]
    elif found["gpus"] is not None:
        overrides.append(f"layout.gpus={found['gpus']}")
    return overrides


def run(args: argparse.Namespace) -> int:
    from declarative_train.plan.codec import save, to_json
    from declarative_train.planner.text.describe import describe

    if args.scale is not None:
        return scale(args)
    plan, code = read(args)
    if plan is None:
        return code
    if args.diff is not None:
        as_it_is = {"recipe": args.diff, "for_": None, "with_": [], "set_": []}
        other, code = read(argparse.Namespace(**vars(args) | as_it_is))
        if other is None:
            return code
        switches = [f"--with {each}" for each in args.with_] + [f"--set {each}" for each in args.set_]
        lines = difflib.unified_diff(
            describe(other).splitlines(),
            describe(plan).splitlines(),
            args.diff,
            " ".join([args.recipe, *switches]),
            lineterm="",
            n=1,
        )
        found = "\n".join(lines)
        print_text(json.dumps(found.splitlines(), indent=1) if args.json else found or "no difference")
        return 1 if found else 0
    if args.output is None:
        print_text(to_json(plan) if args.json else describe(plan))
        return 0
    try:
        save(plan, Path(args.output))
    except OSError as error:
        print(f"dtrain: cannot write {args.output}: {error.strerror}", file=sys.stderr)
        return 3
    print_text(f"wrote {args.output}; run it with: dtrain run {args.output}")
    return 0


def read(args: argparse.Namespace) -> tuple[Plan | None, int]:
    if report_missing(args.recipe):
        return None, 2
    if args.recipe.endswith(".json"):
        if args.for_ is not None:
            print("dtrain: a saved plan is for its own devices; --for needs a recipe", file=sys.stderr)
            return None, 2
        return read_saved_plan(args)
    args.set_ = [*args.set_, *(args.for_ or [])]
    compiled = compile_recipe(args, plugins=args.plugins)
    report(compiled)
    return compiled.plan, 0 if compiled.plan is not None else 1


def scale(args: argparse.Namespace) -> int:
    """Print the predicted speed for each number of GPUs in the option `--scale`, and return the exit code. GPUs that do
    not fit into one node are divided over several nodes."""
    from declarative_train.planner.text.estimate import ScalingRow, describe_scale, scale_data

    if report_missing(args.recipe):
        return 2
    if args.recipe.endswith(".json") or args.diff is not None or args.output is not None:
        print(
            "dtrain: --scale plans several times, and does not work with a saved plan, --diff or -o",
            file=sys.stderr,
        )
        return 2
    args.set_ = [*args.set_, *(args.for_ or [])]
    loaded = load_recipe(args, plugins=args.plugins)
    if loaded.recipe is None:
        report(CompileResult(loaded, None, tuple(loaded.diagnostics), texts_of(loaded)))
        return 1
    layout, mode = loaded.recipe.layout, loaded.recipe.parallelism.mode
    if layout.hardware is None:
        print(
            "dtrain: --scale estimates for a device, and the recipe names none; "
            "help: add --for h100-sxm (or another of `dtrain list hardware`)",
            file=sys.stderr,
        )
        return 2
    per_node = layout.num_gpus_per_node if layout.num_nodes > 1 else max(8, layout.num_gpus_per_node)
    found = []
    for number in args.scale:
        if number > per_node and number % per_node:
            found.append(ScalingRow(number, None, f"not a multiple of {per_node}, the GPUs of a node"))
            continue
        asked = {"set_": [*args.set_, *_for_gpus(number, per_node, mode)]}
        compiled = compile_recipe(argparse.Namespace(**vars(args) | asked), plugins=args.plugins)
        errors = [item.message for item in compiled.diagnostics if item.is_error]
        plan = compiled.plan
        if plan is not None and (plan.estimate is None or plan.estimate.step_s is None):
            errors, plan = [f"the speed of {layout.hardware} is not known"], None
        found.append(ScalingRow(number, plan, (errors or [compiled.note])[0]))
    print_text(json.dumps([scale_data(each) for each in found], indent=1) if args.json else describe_scale(found))
    return 0 if any(each.plan is not None for each in found) else 1


def _for_gpus(number: int, per_node: int, mode: str) -> list[str]:
    """Return the options for `--set` that give `number` GPUs: on one node, or on several with `per_node` GPUs each.
    `mode`: the recipe's parallelism. If it does not suit this number, the options replace it by one that does."""
    from declarative_train.recipe.sections.parallelism import mode_on

    if number <= per_node:
        sets = [f"layout.gpus={number}"]
    else:
        sets = [f"layout.nodes={number // per_node}", f"layout.gpus_per_node={per_node}"]
    taken = mode_on(mode, number)
    if taken != mode:
        sets.append(f"parallelism={taken}")
    return sets
