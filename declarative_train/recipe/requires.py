"""Key `requires` of a recipe: the versions of dtrain with which the recipe can be used."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.recipe.checks.keys import newer_dtrain, wrong_value
from declarative_train.source.node import Mapping, Scalar


def explain_by_version(tree: Mapping, diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """Return `diagnostics` unchanged if the recipe's key `requires` allows this version of dtrain. If it does not, put
    an error about it first. The help of each unknown key or type then says that the required version may have it. If
    `requires` cannot be parsed, append an error."""
    requires = tree.get("requires")
    if not isinstance(requires, Scalar) or not isinstance(requires.value, str):
        return diagnostics
    from declarative_train.core.machine import (
        UNINSTALLED,
        own_version,
    )  # few recipes need this import

    installed = own_version()
    try:
        if is_met(requires.value, installed) or installed == UNINSTALLED:
            return diagnostics
    except ValueError as problem:
        return [*diagnostics, wrong_value(requires.span, str(problem))]
    reason = f"this is dtrain {installed}, but the recipe requires {requires.value}, which may have it"
    softened = [d._replace(help=reason) if d.code in ("S001", "S005") else d for d in diagnostics]
    return [newer_dtrain(requires.span, requires.value, installed), *softened]


_FORM = re.compile(r"dtrain\s*(?P<conditions>[<>=!].*)")
_CONDITION = re.compile(r"\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<version>\d+(?:\.\d+)*)\s*")
_SIGNS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "!=": ne,
    "<": lt,
    "<=": le,
    "==": eq,
    ">": gt,
    ">=": ge,
}


def is_met(requires: str, version: str) -> bool:
    """Return whether `version` satisfies the conditions in `requires`, such as `dtrain>=0.2,<0.3`. Raises ValueError if
    `requires` has another form.
    """
    form = _FORM.fullmatch(requires.strip())
    conditions = form["conditions"].split(",") if form is not None else [""]
    met = True
    for condition in conditions:
        parts = _CONDITION.fullmatch(condition)
        if parts is None:
            raise ValueError(f"`{requires}` is not of the form `dtrain>=0.1` or `dtrain>=0.1,<0.3`")
        met = met and _SIGNS[parts["sign"]](*_pad(_numbers(version), _numbers(parts["version"])))
    return met


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers in a version: (0, 2, 0) for `0.2.0rc1`."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])


def _pad(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    length = max(len(one), len(other))
    return one + (0,) * (length - len(one)), other + (0,) * (length - len(other))
