"""`dtrain data show RECIPE`: what the data hold, and what the model will see of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from declarative_train.api.compiling import Compiled, texts_of
from declarative_train.cli.compile import add_recipe_arguments, is_missing, load_recipe, report
from declarative_train.cli.views.table import table, terminal_width


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["show"], help="show: sets, columns, fields, classes and the first samples")
    add_recipe_arguments(parser)
    parser.add_argument("--plugins", action="store_true", help="import the recipe's plugins, and so run their code")
    parser.add_argument("--html", metavar="FILE", help="write it as one page for a browser, pictures included")
    parser.add_argument(
        "--pictures",
        metavar="FILE.png",
        help="write a sheet of some training pictures, before and after the transforms",
    )


def run(args: argparse.Namespace) -> int:
    if is_missing(args.recipe):
        return 2
    from declarative_train.components.data import SourceError
    from declarative_train.data.prepare import BadSampleError
    from declarative_train.data.spec import DataError

    try:
        return _show(args)
    except (DataError, SourceError, BadSampleError) as error:
        print(f"dtrain: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"dtrain: cannot write {error.filename}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 3


def _show(args: argparse.Namespace) -> int:
    from declarative_train.cli.views.data import page, sections
    from declarative_train.cli.views.values import first_rows
    from declarative_train.data.describe import describe

    loaded = load_recipe(args, plugins=args.plugins)
    diagnostics = list(loaded.diagnostics)
    data = None
    if loaded.recipe is not None:
        data, found = describe(loaded.recipe.data, loaded.recipe.seed, loaded.recipe.span)
        diagnostics += found
    report(Compiled(loaded, None, tuple(diagnostics), texts_of(loaded)))
    if loaded.recipe is None or data is None:
        return 1
    shown = sections(data)
    rows = first_rows(data, terminal_width())
    sheet = None
    if args.pictures or args.html:
        from declarative_train.cli.views.sheet import picture_sheet

        sheet = picture_sheet(data)
    if args.pictures:
        if sheet is None:
            print(
                "dtrain: the recipe has no field of `type: image`, and there are no pictures to write", file=sys.stderr
            )
            return 2
        Path(args.pictures).write_bytes(sheet)
    if args.html:
        Path(args.html).write_text(page(loaded.recipe.name, shown, rows, sheet), encoding="utf-8")
    for each in shown:
        print(f"{each.title}\n\n{table(each.header, each.rows, right=each.right, width=terminal_width())}\n")
    print(rows)
    for path in (args.pictures, args.html):
        if path:
            print(f"dtrain: {path} written", file=sys.stderr)
    return 0
