"""Differences between two plans, named by keys of the recipe. Only values that affect the numbers of a run are
compared."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeGuard

from declarative_train.plan.codec import select_deciding
from declarative_train.plan.plan import Plan

_LONGEST = 60  # characters of a printed value
_PLACES = frozenset({"path", "folder", "from", "pretrained"})

# pattern of a path in the plan -> key of the recipe
_KEYS = (
    (r"training\.num_steps", "training.steps"),
    (r"training\.num_warmup_steps", "training.lr_schedule.warmup"),
    (r"training\.ema_decay", "training.ema.decay"),
    (r"global_batch_size", "training.global_batch_size"),
    (r"weights\b(.*)", r"model.weights\1"),
    (r"(?:batch_)?graph\.(.*)", r"model.graph.\1"),
    (r"parameters\.(.*)", r"model.parameters.\1"),
    (r"objective\.terms\.loss\b(.*)", r"objective.loss\1"),
    (r"objective\.terms\.(.*)", r"objective.losses.\1"),
    (r"data\.sets\.(.*)\.split\b(.*)", r"data.split.\1\2"),
)
# values that follow from others in the plan: reported only if nothing else changed
_FOLLOWS = re.compile(
    r"(batch_)?graph\.(.*\.)?(inputs|outputs)\.[^.]*\.(shape|dtype|num_values)"
    r"|(batch_)?graph\.(.*\.)?outputs\..*"
    r"|parameters\.(?!.*\.(frozen|lr_scale|weight_decay|init|tie|optimizer|storage)\b).*"
    r"|data\.seed|data\..*\.(num_samples|tensor\..*|statistics.*)"
    r"|.*\.(kind|name|block|target)"
)


class Change(NamedTuple):
    """Difference between two plans in one value. `key`: key of the value in the recipe, or `contents` for the content
    of data files. `sentence`: the difference in words."""

    key: str
    sentence: str


def changes(before: Plan, now: Plan) -> list[Change]:
    """Return the differences between two plans, each with a sentence such as "`training.optimizer.lr` was 0.1 and is
    0.2". If all copies of a `repeat` differ in the same way, there is one entry for all of them."""
    was, found = _deciding_values(before, now)
    old, new = _values(before, was), _values(now, found)
    old_entries, new_entries = set(_entries(was)), set(_entries(found))
    came_or_went = old_entries ^ new_entries
    changed = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
    # one sentence for a changed type covers the keys below it: another type has other keys
    above = came_or_went | {key.removesuffix(".type") for key in changed if key.endswith(".type")}
    own = [key for key in changed if not _FOLLOWS.fullmatch(key) and (key.endswith(".type") or not _below(key, above))]
    own = [key for key in own if not _below(key, came_or_went)]
    sentences: dict[tuple[str, str], list[str]] = {}
    for key in own or ([] if came_or_went else changed):
        sentences.setdefault((_without_copy_numbers(key), _change(old.get(key), new.get(key))), []).append(key)
    for entry in sorted(came_or_went):
        if not _below(entry, came_or_went) and not _FOLLOWS.fullmatch(entry):
            sentences.setdefault(
                (_without_copy_numbers(entry), "is new" if entry in new_entries else "is gone"), []
            ).append(entry)
    return [Change(_recipe_key(keys[0]), _sentence(keys, change)) for (_, change), keys in sentences.items()]


def _below(key: str, above: set[str]) -> bool:
    return any(key.startswith(f"{one}.") for one in above)


def _without_copy_numbers(key: str) -> str:
    """Return a dotted key without the numbers of copies: `layers.width` for `layers.3.width`."""
    return re.sub(r"\.\d+(?=\.|$)", "", key)


def _sentence(keys: list[str], change: str) -> str:
    if keys == ["contents"]:
        return "the contents of the data files changed"
    more = f" (and {len(keys) - 1} more like it)" if len(keys) > 1 else ""
    return f"`{_recipe_key(keys[0])}`{more} {change}"


def _change(was: object, found: object) -> str:
    return f"was {_format_value(was)} and is {_format_value(found)}"


def _deciding_values(before: Plan, now: Plan) -> tuple[object, object]:
    """Return, for each of the two plans, the settings that decide the numbers of a run. If the recipes are in different
    folders, paths are made relative to them, so that moving a recipe is not a difference."""
    homes = [os.path.dirname(plan.files[0].path) if plan.files else "" for plan in (before, now)]
    values = select_deciding(before), select_deciding(now)
    if homes[0] == homes[1] or not all(map(os.path.isabs, homes)):
        return values
    return _relative_to(homes[0], values[0]), _relative_to(homes[1], values[1])


def _relative_to(home: str, value: object, key: str = "") -> object:
    if isinstance(value, Mapping):
        return {name: _relative_to(home, item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_relative_to(home, item, key) for item in value]
    is_place = key in _PLACES and isinstance(value, str) and os.path.isabs(value)
    return os.path.relpath(str(value), home) if is_place else value


def _values(plan: Plan, of: object) -> dict[str, object]:
    """Return `of`, values of the plan as nested dicts and lists, as a flat dict from dotted path to value. If the
    recipe gives the length of the run in epochs, `training.epochs` replaces `training.num_steps`."""
    found = dict(_leaves(of))
    if plan.training.num_epochs is not None:
        found["training.epochs"] = plan.training.num_epochs
        del found["training.num_steps"]
    return found


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted path, value) for each value in nested dicts and lists, except None and []. In a list whose items
    have names, the path has the item's name; any other list is one value."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif _is_named(value):
        for item in value:
            yield from _leaves(item, f"{path}.{item['name']}")
    elif value is not None and value != []:
        yield path, value


def _entries(value: object, path: str = "") -> Iterator[str]:
    """Yield the dotted path of each list item that has a name (node, field, set, loss, metric, parameter), in nested
    dicts and lists. `path`: the path of `value` itself."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entries(item, f"{path}.{key}" if path else str(key))
    elif _is_named(value):
        for item in value:
            yield f"{path}.{item['name']}"
            yield from _entries(item, f"{path}.{item['name']}")


def _is_named(value: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(value, list) and any(isinstance(item, Mapping) and "name" in item for item in value)


def _recipe_key(path: str) -> str:
    path = path.replace(".component.", ".").replace(".nodes.", ".").removesuffix(".expression")
    path = re.sub(r"(?<=\.)graph\.", "", path)
    for pattern, key in _KEYS:
        found = re.fullmatch(pattern, path)
        if found:
            return found.expand(key)
    return path


def _format_value(value: object) -> str:
    """Return a value as text, spelt as in a recipe. A long text is cut."""
    if value is None:
        return "not set"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value.removesuffix(":output") if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
