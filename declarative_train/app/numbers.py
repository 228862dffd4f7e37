"""Parsers of numbers in options of the command line, which check their ranges."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    return _whole(text, 1)


def count(text: str) -> int:
    return _whole(text, 0)


def not_negative(text: str) -> float:
    value = _number(text)
    if value is None or not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value


def share(text: str) -> float:
    value = _number(text)
    if value is None or not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")
    return value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
