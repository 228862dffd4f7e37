"""Catalogue of all diagnostics: the manual pages of the rules of all packages, and of the packs."""

from __future__ import annotations

from pathlib import Path

import declarative_train
from declarative_train.core.diagnostics.rules import Rule, find_table, find_tables, read_rules
from declarative_train.core.packs import find_folder, find_packs


def catalogue() -> dict[str, Rule]:
    """Return the rules by code, read from the docstrings of their files without importing them."""
    tables = find_tables(Path(declarative_train.__file__).parent)
    folders = [find_folder(pack.checks) for pack in find_packs().values() if pack.checks]
    return read_rules(tables | {folder: find_table(folder) for folder in folders})
