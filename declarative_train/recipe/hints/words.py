"""Words of other frameworks, with hints: what they are called in recipes, or how to do without them."""

from __future__ import annotations

from collections.abc import Collection

from declarative_train.recipe.hints import aliases, relocated_keys
from declarative_train.recipe.hints.key_places import home_of


def hint_on_foreign_word(word: str, names: Collection[str]) -> str | None:
    """Return a sentence on `word`, a name from another tool: what it is called in recipes, or how to do without it.
    None if the word is unknown. `names`: all component types."""
    for each in dict.fromkeys((word, word.lower())):
        hint = _hint_on_word(each) or (None if each in names else _hint_on_class(each, names))
        if hint is not None:
            return hint
    return None


def _hint_on_class(word: str, names: Collection[str]) -> str | None:
    """Return a sentence on `word`, a class of another library: which component type corresponds to it, or how to do
    without the class. None if neither is known. `names`: all component types."""
    here, letters = aliases.translate_type(word, names), aliases.letters(word)
    return (
        f"its name here is `{here}`" if here else aliases.hint_on_type(word, names) or relocated_keys.MODES.get(letters)
    )


def _hint_on_word(word: str) -> str | None:
    """Return a sentence that says what a word of another tool is called in recipes, or how to do without it. Return
    None if the word is unknown. `word`: a key, a function or another name; for a class use `_hint_on_class`."""
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
