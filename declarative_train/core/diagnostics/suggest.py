"""The nearest valid name to what the user typed, and the edit that puts it there."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from declarative_train.core.diagnostics.diagnostic import Fix
from declarative_train.core.span import Span

MIN_LETTERS = 5  # of a word that a slip is believed of: `mse` and `mae`, `lr` and `l1` are words of their own


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is close."""
    from difflib import get_close_matches  # which only mistakes need

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


def paths_start(span: Span) -> str:
    """A help line for a path that leads nowhere: what it is relative to, by where it was written."""
    if span.in_option:
        return "a path given by --set is relative to the working directory"
    return "paths are relative to the file that writes them"


def respelt(
    span: Span, name: str, known: Iterable[str], *, closed: bool = False, taken: Collection[str] = ()
) -> tuple[Fix, ...]:
    """The edit that writes the nearest name in the place of `name`, or none.

    `closed`: `known` is all that the language has, so that a slip of one letter has one meaning and the edit is safe.
    Names that a user gave are never safe: another one may be missing. `taken` names stand beside it already.
    """
    names = sorted(known)
    close = nearest(name, names)
    if close is None or close in taken:
        return ()
    return (Fix(span, close, safe=closed and is_slip(name, close, names), replaces=name),)


def is_slip(name: str, word: str, known: Iterable[str]) -> bool:
    """Whether `name` can be nothing but `word`: the same letters, or one letter wrong, and no other known name as near.

    The first letter, digits and short words are not believed to slip (`prelu` is no `relu`, `conv1d` no `conv2d`).
    """
    typed, meant = _letters(name), _letters(word)
    others = [_letters(other) for other in known if other != word]
    if typed == meant:
        return meant not in others
    if min(len(typed), len(meant)) < MIN_LETTERS or typed[0] != meant[0] or _digits(typed) != _digits(meant):
        return False
    return _is_one_edit(typed, meant) and not any(other == typed or _is_one_edit(typed, other) for other in others)


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _digits(name: str) -> list[str]:
    return [character for character in name if character.isdigit()]


def _is_one_edit(one: str, other: str) -> bool:
    """One letter added, left out, changed, or two neighbours exchanged."""
    short, long = sorted((one, other), key=len)
    start = next((at for at, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(long) - len(short) == 1:
        return short[start:] == long[start + 1 :]
    if len(long) != len(short):
        return False
    swapped = short[:start] + short[start + 1 : start + 2] + short[start : start + 1] + short[start + 2 :]
    return short[start + 1 :] == long[start + 1 :] or swapped == long
