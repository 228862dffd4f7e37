"""The nearest valid name to what the user typed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is close."""
    found = get_close_matches(name.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], *, most: int = 12) -> str:
    """A help line: the nearest name, and the known ones when they are few."""
    names = sorted(known)
    close = nearest(name, names)
    listed = ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
    if close is not None:
        return f"did you mean `{close}`?" + (f" known: {listed}" if len(names) <= most else "")
    return f"known: {listed}" if names else "there is none to choose from"
