"""The rules of this room that look at more than one value: a draft in, diagnostics out. None of them needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.recipe.checks import RULES, text_rules
from declarative_train.recipe.checks.blocks import bad_name
from declarative_train.recipe.draft import Draft
from declarative_train.source.node import Mapping, find
from declarative_train.terms.names import is_name

_Rule = Callable[[Draft], Iterator[Diagnostic]]


def _rules() -> Iterator[_Rule]:
    """Those that look at a draft, by name."""
    for place in sorted(RULES.values(), key=lambda place: place.rpartition(".")[2]):
        family, name = place.split(".")
        if family.endswith("_rules") and family != "text_rules":
            yield getattr(import_module(f"declarative_train.recipe.checks.{family}"), name)


CHECKS: tuple[_Rule, ...] = tuple(_rules())

NAMED = {  # what has a name besides nodes and blocks
    "a field": ("data", "fields"),
    "a set": ("data", "split"),
    "a loss": ("objective", "losses"),
    "a metric": ("objective", "metrics"),
}


def check(draft: Draft, written: Mapping) -> list[Diagnostic]:
    """`written` is the merged tree before its templates are rendered."""
    found = [*text_rules.exclusive_keys(draft.tree), *_bad_names(draft.tree), *text_rules.secret_in_recipe(written)]
    found += text_rules.deprecated_key(written)
    for rule in CHECKS:
        found += rule(draft)
    return found


def _bad_names(tree: Mapping) -> Iterator[Diagnostic]:
    for what, path in NAMED.items():
        holder = find(tree, path)
        for entry in holder if isinstance(holder, Mapping) else ():
            if what == "a metric" and isinstance(entry.value, Mapping) and entry.value.get("type") is None:
                continue  # its name is its type, and reported as one
            if not is_name(entry.name):
                yield bad_name(entry.key.span, entry.name, what)
