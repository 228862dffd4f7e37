"""What a recipe decides, flat: each value by its dotted path, as `--set` names it; and how runs are told apart by it.

A run's name, the columns of `dtrain runs` and the hyper-parameters of TensorBoard all show the few settings that differ
from those of other runs, the most telling first, under names as short as they can be.
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

LONGEST_LABEL = 56  # characters of a run's name behind its time
LONGEST_VALUE = 20
MOST_SETTINGS = 4  # in a run's name
# the most telling first; what is not here comes before the last three
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
# they decide no number, or say what is known already
_TELLS_NOTHING = re.compile(
    r"name|requires|language|plugins|meta\..*|logging\..*|sweep\..*|data\.workers|checkpoint\..*"
)


def settings_of(recipe: Recipe) -> dict[str, object]:
    """Every value of the resolved recipe, defaults included; passwords in URLs are masked."""
    return {".".join(map(str, leaf.path)): _plain(leaf.value) for leaf in recipe.leaves()}


def _plain(value: Any) -> object:
    """What JSON can hold."""
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
    """To sort keys by, the most telling first."""
    for at, pattern in enumerate(_IMPORTANT):
        if re.fullmatch(pattern, key):
            return at, key
    late = next((at for at, pattern in enumerate(_LAST, 1) if re.fullmatch(pattern, key)), 0)
    return len(_IMPORTANT) + late, key


def telling(keys: Iterable[str]) -> list[str]:
    """Those that may tell runs apart, by importance."""
    return sorted((key for key in set(keys) if not _TELLS_NOTHING.fullmatch(key)), key=importance)


def differing(runs: Sequence[Settings]) -> list[str]:
    """The keys whose values are not the same in all runs, by importance; one that only repeats the values of an earlier
    one (a node's width, which is a var) is left out."""
    found: dict[tuple[str | None, ...], str] = {}
    for key in telling({key for settings in runs for key in settings}):
        values = tuple(_word(settings[key]) if key in settings else None for settings in runs)
        if len(set(values)) > 1:
            found.setdefault(values, key)
    return list(found.values())


def _word(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Each key under its last word, or as many as it takes for no two to be alike. A mode is called one."""
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


def shown(value: object) -> str:
    """As short as it can be understood."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list):
        return ",".join(map(shown, value))
    if isinstance(value, Mapping):
        return ",".join(shown(item) for item in value.values())
    return "none" if value is None else str(value)


def label(mode: str, asked: Mapping[str, object], others: Mapping[str, object] = {}) -> str:
    """What a run is called behind its time: its mode, what was asked for on the command line or by a sweep, and what
    else differs from its siblings. Characters that every file system and shell takes as they are."""
    found = {key: asked.get(key, others.get(key)) for key in [*telling(asked), *telling(set(others) - set(asked))]}
    found = {key: value for key, value in found.items() if not key.startswith("parallelism")}
    names = short_names(found)
    words = [f"{names[key]}={safe(shown(value))}" for key, value in found.items()][:MOST_SETTINGS]
    text = safe(mode, 40)
    for word in words:
        if len(text) + len(word) + 1 <= LONGEST_LABEL:
            text += f"-{word}"
    return text


def safe(text: str, longest: int = LONGEST_VALUE) -> str:
    text = text.rsplit("/", 1)[-1] if "/" in text else text
    return re.sub(r"[^A-Za-z0-9.,+_=-]+", "_", text).strip("._-")[:longest] or "none"


def asked_for(overrides: Iterable[str], settings: Settings) -> dict[str, object]:
    """Of the `--set` options of a plan: the settings that they decided. One that sets a whole mapping decided all
    below it."""
    found: dict[str, object] = {}
    for option in overrides:
        key = option.removeprefix("--set ").partition("=")[0].strip().replace('"', "").replace("'", "")
        found |= {name: value for name, value in settings.items() if name == key or name.startswith(f"{key}.")}
    return found
