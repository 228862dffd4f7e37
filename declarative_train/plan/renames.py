"""`rename` of `model.weights`: what names in a file become, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypeVar

from declarative_train.components.datasets.files import shown
from declarative_train.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.plan.checks.parameters import rename_matches_nothing
from declarative_train.recipe.recipe import Recipe, Weights
from declarative_train.recipe.sections.model import DROP

T = TypeVar("T")


def renames_of(weights: Weights) -> dict[str, str | None]:
    return {prefix: None if into == DROP else into for prefix, into in weights.rename.items()}


def renamed(found: Mapping[str, T], rename: Mapping[str, str | None]) -> dict[str, T]:
    """The longest prefix that fits is replaced; what is renamed to None is left out."""
    prefixes = sorted(rename, key=len, reverse=True)
    kept: dict[str, T] = {}
    for name, item in found.items():
        prefix = next((each for each in prefixes if name.startswith(each)), "")
        into = rename.get(prefix, prefix)
        if into is not None:
            kept[into + name.removeprefix(prefix)] = item
    return kept


def idle_renames(
    recipe: Recipe, weights: Weights, rename: Mapping[str, str | None], found: Iterable[str]
) -> list[Diagnostic]:
    names = list(found)
    return [
        rename_matches_nothing(
            recipe.key_span(("model", "weights", weights.node, "rename", prefix)), prefix, shown(weights.path), names
        )
        for prefix in unmatched(names, rename)
    ]


def removed_renames(recipe: Recipe, node: str) -> tuple[Related, ...]:
    """Entries of `rename` that a derived recipe took away by a null."""
    path = ("model", "weights", node, "rename")
    gone = (each for each in recipe.document.dropped if each.path[:-1] == path and each.reason == "removed")
    return tuple(Related(each.by, f"this removes the base's entry for `{each.path[-1]}`") for each in gone)


def unmatched(found: Iterable[str], rename: Mapping[str, str | None]) -> list[str]:
    """The entries of `rename` that rename nothing."""
    names = list(found)
    return [prefix for prefix in rename if not any(name.startswith(prefix) for name in names)]


def same_name(found: Iterable[str], rename: Mapping[str, str | None]) -> tuple[str, str | None] | None:
    """Two tensors of a file that `rename` gives one name, of which one would be lost, and one hint."""
    before: dict[str, str] = {}
    for name in found:
        for new in renamed({name: name}, rename):
            if new in before:
                head, dot, _ = name.rpartition(".")
                left_out = json.dumps(head + dot or name)
                problem = f"has two tensors that would both be called {new}: {before[new]} and {name}"
                return problem, f"rename one of them to another name, or leave it out: rename: {{{left_out}: drop}}"
            before[new] = name
    return None
