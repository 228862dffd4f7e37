"""Recipes in a few lines, compiled."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from declarative_train import planner
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.plan import Plan
from declarative_train.recipe import load

BASE = """
name: small
data:
  source: {type: synthetic, kind: classification, rows: 1000, features: 20, classes: 10}
  fields:
    x: {column: x}
    y: {type: category, column: y, num_classes: 10}
  split: {validation: {type: last, fraction: 0.1}}
model:
  graph:
    hidden: {type: linear, out_features: 32, input: x}
    act: {type: relu}
    logits: {type: linear, out_features: 10}
objective:
  loss: {type: cross_entropy, input: logits, target: y}
  metrics: [accuracy]
training: {epochs: 5, global_batch_size: 96, optimizer: {type: adam, lr: 0.01}}
"""

Compile = Callable[..., tuple[Plan | None, list[Diagnostic]]]


@pytest.fixture
def compiled(tmp_path) -> Compile:  # type: ignore[no-untyped-def]
    """Return a function (fragment, *set) -> (plan, diagnostics) that compiles BASE with the fragment merged into it.
    G026 is left out: the recipes here are short chains of linear layers."""

    def run(fragment: str = "", *set_: str) -> tuple[Plan | None, list[Diagnostic]]:
        (tmp_path / "base.yaml").write_text(BASE)
        (tmp_path / "recipe.yaml").write_text("extends: base.yaml\n" + textwrap.dedent(fragment))
        loaded = load(str(tmp_path / "recipe.yaml"), set_=set_)
        assert loaded.recipe is not None, loaded.diagnostics
        plan, found = planner.compile(loaded.recipe)
        return plan, [each for each in found if each.code != "G026"]

    return run


@pytest.fixture
def planned(compiled: Compile) -> Callable[..., Plan]:
    """The same, without anything to complain about."""

    def run(fragment: str = "", *set_: str) -> Plan:
        plan, diagnostics = compiled(fragment, *set_)
        assert plan is not None, diagnostics
        assert not diagnostics
        return plan

    return run
