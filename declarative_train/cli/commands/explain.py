"""`dtrain explain CODE`: the manual page of a diagnostic."""

from __future__ import annotations

import argparse
import sys

from declarative_train.cli.catalogue import catalogue
from declarative_train.diagnostics.suggest import did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", help="a code (Y003) or a name (duplicate-key); without: the list")


def run(args: argparse.Namespace) -> int:
    rules = catalogue()
    if args.code is None:
        for rule in rules.values():
            print(f"{rule.code}  {rule.name:<36}{rule.finds}")
        return 0
    asked = args.code.lower()
    found = next((rule for rule in rules.values() if asked in (rule.code.lower(), rule.name)), None)
    if found is None:
        known = [word for rule in rules.values() for word in (rule.code, rule.name)]
        print(f"dtrain: no diagnostic is called `{args.code}`; {did_you_mean(args.code, known)}", file=sys.stderr)
        return 2
    print(found.page)
    return 0
