"""Settings of a recipe by dotted path, as in `--set`; and the choice of the settings that distinguish runs.

A run's name, the columns of `dtrain runs` and the hyper-parameters in TensorBoard show only the settings that differ
between runs. The most important ones come first, and names are short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from declarative_train.core.secrets import masked
from declarative_train.recipe.recipe import Recipe

Settings = Mapping[str, object]

LONGEST_LABEL = 56  # characters of a run's name after its time
LONGEST_VALUE = 20
MOST_SETTINGS = 4  # settings in a run's name
# patterns of settings, the most important first; settings that match no pattern come after these and before `_LAST`
_IMPORTANT = (
    r"parallelism(\..*)?",
    r"training\.optimizer\.lr",
    r"training\.optimizer\.type",
    r"training\.(global_batch_size|epochs|steps)",
    r"training\.optimizer\..*",
    r"training\.lr_schedule\..*",
    r"training\..*",
    r"vars\..*",
    r"model\..*",
    r"objective\..*",
    r"data\..*",
    r"layout\..*",
)
_LAST = (r"seed", r"evaluation\..*", r"(checkpoint|logging|meta)\..*")
# settings that cannot distinguish runs: they change no number, or repeat what other settings say
_UNINFORMATIVE = re.compile(
    r"name|requires|language|plugins|meta\..*|logging\..*|sweep\..*|data\.workers|checkpoint\..*"
)


def settings_of(recipe: Recipe) -> dict[str, object]:
    """Return a dict from dotted path to value, for every value of the resolved recipe, defaults included. Passwords in
    URLs are masked."""
    return {".".join(map(str, leaf.path)): _plain(leaf.value) for leaf in recipe.leaves()}


def _plain(value: Any) -> object:
    """Convert a value to types that JSON can store. Passwords in texts are masked."""
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return masked(str(value))


def importance(key: str) -> tuple[int, str]:
    """Return a sort key for the dotted path `key` of a setting. Important settings have small sort keys."""
    for at, pattern in enumerate(_IMPORTANT):
        if re.fullmatch(pattern, key):
            return at, key
    late = next((at for at, pattern in enumerate(_LAST, 1) if re.fullmatch(pattern, key)), 0)
    return len(_IMPORTANT) + late, key


def select_distinguishing(keys: Iterable[str]) -> list[str]:
    """Return the keys that matter when two runs are compared as experiments, the most important first. Keys of logging,
    for example, are left out."""
    return sorted((key for key in set(keys) if not _UNINFORMATIVE.fullmatch(key)), key=importance)


def find_differing(runs: Sequence[Settings]) -> list[str]:
    """Return the keys of the settings that differ between runs, the most important first. If several settings change
    together, such as a variable and a width that is computed from it, only the most important one is returned."""
    found: dict[tuple[str | None, ...], str] = {}
    for key in select_distinguishing({key for settings in runs for key in settings}):
        values = tuple(_word(settings[key]) if key in settings else None for settings in runs)
        if len(set(values)) > 1:
            found.setdefault(values, key)
    return list(found.values())


def _word(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def shorten_names(keys: Iterable[str]) -> dict[str, str]:
    """Return a dict from key to a short name: the shortest ending of the key that no other key has. The name of
    `parallelism` is "mode"."""
    names = {}
    left = list(dict.fromkeys(keys))
    parts = {key: ["mode"] if key == "parallelism" else _parts(key) for key in left}
    for key in left:
        words = parts[key]
        for count in range(1, len(words) + 1):
            end = words[-count:]
            if not any(other != key and parts[other][-count:] == end for other in left):
                break
        names[key] = ".".join(end)
    return names


def _parts(key: str) -> list[str]:
    words = key.split(".")
    return words[:-1] if words[-1] == "type" and len(words) > 1 else words


def format_value(value: object) -> str:
    """Return a value as short text for a table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list):
        return ",".join(map(format_value, value))
    if isinstance(value, Mapping):
        return ",".join(format_value(item) for item in value.values())
    return "none" if value is None else str(value)


def label(mode: str, asked: Mapping[str, object], others: Mapping[str, object] = {}) -> str:
    """Return the last part of a run's name: the mode and the most important settings. It is safe in file names and
    shells. `asked`: settings from the command line or a sweep. `others`: further settings, which differ from those of
    an earlier run."""
    found = {
        key: asked.get(key, others.get(key))
        for key in [*select_distinguishing(asked), *select_distinguishing(set(others) - set(asked))]
    }
    found = {key: value for key, value in found.items() if not key.startswith("parallelism")}
    names = shorten_names(found)
    words = [f"{names[key]}={safe(format_value(value))}" for key, value in found.items()][:MOST_SETTINGS]
    text = safe(mode, 40)
    for word in words:
        if len(text) + len(word) + 1 <= LONGEST_LABEL:
            text += f"-{word}"
    return text


def safe(text: str, longest: int = LONGEST_VALUE) -> str:
    """Make a text safe for file names and shells: take the part after the last "/", replace other characters by "_",
    and cut it to `longest` characters."""
    text = text.rsplit("/", 1)[-1] if "/" in text else text
    return re.sub(r"[^A-Za-z0-9.,+_=-]+", "_", text).strip("._-")[:longest] or "none"


def select_overridden(overrides: Iterable[str], settings: Settings) -> dict[str, object]:
    """Return the settings that `--set` options changed, with their values. `overrides`: the options. `settings`: all
    settings of the plan. An option that sets a mapping changes every setting below it."""
    found: dict[str, object] = {}
    for option in overrides:
        key = option.removeprefix("--set ").partition("=")[0].strip().replace('"', "").replace("'", "")
        found |= {name: value for name, value in settings.items() if name == key or name.startswith(f"{key}.")}
    return found
