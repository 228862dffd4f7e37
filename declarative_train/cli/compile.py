"""From the words of a command to a plan: read, parse, compile, and say what is wrong, once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from declarative_train import recipe as recipe_room
from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.diagnostics.render import render
from declarative_train.diagnostics.suggest import did_you_mean
from declarative_train.recipe.load import Loaded

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


STDIN, STDIN_NAME = "-", "<stdin>"


class Compiled(NamedTuple):
    """`note`: why there is no plan, where nothing is wrong."""

    loaded: Loaded
    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]
    texts: Mapping[str, str] = {}
    note: str = ""


def add_recipe_arguments(parser: argparse.ArgumentParser, *, metavar: str = "RECIPE") -> None:
    parser.add_argument("recipe", metavar=metavar, help="a recipe, or - for standard input")
    add_override_arguments(parser)


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--with", dest="with_", action="append", default=[], metavar="FILE", help="merge a fragment")
    parser.add_argument("--set", dest="set_", action="append", default=[], metavar="A.B=1", help="set one value")


def load_recipe(args: argparse.Namespace, *, plugins: bool) -> Loaded:
    path, texts = args.recipe, {}
    if path == STDIN:
        path, texts = STDIN_NAME, {STDIN_NAME: sys.stdin.read()}
    return recipe_room.load(path, texts=texts, with_=args.with_, set_=args.set_, plugins=plugins)


def is_missing(path: str) -> bool:
    """Whether there is no file to read at `path`, which is then said: a wrong use of the command."""
    if path == STDIN or Path(path).is_file():
        return False
    print(f"dtrain: {_no_file(Path(path))}", file=sys.stderr)
    return True


def _no_file(path: Path) -> str:
    if path.is_dir():
        return f"`{path}` is a folder: name a recipe in it"
    if path.exists():
        return f"`{path}` is no ordinary file; `-` is standard input"
    if not path.parent.is_dir():
        return f"there is no file or folder `{path}`; there is no folder {path.parent} either"
    beside = [item.name for item in path.parent.iterdir() if item.is_dir() or item.suffix in (".yaml", ".yml", ".json")]
    return f"there is no file or folder `{path}`; {did_you_mean(path.name, beside)}"


def compile_recipe(args: argparse.Namespace, *, plugins: bool) -> Compiled:
    """Everything that can be known before launch; `plan` is None when there is an error."""
    loaded = load_recipe(args, plugins=plugins)
    diagnostics = list(loaded.diagnostics)
    plan, note = None, ""
    if loaded.recipe is not None:
        from declarative_train import plan as plan_room

        plan, more = plan_room.compile(loaded.recipe)
        diagnostics += more
    if any(item.is_error for item in diagnostics):
        plan = None
    elif plan is None and loaded.recipe is not None:
        note = "no plan without the shapes that the plugins give: --plugins imports them, and so runs their code"
    return Compiled(loaded, plan, tuple(diagnostics), texts_of(loaded), note)


def texts_of(loaded: Loaded) -> dict[str, str]:
    """The texts that the recipe was read from, by the path that spans name them with."""
    return {} if loaded.document is None else dict(loaded.document.texts())


def is_fragment(loaded: Loaded) -> bool:
    """Nothing is wrong, and still it is no recipe."""
    return (
        loaded.recipe is None and loaded.document is not None and not any(item.is_error for item in loaded.diagnostics)
    )


def report(compiled: Compiled) -> None:
    """The diagnostics on standard error, in full, without those that the recipe asks to ignore; a fragment is said to
    be one."""
    if is_fragment(compiled.loaded):
        assert compiled.loaded.document is not None
        path = compiled.loaded.document.path
        print(
            f"dtrain: {path} is a fragment, a part of a recipe: name a recipe and add `--with {path}`", file=sys.stderr
        )
    left = list(compiled.diagnostics)
    if left:
        from declarative_train.diagnostics.suppress import suppress  # which most recipes do not need

        left = list(suppress(left, compiled.texts, checked=()))  # a comment without use is told by lint
    if left:
        sys.stderr.write(render(left, compiled.texts, format="full", color=sys.stderr.isatty()))
    if compiled.note:
        print(f"dtrain: {compiled.note}", file=sys.stderr)


def read_saved_plan(path: str) -> Plan | None:
    """A saved plan that still holds, or None after saying what is wrong with it."""
    from declarative_train.plan.codec import PlanError, from_json, is_as_signed
    from declarative_train.plan.stale import staleness

    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        plan = from_json(text)
    except OSError as error:
        print(f"dtrain: cannot read {path}: {error.strerror}", file=sys.stderr)
        return None
    except PlanError as error:
        print(f"dtrain: {path} is not a plan that can be run: {error}", file=sys.stderr)
        return None
    if not is_as_signed(text):
        print(f"dtrain: {path} is not a plan that can be run: it was changed after it was made", file=sys.stderr)
        print("help: change the recipe, and compile it again with `dtrain plan RECIPE -o PLAN.json`", file=sys.stderr)
        return None
    changes = staleness(plan)
    if changes:
        print(f"dtrain: this plan is stale: {path} was compiled from files that have changed", file=sys.stderr)
        for change in changes:
            print(f"  {change}", file=sys.stderr)
        print("help: compile it again with `dtrain plan RECIPE -o PLAN.json`", file=sys.stderr)
        return None
    return plan
