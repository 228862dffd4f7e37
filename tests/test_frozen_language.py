"""`language: 1`: what a recipe means, as data. Words may come; what is there moves only under another number.

`ACCEPT=1` writes new facts, never one that moved. `ACCEPT=moved` writes those too: only while no dtrain that knows the
number is released.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import pytest

from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.recipe import merge_rules
from declarative_train.recipe.sections.top import LANGUAGE_VERSION
from tests import frozen_language

GOLDEN = Path(__file__).parent / "golden" / f"language_{LANGUAGE_VERSION}.json"
WHAT_TO_DO = f"""recipes of language {LANGUAGE_VERSION} would mean something else.
Take the change back; or give it to the next language: raise LANGUAGE_VERSION in recipe/sections/top.py, keep what the
old number means for recipes that name it (or mend them by `--fix`), say it in CHANGELOG with what to do, and write
tests/golden/language_{LANGUAGE_VERSION + 1}.json with ACCEPT=1. What moved:"""

now = cache(frozen_language.language)


def moved(facts: dict[str, str], held: dict[str, str]) -> list[str]:
    return [f"{key}: was {was}, is {facts.get(key, 'gone')}" for key, was in held.items() if facts.get(key) != was]


def held() -> dict[str, str]:
    found: dict[str, str] = json.loads(GOLDEN.read_text()) if GOLDEN.is_file() else {}
    return found


def test_nothing_of_the_language_moves_under_its_number() -> None:
    if os.environ.get("ACCEPT"):
        kept = {} if os.environ["ACCEPT"] == "moved" else held()
        GOLDEN.write_text(json.dumps(now() | kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    problems = moved(now(), held())
    assert not problems, "\n  ".join([WHAT_TO_DO, *problems[:20]])


def test_every_fact_of_the_language_is_held() -> None:
    new = now().keys() - held().keys()
    assert not new, f"{len(new)} facts are not frozen yet: run this file with ACCEPT=1: {sorted(new)[:10]}"


@pytest.mark.parametrize(
    "fact",
    [
        "function.softmax", "optimizer.adamw.weight_decay", "reference.lstm.hidden", "selector.layers.{0..7}",
        "duration.5%", "expression.-a ** 2", "shape.mean(x, dim=1)", "rows.:-1", "template.{{ vars.a * 2 }}",
        "start.normal", "start of conv.weight", "order.seed 0, epoch 0, 10 samples", "factor.cosine",
        "metrics.validation/loss/main", "form.objective: {loss: {type: mse}}", "merge.training: {steps: 5}",
        "exclusive.training.epochs.steps", "reserved", "batch.ddp, layout: {gpus: 4}, global_batch_size: 96",
        "block.gpt.width", "section.Training.ema.decay",
    ],
)  # fmt: skip
def test_each_part_of_the_language_is_there(fact: str) -> None:
    assert held()[fact] == now()[fact]


def test_a_default_a_rule_or_a_number_that_moves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPTIMIZERS["adamw"].model_fields["weight_decay"], "default", 0.1)
    monkeypatch.setattr(merge_rules, "EXCLUSIVE", merge_rules.EXCLUSIVE[1:])
    monkeypatch.setattr(frozen_language, "EXCLUSIVE", merge_rules.EXCLUSIVE)
    monkeypatch.setattr("declarative_train.data.order._ROUNDS", 5)
    problems = moved(frozen_language.language(), held())
    assert [text.partition(": was")[0] for text in problems] == [
        "exclusive.training.epochs.steps",
        "optimizer.adamw.weight_decay",
        "order.seed 0, epoch 0, 100000 samples",
    ]
