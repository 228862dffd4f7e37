"""Command `dtrain explain CODE`: the manual page of a diagnostic."""

from __future__ import annotations

import argparse
import sys

from declarative_train.app.catalogue import catalogue
from declarative_train.core.diagnostics.suggest import did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "code",
        nargs="?",
        help="a code (Y003), a name (duplicate-key), a prefix of codes (Y), or a word; default: the list",
    )


def run(args: argparse.Namespace) -> int:
    rules = catalogue()
    asked = (args.code or "").lower()
    listed = [rule for code, rule in rules.items() if code.lower().startswith(asked)]
    if listed and asked not in (rule.code.lower() for rule in listed):
        for rule in listed:
            print(f"{rule.code}  {rule.name:<36}{rule.finds}")
        return 0
    found = next((rule for rule in rules.values() if asked in (rule.code.lower(), rule.name)), None)
    words = [rule for rule in rules.values() if asked in f"{rule.name} {rule.finds} {rule.why}".lower()]
    if found is None and len(asked) > 2 and words and not asked[1:].isdigit():
        print(f"diagnostics with the word `{args.code}`:")
        for rule in words:
            print(f"{rule.code}  {rule.name:<36}{rule.finds}")
        return 0
    if found is None:
        family = [rule.code for rule in rules.values() if rule.code[0].lower() == asked[0]]
        is_code = asked[1:].isdigit() and family
        known = family if is_code else [rule.name for rule in rules.values()]
        print(f"dtrain: there is no diagnostic `{args.code}`; {did_you_mean(args.code, known)}", file=sys.stderr)
        return 2
    print(found.page)
    return 0
