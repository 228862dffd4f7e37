"""The bytes that the ranks of `context` send, as the planner predicts them and as they are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine import collectives
from declarative_train.engine.engine import get_process_batch
from declarative_train.plan.plan import Plan
from tests.engine.made_recipes import compiled, merged
from tests.engine.on_ranks import kept_engine, on_ranks
from tests.run.test_resume_tensor import RECIPE, on

SIZE = 2


def count_bytes(plan: Plan) -> dict[str, float]:
    """Bytes that this rank sends in the first step, by what they are, if each collective is a ring."""
    sent = {"keys": 0.0, "gradients": 0.0}
    gather, scatter, total = collectives._gather_single, collectives._reduce_scatter_single, collectives.Ranks.sum_
    exchange = collectives.Ranks.exchange

    def gathers(into: Any, tensor: Any, **how: Any) -> Any:
        sent["keys"] += tensor.nbytes * (SIZE - 1)
        return gather(into, tensor, **how)

    def scatters(into: Any, tensor: Any, **how: Any) -> Any:
        sent["keys"] += into.nbytes * (SIZE - 1)
        return scatter(into, tensor, **how)

    def sums(self: collectives.Ranks, tensor: Any) -> None:
        sent["gradients"] += 2 * tensor.nbytes * (SIZE - 1) / SIZE
        total(self, tensor)

    def exchanges(self: collectives.Ranks, tensor: Any, *numbers: Any) -> Any:
        sent["keys"] += tensor.nbytes
        return exchange(self, tensor, *numbers)

    with pytest.MonkeyPatch.context() as patch, kept_engine(plan) as engine:
        batches = TrainingBatches(plan.data, get_process_batch(plan), 0, open_sets(plan.data), device=engine.device)
        patch.setattr(collectives, "_gather_single", gathers)
        patch.setattr(collectives, "_reduce_scatter_single", scatters)
        patch.setattr(collectives.Ranks, "sum_", sums)
        patch.setattr(collectives.Ranks, "exchange", exchanges)
        engine.step(1, batches.step(1), num_rows=8, lr_factor=1.0, measure=False)
    return sent


@pytest.mark.parametrize("keys", ["gathered", pytest.param("ring", marks=pytest.mark.long)])
def test_predicted_bytes_are_those_that_are_sent(tmp_path: Path, keys: str) -> None:
    random = np.random.default_rng(1)
    np.savez(tmp_path / "tokens.npz", **{key: random.integers(0, 48, (40, 8)) for key in ("tokens", "next")})
    priced = {"layout": {"hardware": "h100-sxm"}, "training": {"precision": "fp32"}}
    plan = compiled(tmp_path, merged(merged(RECIPE, on(SIZE, context={"size": SIZE, "keys": keys})), priced))
    assert plan.estimate is not None
    predicted = {each.what: each.bytes_sent for each in plan.estimate.transfers}
    for sent in on_ranks(plan, count_bytes, plan):
        assert predicted["keys and values"] == pytest.approx(sent["keys"], rel=0.01)
        assert predicted["gradients of positions, all-reduce"] == pytest.approx(sent["gradients"], rel=0.01)
