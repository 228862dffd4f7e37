"""`dtrain sweep RECIPE`: run a recipe with each of the settings in its section `sweep`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declarative_train.app.api.compiling import CompileResult, compile_loaded
from declarative_train.app.compile import add_recipe_arguments, load_recipe, report, report_missing
from declarative_train.app.numbers import positive
from declarative_train.app.printing import print_text

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.recipe.recipe import Recipe
    from declarative_train.tools.sweep.search import Point, Search
    from declarative_train.tools.sweep.sweep import Aim, Result
from declarative_train.core.machine import extra_for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)
    parser.add_argument(
        "--jobs",
        type=jobs,
        default=1,
        metavar="N|auto",
        help="number of points at once, each with its own cores or GPUs; auto: as many as fit (default: 1)",
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="auto|PATH",
        help="continue the newest sweep of this recipe, or the one in a folder; finished points are not repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="lint and plan every point, list them, and stop")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")


def jobs(text: str) -> int | None:
    if text == "auto":
        return None
    return positive(text)


def run(args: argparse.Namespace) -> int:
    if report_missing(args.recipe):
        return 2
    base = compile_loaded(load_recipe(args, plugins=True))
    recipe = base.loaded.recipe
    if base.plan is None or recipe is None:
        report(base)
        return 1
    if recipe.sweep is None:
        report(base)
        example = "sweep: {type: grid, over: {training.optimizer.lr: [0.1, 0.01]}}"
        print(f"dtrain: {args.recipe} has no `sweep:` section, such as {example}", file=sys.stderr)
        return 2
    install = extra_for("optuna") if recipe.sweep.type == "optuna" else None
    if install is not None:
        print(f"dtrain: a sweep of type `optuna` needs optuna; help: {install}", file=sys.stderr)
        return 1
    points, plans = plan_points(args, base, recipe)
    if plans is None:
        return 1
    if args.dry_run:
        print_text(points_text(points, is_sample=recipe.sweep.type == "optuna"))
        return 0
    return start(args, recipe, base.plan, points, plans)


def plan_points(
    args: argparse.Namespace, base: CompileResult, recipe: Recipe
) -> tuple[list[Point], dict[str, Plan] | None]:
    """Return the points of the sweep (a point is one run), and {key of a point: its plan} or None if a point has an
    error. Print all errors and warnings. For an adaptive search, which chooses its points during the sweep, the points
    are those of `corners`."""
    from declarative_train.recipe.load import select_new
    from declarative_train.recipe.sweeps import choices
    from declarative_train.tools.sweep.search import corners, list_points

    assert recipe.sweep is not None
    given = choices(recipe)
    points = corners(given) if recipe.sweep.type == "optuna" else list_points(recipe.sweep, given)
    plans, diagnostics = {}, list(base.diagnostics)
    for point in points:
        compiled = compile_point(args, point)
        last = list(point.nodes.values())[-1]
        diagnostics += select_new(compiled.diagnostics, diagnostics, last.span)
        if compiled.plan is not None:
            plans[point.key] = compiled.plan
    report(base._replace(diagnostics=tuple(dict.fromkeys(diagnostics))))
    return points, plans if len(plans) == len(points) else None


def compile_point(args: argparse.Namespace, point: Point) -> CompileResult:
    from declarative_train import recipe as recipe_room

    loaded = recipe_room.load(args.recipe, with_=args.with_, set_=args.set_, over=point.over, plugins=True)
    return compile_loaded(loaded)


def start(
    args: argparse.Namespace, recipe: Recipe, base: Plan, points: Sequence[Point], plans: Mapping[str, Plan]
) -> int:
    """Reserve the device slots, resume the last sweep if requested, run all points, and print the results. Return the
    exit code. `base`: plan of the recipe without the sweep's settings. `plans`: the plan of each point by its key."""
    from declarative_train.engine.failures import RunFailure
    from declarative_train.recipe.sweeps import find_metric
    from declarative_train.run.storage.run_lock import RunLock
    from declarative_train.tools.sweep.device_slots import NoRoomError, assign_device_slots
    from declarative_train.tools.sweep.hparams import write_hparams
    from declarative_train.tools.sweep.sweep import (
        RESULTS,
        Aim,
        Result,
        SweepRunner,
        new_sweep_dir,
        newest_sweep,
        read_results,
    )

    assert recipe.sweep is not None
    aim, known, lock = Aim(*find_metric(recipe)), list[Result](), RunLock()
    try:
        slots = assign_device_slots([plan.layout for plan in plans.values()], args.jobs)
    except NoRoomError as problem:
        print(f"dtrain: {problem}", file=sys.stderr)
        return 2
    try:
        folder = None
        if args.resume is not None:
            folder = newest_sweep(base) if args.resume == "auto" else Path(args.resume)
            if folder is None:
                say("there is no sweep of this recipe to resume: a new one begins")
            else:
                _, known = read_results(folder)
        changed = [result for result in known if _is_of_another_recipe(result, plans)]
        if changed:
            print(
                f"dtrain: the recipe has changed since the sweep in {folder}: point {changed[0].point.number} would "
                "be another run; help: start a new sweep, without --resume",
                file=sys.stderr,
            )
            return 3
        folder = folder or new_sweep_dir(base)
        notice = lock.take(folder)
        if notice:
            say(notice)
        search = search_of(recipe, points, folder, aim, len(slots))
        about = {
            "recipe": args.recipe,
            "name": base.name,
            "type": recipe.sweep.type,
            "metric": aim.metric,
            "mode": "max" if aim.higher_is_better else "min",
        }
        total = recipe.sweep.trials if recipe.sweep.type == "optuna" else len(points)
        say(f"{total} points, {len(slots)} at a time, in {folder}; by {aim.metric}, {about['mode']}")
        sweep = SweepRunner(folder, search, aim, partial(plan_of, args, plans), say, about, known)
        code = sweep.run(slots)
        results = aim.sort(list(sweep.results.values()))
        write_hparams(folder, results, aim)
    except (RunFailure, OSError, ValueError) as problem:
        print(f"dtrain: {problem}", file=sys.stderr)
        return 3
    finally:
        lock.release()
    if args.json:
        print(json.dumps(json.loads((folder / RESULTS).read_text()) | {"folder": str(folder), "exit_code": code}))
    else:
        print_text(results_text(results, aim, str(folder)))
    if code == 75:
        say(f"resume: the same command with --resume {folder}")
    return code


