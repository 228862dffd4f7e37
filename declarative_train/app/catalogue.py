"""Every diagnostic there is: the manual pages of all rooms' rules."""

from __future__ import annotations

from pathlib import Path

import declarative_train
from declarative_train.core.diagnostics.rules import Rule, find_tables, read_rules


def catalogue() -> dict[str, Rule]:
    """The rules by code, read from the docstrings of their files; nothing of them is imported."""
    return read_rules(find_tables(Path(declarative_train.__file__).parent))
