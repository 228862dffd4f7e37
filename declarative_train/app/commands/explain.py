"""Command `dtrain explain CODE`: the manual page of a diagnostic."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

from declarative_train.app.catalogue import catalogue
from declarative_train.app.index import first_answers
from declarative_train.app.printing import print_text
from declarative_train.core.diagnostics.rules import Rule
from declarative_train.core.diagnostics.suggest import did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "code",
        nargs="?",
        help="a code (Y003), a name (duplicate-key), a prefix of codes (Y), or a word; default: the list",
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects, one per diagnostic")


def run(args: argparse.Namespace) -> int:
    rules = catalogue()
    asked = (args.code or "").lower()
    exact = next((rule for rule in rules.values() if asked in (rule.code.lower(), rule.name)), None)
    family = [rule for code, rule in rules.items() if code.lower().startswith(asked)]
    words = [rule for rule in rules.values() if asked in f"{rule.name} {rule.finds} {rule.why}".lower()]
    found = [exact] if exact is not None else family or (words if len(asked) > 2 and not asked[1:].isdigit() else [])
    if not found:
        return _report_unknown(args.code, rules)
    if args.json:
        print_text(json.dumps([_as_data(rule) for rule in found], indent=1))
    elif exact is not None:
        print(exact.page)
    else:
        if not family:
            print(f"diagnostics with the word `{args.code}`:")
        for rule in found:
            print(f"{rule.code}  {rule.name:<36}{rule.finds}")
    return 0


def _as_data(rule: Rule) -> dict[str, str]:
    keys = ("code", "name", "finds", "why", "bad", "good")
    return {key: getattr(rule, key) for key in keys}


def _report_unknown(asked: str, rules: Mapping[str, Rule]) -> int:
    known = [code for code in rules if code[0].lower() == asked[0].lower()] if asked[1:].isdigit() else []
    answers = "" if known else first_answers(asked)
    hint = f"\n{answers}" if answers else f" {did_you_mean(asked, known or [rule.name for rule in rules.values()])}"
    print(f"dtrain: there is no diagnostic `{asked}`;{hint}", file=sys.stderr)
    return 2
