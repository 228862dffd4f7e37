"""Command `dtrain data index RECIPE`: tokenize the texts of a recipe and store the tokens in the cache, so that the
first run need not do it."""

from __future__ import annotations

import argparse

from declarative_train.app.commands.data import describe_data, report_data_errors
from declarative_train.app.printing import print_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Do nothing: the command has no arguments apart from the recipe."""


def misuse(args: argparse.Namespace) -> None:
    """Do nothing, because this command has no arguments of its own. In other subcommands of `dtrain data`, the function
    `misuse` reports arguments of the wrong subcommand."""


def run(args: argparse.Namespace) -> int:
    return report_data_errors(args, _index)


def _index(args: argparse.Namespace) -> int:
    from declarative_train.data.shared_sets import prepare_sets
    from declarative_train.packs.text.data_tables import token_files

    _, data = describe_data(args)
    if data is None:
        return 1
    lines = token_files(prepare_sets(data))
    print_text("\n".join(lines) if lines else "these data need no tokens")
    return 0
