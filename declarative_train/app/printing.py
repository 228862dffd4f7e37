"""Output of commands for people: secrets are masked and terminal control characters are replaced."""

from __future__ import annotations

import sys

from declarative_train.core.secrets import masked
from declarative_train.core.untrusted import in_lines


def print_text(text: str, *, end: str = "\n") -> None:
    """Print a text on standard output."""
    print(in_lines(masked(text)), end=end)


def print_error(text: str) -> None:
    """Print a text on standard error, after the name of the program."""
    print(f"dtrain: {in_lines(masked(text))}", file=sys.stderr)
