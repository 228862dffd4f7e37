"""Command `dtrain list [KIND|TYPE]`: list everything that a recipe can name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from declarative_train.app.views.components import component_page, component_table, hardware_page, hardware_table
from declarative_train.app.views.table import fit_lines, terminal_width
from declarative_train.components.component import Component


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", help="a kind (layers, losses, ...), one type (linear) or section (training)")


def tables() -> dict[str, Mapping[str, type[Component]]]:
    from declarative_train.components.adapters import ADAPTERS
    from declarative_train.components.datasets import DATASETS
    from declarative_train.components.fields import FIELDS
    from declarative_train.components.inits import INITS
    from declarative_train.components.layers import LAYERS
    from declarative_train.components.losses import LOSSES
    from declarative_train.components.lr_schedules import LR_SCHEDULES
    from declarative_train.components.metrics import METRICS
    from declarative_train.components.optimizers import OPTIMIZERS
    from declarative_train.components.splits import SPLITS
    from declarative_train.components.transforms import TRANSFORMS

    return {
        "sources": DATASETS,
        "fields": FIELDS,
        "splits": SPLITS,
        "transforms": TRANSFORMS,
        "layers": LAYERS,
        "inits": INITS,
        "adapters": ADAPTERS,
        "losses": LOSSES,
        "metrics": METRICS,
        "optimizers": OPTIMIZERS,
        "lr_schedules": LR_SCHEDULES,
    }


def show(text: str) -> None:
    print(fit_lines(text, terminal_width()))


def run(args: argparse.Namespace) -> int:
    from declarative_train.app.views.sections import NAMES, section_page, section_table
    from declarative_train.components.hardware import HARDWARE
    from declarative_train.recipe.model.blocks import list_shipped, read_shipped_file

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
    from declarative_train.app.main import all_commands
    from declarative_train.recipe.hints.words import find_word

    if args.what in all_commands():
        found: str | None = f"`dtrain {args.what} --help` describes the command"
    else:
        types = (name for table in kinds.values() for name in table)
        names = [*kinds, *types, *blocks, *HARDWARE, *NAMES, "blocks", "hardware", "sections"]
        found = find_word(args.what, names)
    print(f"dtrain: there is no type `{args.what}`; {found or '`dtrain list` shows all of them'}", file=sys.stderr)
    return 2
