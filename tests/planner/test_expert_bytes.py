"""The bytes that the ranks of `expert` send, as the planner predicts them and as they are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.made_recipes import compiled, merged
from tests.engine.watched import watch
from tests.run.test_resume_expert import RECIPE, on

KINDS = {"gathered": "all-gather", "scattered": "reduce-scatter", "exchanged": "all-to-all"}
SUMMED = {"reduced": "all-reduce", "exchanged": "all-to-all"}
BALANCED: dict[str, Any] = {"model": {"blocks": {"block": {"graph": {"moe": {"top_k": 4}}}}}}  # each row to all experts


@pytest.mark.long
@pytest.mark.parametrize(
    ("axes", "kinds"),
    [({"expert": 2, "data": {"shard": 2}}, KINDS), ({"expert": 2, "context": 2}, SUMMED)],
    ids=["expert x shard", "expert x context"],
)
def test_predicted_bytes_are_those_that_are_sent(tmp_path: Path, axes: dict[str, Any], kinds: dict[str, str]) -> None:
    random = np.random.default_rng(1)
    np.savez(tmp_path / "tokens.npz", **{key: random.integers(0, 48, (40, 32)) for key in ("tokens", "next")})
    priced = {"layout": {"hardware": "h100-sxm"}, "training": {"precision": "fp32"}}
    recipe = merged(merged(merged(RECIPE, on(4, **axes)), priced), BALANCED)
    plan = compiled(tmp_path, recipe)
    assert plan.estimate is not None
    for found in watch(plan, num_steps=2):
        for kind, words in kinds.items():
            predicted = sum(each.bytes_sent for each in plan.estimate.transfers if each.what.endswith(words))
            assert predicted == pytest.approx(found.sent[kind], rel=0.01), kind
