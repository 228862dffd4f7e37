"""The rules of this room that look at more than one value: a draft in, diagnostics out. None of them needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.recipe.checks import RULES, deprecated_key, exclusive_keys, secret_in_recipe
from declarative_train.recipe.checks.blocks import bad_name
from declarative_train.recipe.draft import Draft
from declarative_train.source.node import Mapping, find
from declarative_train.terms.names import is_name

OF_TEXT = {"deprecated_key", "displaced_loss", "exclusive_keys", "secret_in_recipe"}  # they look at trees, not drafts
CHECKS: tuple[Callable[[Draft], Iterator[Diagnostic]], ...] = tuple(
    import_module(f"declarative_train.recipe.checks.{name}").check
    for name in sorted(RULES.values())
    if "." not in name and name not in OF_TEXT  # a message of a pass has its family's file before it
)


NAMED = {  # what has a name besides nodes and blocks
    "a field": ("data", "fields"),
    "a set": ("data", "split"),
    "a loss": ("objective", "losses"),
    "a metric": ("objective", "metrics"),
}


def check(draft: Draft, written: Mapping) -> list[Diagnostic]:
    """`written` is the merged tree before its templates are rendered."""
    found = [*exclusive_keys.check(draft.tree), *_bad_names(draft.tree), *secret_in_recipe.check(written)]
    found += deprecated_key.check(written)
    for rule in CHECKS:
        found += rule(draft)
    return found


def _bad_names(tree: Mapping) -> Iterator[Diagnostic]:
    for what, path in NAMED.items():
        holder = find(tree, path)
        for entry in holder if isinstance(holder, Mapping) else ():
            if what == "a metric" and isinstance(entry.value, Mapping) and entry.value.get("type") is None:
                continue  # its name is its type, and told as one
            if not is_name(entry.name):
                yield bad_name(entry.key.span, entry.name, what)
