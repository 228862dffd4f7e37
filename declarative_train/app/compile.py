"""Compilation for commands: read and compile the recipe that the command-line arguments name, and print its mistakes
once."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from declarative_train.app.api.compiling import (
    STDIN_NAME,
    CompileResult,
    Overrides,
    UnusablePlanError,
    compile_loaded,
    fragment_in_words,
    missing_file,
    read_recipe,
    without_ignored,
)
from declarative_train.app.api.compiling import read_saved_plan as read_plan
from declarative_train.core.diagnostics.render import render
from declarative_train.recipe.load import Loaded

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


STDIN = "-"


def add_recipe_arguments(parser: argparse.ArgumentParser, *, metavar: str = "RECIPE") -> None:
    parser.add_argument("recipe", metavar=metavar, help="a recipe, or - for standard input")
    add_override_arguments(parser)


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with", dest="with_", action="append", default=[], metavar="FILE", help="merge this file over the recipe"
    )
    parser.add_argument(
        "--set", dest="set_", action="append", default=[], metavar="A.B=1", help="set one value, by its path"
    )


def overrides_of(args: argparse.Namespace) -> Overrides:
    return Overrides(args.with_, args.set_)


def load_recipe(args: argparse.Namespace, *, plugins: bool) -> Loaded:
    path, texts = args.recipe, {}
    if path == STDIN:
        path, texts = STDIN_NAME, {STDIN_NAME: sys.stdin.read()}
    return read_recipe(path, overrides_of(args), texts=texts, plugins=plugins)


def report_missing(path: str) -> bool:
    """Print an error if there is no readable file at `path`. Return whether there was an error."""
    why = None if path == STDIN else missing_file(path)
    if why is not None:
        print(f"dtrain: {why}", file=sys.stderr)
    return why is not None


def compile_recipe(args: argparse.Namespace, *, plugins: bool) -> CompileResult:
    """Load and compile the recipe that the command line names. `plugins`: whether the code of plugins may run."""
    return compile_loaded(load_recipe(args, plugins=plugins))


def report(compiled: CompileResult) -> None:
    """Print the diagnostics of a recipe on standard error, except those that comments in the recipe ignore. Also print
    that the file is a fragment, if it is one, and `compiled.note`."""
    if (is_part := fragment_in_words(compiled.loaded)) is not None:
        print(f"dtrain: {is_part}", file=sys.stderr)
    if left := without_ignored(compiled):
        sys.stderr.write(render(left, compiled.texts, format="full", color=sys.stderr.isatty()))
    if compiled.note:
        print(f"dtrain: {compiled.note}", file=sys.stderr)


def read_saved_plan(args: argparse.Namespace) -> tuple[Plan | None, int]:
    """Return (saved plan, 0), or print why it cannot be used and return (None, exit code)."""
    if args.with_ or args.set_:
        print("dtrain: a saved plan is used as it is; --with and --set need a recipe", file=sys.stderr)
        return None, 2
    try:
        return read_plan(args.recipe), 0
    except UnusablePlanError as error:
        print(f"dtrain: {error}", file=sys.stderr)
        return None, 3
