"""`--select` and `--ignore`: which diagnostics to show, by code or by the beginning of a code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Selection(NamedTuple):
    """Prefixes; the longest one that fits a code decides, and `ignore` wins when both are equally long.

    Nothing selected means everything.
    """

    selected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @classmethod
    def parse(cls, *, select: str = "", ignore: str = "") -> Selection:
        """From the words of the options: codes or prefixes, with commas or blanks between."""
        return cls(_prefixes(select), _prefixes(ignore))

    def takes(self, code: str) -> bool:
        wanted = max((len(prefix) for prefix in self.selected if code.startswith(prefix)), default=-1)
        unwanted = max((len(prefix) for prefix in self.ignored if code.startswith(prefix)), default=-1)
        return unwanted < wanted if self.selected else unwanted < 0

    def unknown(self, codes: Iterable[str]) -> tuple[str, ...]:
        """The prefixes that fit none of `codes`: misspelt ones."""
        known = list(codes)
        given = dict.fromkeys((*self.selected, *self.ignored))
        return tuple(prefix for prefix in given if not any(code.startswith(prefix) for code in known))


def _prefixes(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.upper() for word in re.split(r"[,\s]+", text) if word))
