"""A small valid recipe, and what is wrong with it once a test has laid something over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.recipe.load import Loaded, load

SMALL = """\
name: small
data:
  source: {type: synthetic, kind: classification, rows: 100, features: 4, classes: 3}
  fields:
    x: {columns: "x*"}
    y: {type: category, column: y, num_classes: 3}
  split: {validation: 0.2}
model:
  graph:
    hidden: {type: linear, out_features: 8, input: x}
    act:    {type: relu}
    logits: {type: linear, out_features: 3}
objective:
  loss: {type: cross_entropy, input: logits, target: y}
  metrics: [accuracy]
training:
  epochs: 5
  global_batch_size: 24
  optimizer: {type: adam, lr: 1e-3}
"""

Laid = Callable[..., Loaded]


@pytest.fixture
def small() -> str:
    return SMALL


@pytest.fixture
def laid(tmp_path: Path) -> Laid:
    """Loads `over` as `over.yaml`, which extends the small recipe (or `base`)."""

    def run(over: str = "", *, base: str = SMALL, set_: tuple[str, ...] = ()) -> Loaded:
        (tmp_path / "base.yaml").write_text(base)
        (tmp_path / "over.yaml").write_text(f"extends: base.yaml\n{over}")
        return load(str(tmp_path / "over.yaml"), set_=set_)

    return run


@pytest.fixture
def wrong(laid: Laid) -> Callable[..., list[Diagnostic]]:
    """What is wrong with the small recipe under `over`."""
    return lambda over="", **options: laid(over, **options).diagnostics


@pytest.fixture
def one(wrong: Callable[..., list[Diagnostic]]) -> Callable[..., Diagnostic]:
    """The only thing that is wrong."""

    def run(over: str = "", **options: object) -> Diagnostic:
        found = wrong(over, **options)
        assert len(found) == 1, found
        return found[0]

    return run
