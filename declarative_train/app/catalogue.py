"""Catalogue of all diagnostics: the manual pages of the checks of all packages and packs."""

from __future__ import annotations

from pathlib import Path

import declarative_train
from declarative_train.core.diagnostics.rules import Rule, find_table, find_tables, read_rules
from declarative_train.core.packs import find_folder, find_packs


def catalogue() -> dict[str, Rule]:
    """Return {code: Rule} for all diagnostic codes, those of packs included. They are read from docstrings, without
    importing the files."""
    tables = find_tables(Path(declarative_train.__file__).parent)
    folders = [find_folder(pack.checks) for pack in find_packs().values() if pack.checks]
    return read_rules(tables | {folder: find_table(folder) for folder in folders})
