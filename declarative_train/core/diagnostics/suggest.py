"""Suggestions for a misspelt name: the nearest valid name, and the edit that inserts it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from declarative_train.core.diagnostics.diagnostic import Fix
from declarative_train.core.span import Span

MIN_LETTERS = 5  # shorter words are never taken for a typing error: `mse` and `mae`, `lr` and `l1` are different words


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that is spelled most like `name`, or None if none is similar."""
    from difflib import get_close_matches  # only needed for mistakes

    found = get_close_matches(name.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], *, most: int = 12) -> str:
    """Return a help line with the known name that is most like `name`, and with all known names if there are at most
    `most`. If no name is similar, the line lists the first `most` known names."""
    names = sorted(known)
    close = nearest(name, names)
    listed = ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
    if close is not None:
        return f"did you mean `{close}`?" + (f" known: {listed}" if len(names) <= most else "")
    return f"known: {listed}" if names else "there is none to choose from"


def hint_on_path(span: Span, path: str) -> str:
    """Return a help line for `path`, which does not exist. It says to which folder paths are relative. If the file
    exists in the working directory or next to the recipe, it also says how to write its path. `span`: position of the
    path."""
    if span.in_option:
        return "a path given by --set is relative to the working directory"
    if not os.path.isfile(span.path):  # a text without a file
        return "paths are relative to the working directory"
    folder = os.path.dirname(span.path) or "."
    start = f"paths are relative to the folder of {span.path}"
    written = os.path.relpath(path, folder)
    for there, where in (
        (written, "in the working directory"),
        (os.path.join(folder, os.path.basename(path)), "there"),
    ):
        if os.path.exists(there):
            return f"{start}, and `{os.path.normpath(there)}` is {where}: write `{os.path.relpath(there, folder)}`"
    return start


def suggest_fix(
    span: Span, name: str, known: Iterable[str], *, closed: bool = False, taken: Collection[str] = ()
) -> tuple[Fix, ...]:
    """Return the edit that replaces `name` by the most similar name in `known`, or () if none is similar.

    `taken`   names already in use at this position, which are not suggested
    `closed`  `known` has all names that exist, such as the keys of a section, so the edit of a typing error is safe. If
              users choose the names, it is never safe: the name may be right and its definition missing"""
    names = sorted(known)
    close = nearest(name, names)
    if close is None or close in taken:
        return ()
    return (Fix(span, close, safe=closed and is_slip(name, close, names), replaces=name),)


def is_slip(name: str, word: str, known: Iterable[str]) -> bool:
    """Return whether `name` is certainly a typing error for `word`: it has the same letters in another order, or one
    wrong letter, and no other known name is as near.

    Names with another first letter or other digits, and short words, are never typing errors (`prelu` is not `relu`,
    `conv1d` is not `conv2d`)."""
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
    """Return whether the words `one` and `other` differ by one letter added, left out or changed, or by two letters
    exchanged."""
    short, long = sorted((one, other), key=len)
    start = next((at for at, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(long) - len(short) == 1:
        return short[start:] == long[start + 1 :]
    if len(long) != len(short):
        return False
    swapped = short[:start] + short[start + 1 : start + 2] + short[start : start + 1] + short[start + 2 :]
    return short[start + 1 :] == long[start + 1 :] or swapped == long
