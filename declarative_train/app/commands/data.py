"""Command `dtrain data show|index|tokenizer RECIPE`: show the data and the samples of the model; prepare the tokens of
a run in advance; train a tokenizer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.app.api.compiling import CompileResult, texts_of
from declarative_train.app.compile import add_recipe_arguments, load_recipe, report, report_missing
from declarative_train.app.printing import print_error, print_text
from declarative_train.app.views.table import table, terminal_width
from declarative_train.core.packs import Command, find_packs, hooks

if TYPE_CHECKING:
    from declarative_train.data.spec import DataSpec

_PAGE_WIDTH = 120  # characters of a line on the HTML page


def data_commands() -> dict[str, Command]:
    """Return {name: command} for the subcommands of `dtrain data` that packs add."""
    found = (item for pack in find_packs().values() for item in pack.data_commands.items())
    return dict(sorted(found))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    meanings = [f"{word}: {command.summary}" for word, command in data_commands().items()]
    parser.add_argument(
        "what",
        choices=["show", *data_commands()],
        help="; ".join(["show: sets, columns, fields, classes and the first samples", *meanings]),
    )
    add_recipe_arguments(parser)
    parser.add_argument("--plugins", action="store_true", help="import the recipe's plugins, which runs their code")
    for command in data_commands().values():
        import_module(command.module).add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="show: print the tables as one object")
    parser.add_argument("--html", metavar="FILE", help="write it as one page for a browser, pictures included")
    parser.add_argument(
        "--pictures",
        metavar="FILE.png",
        help="write a sheet of some training pictures, before and after the transforms",
    )


def run(args: argparse.Namespace) -> int:
    modules = {word: import_module(command.module) for word, command in data_commands().items()}
    for word, module in modules.items():
        if word != args.what and (problem := module.misuse(args)) is not None:
            print(f"dtrain: {problem}", file=sys.stderr)
            return 2
    if args.what in modules:
        code: int = modules[args.what].run(args)
        return code
    return report_data_errors(args, _show)


def report_data_errors(args: argparse.Namespace, act: Callable[[argparse.Namespace], int]) -> int:
    """Call `act`, which reads the data of a recipe, and return its exit code. If there is no recipe, print that and
    return 2. If `act` raises an error about the data, or cannot write a file, print the error and return 3."""
    if report_missing(args.recipe):
        return 2
    from declarative_train.data.field_reader import BadSampleError
    from declarative_train.data.spec import DataError
    from declarative_train.files.paths import SourceError

    try:
        return act(args)
    except (DataError, SourceError, BadSampleError) as error:
        print_error(str(error))
        return 3
    except OSError as error:
        print(f"dtrain: cannot write {error.filename}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 3


def describe_data(args: argparse.Namespace) -> tuple[str, DataSpec | None]:
    """Return (name of the recipe, its DataSpec). If there is an error, it is printed and the DataSpec is None."""
    from declarative_train.data.build_spec import describe

    loaded = load_recipe(args, plugins=args.plugins)
    diagnostics = list(loaded.diagnostics)
    data = None
    if loaded.recipe is not None:
        recipe = loaded.recipe
        floats = recipe.training.precision.of_fields
        data, found = describe(recipe.data, recipe.seed, recipe.span, floats=floats)
        diagnostics += found
    report(CompileResult(loaded, None, tuple(diagnostics), texts_of(loaded)))
    return "" if loaded.recipe is None else loaded.recipe.name, data


def _show(args: argparse.Namespace) -> int:
    from declarative_train.app.views.data import page, sections
    from declarative_train.app.views.values import LONGEST_WORD, first_rows
    from declarative_train.data.field_reader import BadSampleError
    from declarative_train.data.shared_sets import prepare_sets
    from declarative_train.data.spec import DataError
    from declarative_train.data.split_rows import TRAINING
    from declarative_train.data.tensor_sets import as_data_error

    name, data = describe_data(args)
    if data is None:
        return 1
    sheet, whole_page = None, ""
    try:
        with as_data_error(prepare_sets(data)[TRAINING]):  # the error names the broken file
            shown = sections(data)
            rows = first_rows(data, terminal_width())
            if args.pictures or args.html:
                sheet = next(filter(None, (draw(data) for draw in hooks("sheet"))), None)
            if args.html:
                whole_page = first_rows(data, _PAGE_WIDTH)
    except DataError as error:
        skip = isinstance(error.__cause__, BadSampleError)
        hint = "; help: correct the file, or leave such rows out: `--set data.on_bad_row=skip`" if skip else ""
        raise DataError(f"{error}{hint}") from error
    if args.pictures:
        if sheet is None:
            print("dtrain: the recipe has no field of `type: image`, so there are no images to write", file=sys.stderr)
            return 2
        Path(args.pictures).write_bytes(sheet)
    if args.html:
        Path(args.html).write_text(page(name, shown, whole_page, sheet), encoding="utf-8")
    if args.json:
        tables = {each.title: [dict(zip(each.header, row, strict=True)) for row in each.rows] for each in shown}
        print_text(json.dumps(tables, indent=1))
    for each in [] if args.json else shown:
        text = table(each.header, each.rows, right=each.right, width=terminal_width(), longest_word=LONGEST_WORD)
        print_text(f"{each.title}\n\n{text}\n")
    if not args.json:
        print_text(rows)
    for path in (args.pictures, args.html):
        if path:
            print(f"dtrain: {path} written", file=sys.stderr)
    return 0
