"""Search for a word in the whole recipe language: a key, a type, a function, or a word of another tool."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from declarative_train.components.expressions.functions import FUNCTIONS
from declarative_train.core.diagnostics.suggest import is_slip, nearest
from declarative_train.recipe.hints import aliases, relocated_keys
from declarative_train.recipe.hints.key_places import home_of, paths_of
from declarative_train.recipe.schema import schema

_MOST = 3  # places that are named for one key


def find_word(word: str, names: Collection[str]) -> str | None:
    """Return a sentence about where the recipe language has `word` or an equivalent; None if it has neither. `names`:
    all component types."""
    for each in dict.fromkeys((word, word.lower())):
        found = [hint for hint in (_as_type(each, names), _as_key(each), _elsewhere(each)) if hint is not None]
        if found:
            return "; ".join(found)
    close = nearest(word, names)
    return f"did you mean `{close}`?" if close is not None and is_slip(word, close, names) else None


def hint_on_foreign_word(word: str, names: Collection[str]) -> str | None:
    """Return a sentence on what another tool's word is called here, or what to do without it; None if it is unknown.
    `names`: all types."""
    for each in dict.fromkeys((word, word.lower())):
        hint = _elsewhere(each) or (None if each in names else _as_type(each, names))
        if hint is not None:
            return hint
    return None


def _as_type(word: str, names: Collection[str]) -> str | None:
    """Return a sentence about the type that corresponds to a class of another library, or about a way to do without it;
    None if there is neither."""
    here, letters = aliases.type_here(word, names), aliases.letters(word)
    return f"its name here is `{here}`" if here else aliases.NOT_BUILT.get(letters) or relocated_keys.MODES.get(letters)


def _as_key(word: str) -> str | None:
    """Return a sentence about the sections that have the key `word`, or the expression function `word`; None if there
    are none."""
    places = paths_of(word)
    if not places:
        places = [name.rpartition(".")[2] for name, keys in _definitions().items() if word in keys]
    if not places:
        return "it is a function of expressions" if word in FUNCTIONS else None
    more = f" and {len(places) - _MOST} more" if len(places) > _MOST else ""
    return f"it is a key of {', '.join(f'`{place}`' if place else 'the top level' for place in places[:_MOST])}{more}"


@cache
def _definitions() -> dict[str, frozenset[str]]:
    """Return the keys of every mapping of the recipe language, by the name of the mapping in the JSON schema."""
    return {name: frozenset(each.get("properties", ())) for name, each in schema()["$defs"].items()}


def _elsewhere(word: str) -> str | None:
    """Return a sentence about the equivalent of another tool's word; None if there is none."""
    if word in aliases.OTHERWISE:
        key, rest = aliases.OTHERWISE[word]
        return f"its name here is `{key}`, {rest}"
    hints = (
        each[word]
        for each in (aliases.NOTES, relocated_keys.ANYWHERE, *relocated_keys.IN_SECTIONS.values())
        if word in each
    )
    if (hint := next(hints, None)) is not None or word not in aliases.KEYS:
        return hint
    return home_of(word) or f"its name here is `{aliases.KEYS[word][0]}`"
