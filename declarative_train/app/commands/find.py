"""Command `dtrain find WORD`: search keys, types, functions, commands, diagnostics, pages and words of other tools."""

from __future__ import annotations

import argparse
import json
import sys

from declarative_train.app.printing import print_text
from declarative_train.app.views.table import fit_lines, terminal_width


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", metavar="WORD", help="a key, a type, a function, a command, or another tool's word")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(args: argparse.Namespace) -> int:
    from declarative_train.app.index import as_data, as_text, find

    found = find(args.word)
    if args.json:
        print_text(json.dumps(as_data(found), indent=1))
    elif found.is_empty:
        print(f"dtrain: nothing is known about `{args.word}`; help: `dtrain list` shows all types", file=sys.stderr)
        return 2
    else:
        print_text(fit_lines(as_text(found), terminal_width()))
    return 0