def _is_of_another_recipe(result: Result, plans: Mapping[str, Plan]) -> bool:
    plan = plans.get(result.point.key)
    return plan is not None and bool(result.fingerprint) and result.fingerprint != plan.fingerprint


def plan_of(args: argparse.Namespace, plans: Mapping[str, Plan], point: Point) -> Plan | None:
    """Return the plan of a point. If `plans` does not have it, as in an adaptive search, compile it. If it has errors,
    print them and return None."""
    if point.key in plans:
        return plans[point.key]
    compiled = compile_point(args, point)
    if compiled.plan is None:
        report(compiled)
    return compiled.plan


def search_of(recipe: Recipe, points: Sequence[Point], folder: Path, aim: Aim, num_jobs: int) -> Search:
    from declarative_train.recipe.sweeps import choices
    from declarative_train.tools.sweep.search import FixedSearch, OptunaSearch

    assert recipe.sweep is not None
    if recipe.sweep.type == "optuna":
        return OptunaSearch(recipe.sweep, choices(recipe), folder, recipe.name, aim.higher_is_better, num_jobs)
    return FixedSearch(points)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def points_text(points: Sequence[Point], *, is_sample: bool) -> str:
    from declarative_train.app.views.table import table
    from declarative_train.plan.settings import format_value

    keys = list(points[0].values)
    rows = [[str(point.number), *(format_value(point.values[key]) for key in keys)] for point in points]
    text = table(["point", *keys], rows, right=(0,))
    return f"{text}\n\nthe ends of the ranges; the search chooses the points one by one" if is_sample else text


def results_text(results: Sequence[Result], aim: Aim, folder: str) -> str:
    """Return the results as text, the best first."""
    from declarative_train.app.views.table import table, terminal_width
    from declarative_train.core.amounts import format_number
    from declarative_train.plan.settings import format_value, shorten_names

    keys = list(dict.fromkeys(key for result in results for key in result.point.values))
    names = shorten_names(keys)
    rows: list[list[str]] = []
    for result in results:
        values: Mapping[str, Any] = result.point.values
        cells = [format_value(values[key]) if key in values else "-" for key in keys]
        steps = "-" if result.record is None else str(result.record.step)
        rows.append([str(result.point.number), *cells, format_number(result.value), steps, result.state])
    header = ["point", *(names[key] for key in keys), aim.metric, "steps", "state"]
    blocks = [table(header, rows, right=(0, *range(1, len(keys) + 3)), width=terminal_width() or 80)]
    failed = [result for result in results if result.reason]
    if failed:
        blocks.append("\n".join(f"point {result.point.number} failed: {result.reason}" for result in failed))
    best = next((result for result in results if result.value is not None and result.state != "failed"), None)
    if best is not None:
        settings = " ".join(f"--set {key}={json.dumps(value)}" for key, value in best.point.values.items())
        blocks.append(f"best   {best.folder}\nagain  {settings}")
    blocks.append(f"sweep  {folder}")
    return "\n\n".join(blocks)
