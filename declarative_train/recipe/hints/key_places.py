"""Hints for unknown keys. A hint names the section that has the key. For a key of another framework, it says what the
key is called in recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from declarative_train.components.component import recipe_keys
from declarative_train.recipe.hints.aliases import KEYS as ALIASES
from declarative_train.recipe.sections.parallelism import Axes
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.top import Top
from declarative_train.recipe.validate import KINDS, children_of, table

SLIP = 0.7  # similarity above which a name is a misspelt key; `mode` and `nodes` are less similar


def home_of(name: str, near: str | None = None) -> str | None:
    """Return a help line for the unknown key `name`: the sections that have this key or, for a key of another
    framework, its name in recipes. Return None if there is no such key, or if `name` is probably a misspelling of
    `near`, the most similar key that is allowed in its place.

    The function is slow, because it reads the keys of all optimizers.
    """
    from difflib import SequenceMatcher  # imported only for mistakes

    if near is not None and name not in ALIASES and SequenceMatcher(None, name, near).ratio() > SLIP:
        return None
    if name == "mode":
        return "the mode of parallelism is `parallelism: ddp`; `mode` is a key of `sweep`, `early_stop` and `best`"
    for word in ALIASES.get(name, (name,)):
        if places := find_sections_with(word):
            break
    else:
        return None
    shown = " or ".join(f"`{place}`" if place else "the top level" for place in places[:3])
    if name in ALIASES and near == word:
        return f"its name here is `{word}`"
    if word == name:
        return f"`{name}` belongs in {shown}"
    return f"its name here is `{word}`, in {shown}"


def find_sections_with(word: str) -> list[str]:
    """Return the dotted paths of the sections that have the key `word`, the outermost first. The path "" is the top
    level."""
    return sorted(dict.fromkeys(path for path, key in _keys() if key == word), key=lambda path: path.count("."))


def find_key_path(name: str) -> str | None:
    """Return the dotted path of the key `name`, or of dtrain's key for it if `name` is from another framework. If
    several sections have the key, return the shortest path; if none has it, None."""
    for word in (*ALIASES.get(name, ()), name):
        if places := find_sections_with(word):
            return ".".join(part for part in (places[0], word) if part)
    return None


def _keys() -> Iterator[tuple[str, str]]:
    """Yield (path of the section, key) for every key of a recipe, except keys of nodes."""
    yield from _of(Top, "")
    yield from _of(Axes, "parallelism")


def _of(model: type[Section], path: str) -> Iterator[tuple[str, str]]:
    children = children_of(model)
    for name in (*recipe_keys(model), *model.short_forms):
        if name != model.inline:
            yield path, name
        child: Any = children.get(name)
        inner = path if name == model.inline else f"{path}.{name}" if path else name
        if child is None or child.holder is not None:
            continue
        if child.model in KINDS:
            known = table(child.model)
            yield from ((inner, key) for kind in known for key in recipe_keys(known[kind]))
        else:
            yield from _of(child.model, inner)


def home_in_axes(name: str, near: str | None) -> str | None:
    """Return a help line for the unknown key `name` inside `parallelism`; None if there is nothing to suggest. `near`:
    the most similar key that is allowed there."""
    if name in ("mode", "type", "strategy"):
        return "parallelism is a word (`fsdp`) or axes: `{data: {shard: all}}`, `{pipeline: {stages: 4, ...}}`"
    if name == "data_parallel":
        return "here it is an axis: `data: {replicate: N}`, or `data: {shard: N}`"
    return home_of(name, near)
