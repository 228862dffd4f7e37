"""`auto` traces a few candidates: it takes what it would take if it traced all that could win."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from declarative_train.api.tracer import LateTracer
from declarative_train.components.hardware import HARDWARE
from declarative_train.plan import compile as compile_plan
from declarative_train.plan import compiler
from declarative_train.plan.auto.target import Target
from declarative_train.plan.plan import Plan
from declarative_train.plan.predicted import TAKEN, CandidatePlan
from declarative_train.recipe import load

RECIPE = """
name: grid
data:
  source: {{type: synthetic, kind: tokens, rows: 20000}}
  window: {{length: 65, stride: 64}}
  fields:
    tokens: {{column: tokens, rows: ":-1"}}
    next: {{column: tokens, rows: "1:"}}
model: {{graph: {{logits: {{type: {model}, layers: 4, width: 64, heads: 4, input: tokens}}}}}}
objective: {{loss: {{type: cross_entropy, input: logits, target: next}}}}
training:
  steps: 2
  global_batch_size: {batch}
  precision: {precision}
  activation_checkpointing: {checkpointing}
  optimizer: {{type: adamw, lr: 1e-3}}
parallelism: auto
layout: {{gpus: {gpus}, hardware: h100-sxm}}
"""
MODELS = {"small": "llama, vocabulary: 256", "wide": "gpt, vocabulary: 4000"}
GRID = [
    (model, gpus, batch, precision, checkpointing)
    for model in MODELS
    for gpus, batch in ((2, 32), (4, 64))
    for precision, checkpointing in (("bf16", "none"), ("fp32", "blocks"))
]
PARTS = (0.0, 0.1, 0.3, 0.6, 0.9)  # of the way from the smallest candidate to the largest


def planned(folder: Path, text: str, room: int | None, most: int, monkeypatch: pytest.MonkeyPatch) -> Plan | None:
    (folder / "grid.yaml").write_text(text)
    recipe = load(str(folder / "grid.yaml")).recipe
    assert recipe is not None
    target = Target(HARDWARE["h100-sxm"], room, ())
    monkeypatch.setattr(compiler, "target_of", lambda _: target)
    monkeypatch.setattr(compiler, "MOST_TRIED", most)
    return compile_plan(recipe, tracer=TRACER)[0]


TRACER = LateTracer()  # what was traced once is known


def taken(plan: Plan) -> CandidatePlan:
    assert plan.choice is not None
    return next(each for each in plan.choice.candidates if each.verdict == TAKEN)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("model", "gpus", "batch", "precision", "checkpointing"), GRID)
def test_few_traces_find_what_all_find(
    tmp_path: Path,
    model: str,
    gpus: int,
    batch: int,
    precision: str,
    checkpointing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = {"gpus": gpus, "batch": batch, "precision": precision, "checkpointing": checkpointing}
    text = RECIPE.format(model=MODELS[model], **words)
    free = planned(tmp_path, text, None, 4, monkeypatch)
    assert free is not None
    assert free.choice is not None
    sizes = [each.memory_bytes for each in free.choice.candidates if each.memory_bytes is not None]
    found = []
    for part in PARTS:
        room = round(min(sizes) + part * (max(sizes) - min(sizes)))
        few, all_ = (planned(tmp_path, text, room, most, monkeypatch) for most in (4, 10**6))
        assert (few is None) == (all_ is None), room
        if few is None or all_ is None:
            continue
        assert few.choice is not None
        assert all_.choice is not None
        found.append((few.choice.num_traced, all_.choice.num_traced))
        one, other = replace(taken(few), memory_bytes=0), replace(taken(all_), memory_bytes=0)
        assert one == other, (room, few.choice.untried)
    print(found)
