"""Texts without secrets: without values that recipes take from the environment, and without passwords and keys in URLs.

`masked` is for what is shown, and for what is kept to be looked at. What is kept to be used (a plan, the record of a
run) goes through `with_names`: a value of the environment is written as `{{ env.NAME }}`, and `with_values` puts it
back from the environment of the process that reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

SHORTEST = 6  # characters: a shorter value is not a secret, and is part of too many words

_NAME = re.compile(r"\{\{ env\.(\w+) \}\}")
_USER = re.compile(r"(?<=://)(?:[^/\s\"'@:]+:(?!:)[^\s\"']+|[^/\s\"']+)@")  # a key may hold `/`
_QUERY = re.compile(r"([?&][\w.-]+=)[^&#\s\"']+")

T = TypeVar("T")


class _Taken:
    """The values that were taken from the environment. `names`: of each its variable, the longest value first, all of
    which `pattern` finds. `made`: texts that templates made of one and that do not contain it. `num_reads`: how often
    one was asked for."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.pattern: re.Pattern[str] | None = None
        self.made: list[str] = []
        self.num_reads = 0


taken = _Taken()


def take_variable(name: str, value: str) -> None:
    """Keep in mind that a recipe or a plan uses a variable of the environment."""
    taken.num_reads += 1
    if len(value) < SHORTEST or value in taken.names:
        return
    if re.fullmatch(r"\w+", name):
        taken.names = dict(sorted([*taken.names.items(), (value, name)], key=lambda item: -len(item[0])))
        taken.pattern = re.compile("|".join(map(re.escape, taken.names)))
    else:
        take_made(value)


def take_made(text: str) -> str:
    """Keep in mind a text that a template made of the environment, such as a value in capitals, and return it."""
    if len(text) >= SHORTEST and text not in taken.made and with_names(text) == text:
        taken.made = sorted([*taken.made, text], key=len, reverse=True)
    return text


def taken_variables() -> tuple[tuple[str, str], ...]:
    """Return the variables that were taken, with their values."""
    return tuple((name, value) for value, name in taken.names.items())


def variables_in(text: str) -> list[str]:
    """Return the names of the variables whose values a text holds."""
    found = [name for value, name in taken.names.items() if value in text]
    return found or ["a variable of the environment"] * any(each in text for each in taken.made)


def masked(text: str) -> str:
    """Return a text without values of the environment, and with `***` for what URLs in it hold before `@` and as values
    of their query: passwords, keys, tokens."""
    if "://" in text:
        text = _QUERY.sub(r"\1***", _USER.sub("***@", text))
    text = with_names(text)
    for each in taken.made:
        text = text.replace(each, "***")
    return text


def with_names(text: str) -> str:
    """Return a text with `{{ env.NAME }}` for each value of the environment."""
    if taken.pattern is None:
        return text
    return taken.pattern.sub(lambda found: f"{{{{ env.{taken.names[found[0]]} }}}}", text)


def with_values(text: str) -> str:
    """Return a text with the values of the variables that `with_names` has named; one that is not set stays a name."""
    return _NAME.sub(lambda found: _value_of(found[1]) or found[0], text)


def _value_of(name: str) -> str | None:
    value = os.environ.get(name)
    if value is not None:
        take_variable(name, value)
    return value


def names_in(text: str) -> list[str]:
    """Return the variables that a text names as `with_names` does."""
    return list(dict.fromkeys(_NAME.findall(text)))


def in_texts(change: Callable[[str], str], value: T) -> T:
    """Return plain values (of JSON, or with tuples for lists) with each text in them changed; keys stay."""
    return _in_texts(change, value)  # type: ignore[return-value]


def _in_texts(change: Callable[[str], str], value: object) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _in_texts(change, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_in_texts(change, item) for item in value])
    return value
