"""Texts with a mark: `training:\\n  ep|ochs: 3` is the text without the `|`, and the place where it stood."""

from __future__ import annotations


def marked(text: str) -> tuple[str, int, int]:
    """The text, line and character, both from 0."""
    before, _, after = text.partition("|")
    return before + after, before.count("\n"), len(before) - before.rfind("\n") - 1
