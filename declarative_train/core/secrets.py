"""Removal of secrets from texts: values that recipes take from the environment, passwords and keys in URLs.

masked       for text that is only displayed or logged
with_names   for text that is read again later: writes `{{ env.NAME }}` instead of a value of the environment
with_values  replaces `{{ env.NAME }}` by the value in the environment of the process that reads the text"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

SHORTEST = 6  # characters: a shorter value is not a secret, and occurs in too many words

_NAME = re.compile(r"\{\{ env\.(\w+) \}\}")
_USER = re.compile(r"(?<=://)(?:[^/\s\"'@:]+:(?!:)[^\s\"']+|[^/\s\"']+)@")  # a key may hold `/`
_QUERY = re.compile(r"([?&][\w.-]+=)[^&#\s\"']+")

T = TypeVar("T")


class _UsedVariables:
    """Record of the environment variables that recipes or plans have read. Their values must not appear in texts.

    names       {value: name of its variable}, the longest value first
    pattern     regular expression that matches any of the values; None if there are none
    made        texts that templates computed from a value and that do not contain it, such as the value in capitals
    num_reads   how many times a variable was read
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.pattern: re.Pattern[str] | None = None
        self.made: list[str] = []
        self.num_reads = 0


used_variables = _UsedVariables()


def record_variable(name: str, value: str) -> None:
    """Record the value of an environment variable that a recipe or a plan uses, so that `masked` and `with_names` find
    it in texts. Values shorter than SHORTEST are not recorded."""
    used_variables.num_reads += 1
    if len(value) < SHORTEST or value in used_variables.names:
        return
    if re.fullmatch(r"\w+", name):
        used_variables.names = dict(
            sorted([*used_variables.names.items(), (value, name)], key=lambda item: -len(item[0]))
        )
        used_variables.pattern = re.compile("|".join(map(re.escape, used_variables.names)))
    else:
        record_derived(value)


def record_derived(text: str) -> str:
    """Record `text` as a secret that must not appear in other texts, and return it. `text`: computed by a template from
    an environment variable, such as the value in capitals."""
    if len(text) >= SHORTEST and text not in used_variables.made and with_names(text) == text:
        used_variables.made = sorted([*used_variables.made, text], key=len, reverse=True)
    return text


def list_variables() -> tuple[tuple[str, str], ...]:
    """Return (name, value) of each environment variable that `record_variable` recorded."""
    return tuple((name, value) for value, name in used_variables.names.items())


def variables_in(text: str) -> list[str]:
    """Return the names of the environment variables whose values occur in `text`, among those that recipes or plans
    have read. If none occurs, but a text that a template computed from such a value does, return [`a variable of the
    environment`]."""
    found = [name for value, name in used_variables.names.items() if value in text]
    return found or ["a variable of the environment"] * any(each in text for each in used_variables.made)


def masked(text: str) -> str:
    """Return a text without secrets. Each recorded value of an environment variable becomes `{{ env.NAME }}`, and a
    text computed from one becomes `***`. In URLs, `***` also replaces the user name and password, and every value of
    the query."""
    if "://" in text:
        text = _QUERY.sub(r"\1***", _USER.sub("***@", text))
    text = with_names(text)
    for each in used_variables.made:
        text = text.replace(each, "***")
    return text


def with_names(text: str) -> str:
    """Return a text in which `{{ env.NAME }}` replaces each value of an environment variable that templates used."""
    if used_variables.pattern is None:
        return text
    return used_variables.pattern.sub(lambda found: f"{{{{ env.{used_variables.names[found[0]]} }}}}", text)


def with_values(text: str) -> str:
    """Return a text in which each `{{ env.NAME }}` is replaced by the value of that variable. If a variable is not set,
    its `{{ env.NAME }}` is kept."""
    return _NAME.sub(lambda found: _value_of(found[1]) or found[0], text)


def _value_of(name: str) -> str | None:
    value = os.environ.get(name)
    if value is not None:
        record_variable(name, value)
    return value


def names_in(text: str) -> list[str]:
    """Return the names of the variables that a text contains as `{{ env.NAME }}`."""
    return list(dict.fromkeys(_NAME.findall(text)))


def in_texts(change: Callable[[str], str], value: T) -> T:
    """Return a copy of plain Python data (as from JSON; tuples allowed) in which `change` was applied to each text.
    Keys of mappings stay unchanged."""
    return _in_texts(change, value)  # type: ignore[return-value]


def _in_texts(change: Callable[[str], str], value: object) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _in_texts(change, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_in_texts(change, item) for item in value])
    return value
