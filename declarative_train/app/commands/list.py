"""Command `dtrain list [KIND|TYPE]`: list everything that a recipe can name."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from declarative_train.app.index import KIND_NAMES, all_entries, first_answers, tables
from declarative_train.app.printing import print_text
from declarative_train.app.views.components import (
    component_page,
    component_table,
    describe_keys,
    hardware_page,
    hardware_table,
    summary,
)
from declarative_train.app.views.table import fit_lines, terminal_width


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", help="a kind (layers, losses, ...), one type (linear) or section (training)")
    parser.add_argument("--json", action="store_true", help="print names, or entries with their keys, as JSON")


def show(text: str) -> None:
    print(fit_lines(text, terminal_width()))


def run(args: argparse.Namespace) -> int:
    from declarative_train.app.views.sections import NAMES, section_page, section_table
    from declarative_train.components.hardware import HARDWARE
    from declarative_train.recipe.model.blocks import list_shipped, read_shipped_file

    if args.json and (found := _as_data(args.what)) is not None:
        print_text(json.dumps(found, indent=1, default=str))
        return 0
    kinds = tables()
    blocks = {name: read_shipped_file(name).text for name in list_shipped()}
    if args.what is None:
        for kind, table in kinds.items():
            show(f"{kind:<14}{', '.join(sorted(table))}")
        show(f"{'blocks':<14}{', '.join(sorted(blocks))}")
        show(f"{'hardware':<14}{', '.join(HARDWARE)}")
        show(f"{'sections':<14}{', '.join(NAMES)}")
        show(
            "\n`dtrain list layers` describes each; `dtrain list linear`, `dtrain list training` show the keys of one."
        )
        return 0
    if args.what == "blocks":
        for name, text in sorted(blocks.items()):
            show(f"{name:<24}{text.splitlines()[0].lstrip('# ')}")
        return 0
    if args.what == "hardware":
        show(hardware_table(list(HARDWARE.values())))
        return 0
    if args.what == "sections":
        show(section_table())
        return 0
    if args.what in NAMES:
        show(section_page(args.what))
        return 0
    if args.what in kinds:
        show(component_table(kinds[args.what]))
        return 0
    width = terminal_width()
    pages = [
        fit_lines(component_page(kind, table[args.what]), width) for kind, table in kinds.items() if args.what in table
    ]
    if args.what in blocks:
        pages.append(blocks[args.what])
    if args.what in HARDWARE:
        pages.append(fit_lines(hardware_page(HARDWARE[args.what]), width))
    if pages:
        print("\n\n".join(pages))
        return 0
    answers = first_answers(args.what)
    hint = f"\n{answers}" if answers else " `dtrain list` shows all of them"
    print(f"dtrain: there is no type `{args.what}`;{hint}", file=sys.stderr)
    return 2


def _as_data(what: str | None) -> object:
    """Return the object that `--json` prints for the argument `what`. It depends on `what`:

    None    the names of all entries of each kind
    a kind  the types or other entries of this kind
    a name  the entries with this name, with all their keys; None if there is none
    """
    entries = [each for each in all_entries() if each.kind not in ("page", "diagnostic", "command")]
    kinds = {**KIND_NAMES, "blocks": "block", "hardware": "gpu"}
    if what is None:
        return {kind: [each.name for each in entries if each.kind == name] for kind, name in kinds.items()}
    shown = [each for each in entries if each.kind == kinds[what]] if what in kinds else []
    types = [
        {"kind": KIND_NAMES[kind], "name": what, "about": summary(table[what]), "keys": describe_keys(table[what])}
        for kind, table in tables().items()
        if not shown and what in table
    ]
    known = {each["kind"] for each in types} | ({"key"} if types else set())
    shown = shown or [each for each in entries if each.name == what or each.name.startswith(f"{what}.")]
    return types + [asdict(each) for each in shown if each.kind not in known] or None
