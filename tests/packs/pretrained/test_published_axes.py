"""Published models on two ranks of the axes `tensor` and `expert`: the logits and gradients of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import declarative_train as dt
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.engine import get_process_batch
from declarative_train.packs.export.export import export
from declarative_train.plan.plan import Plan
from tests.engine.on_ranks import kept_engine, on_ranks
from tests.engine.parity import take_gradients
from tests.packs.pretrained import published_models as made

FAMILIES = {
    "tensor": ("deepseek", "gpt_oss", "llama", "mixtral", "qwen3_moe"),
    "expert": ("deepseek", "gpt_oss", "mixtral", "qwen3_moe"),
}
TOLERANCE = 1e-5


class Seen(NamedTuple):
    """First step of one rank: its rows, the logits (rows, T, V or V / size), whole gradients by name."""

    tokens: np.ndarray
    targets: np.ndarray
    logits: np.ndarray
    gradients: dict[str, np.ndarray]


def step(*plans: Plan) -> list[Seen]:
    return [_step(plan) for plan in plans]


def _step(plan: Plan) -> Seen:
    with kept_engine(plan) as engine:
        rows: list[tuple[np.ndarray, np.ndarray]] = []

        def keep(module: object, inputs: tuple[torch.Tensor, ...], output: Any) -> None:
            logits = output[0] if isinstance(output, tuple) else output
            rows.append((inputs[0].numpy().copy(), logits.detach().numpy().copy()))

        engine.model.get_submodule("lm").register_forward_hook(keep)
        gradients: list[dict[str, np.ndarray]] = []
        take_gradients(engine, gradients)
        batches = TrainingBatches(plan.data, get_process_batch(plan), engine.dp_rank, open_sets(plan.data))
        batch = batches.step(1)
        engine.step(1, batch, num_rows=plan.batch.global_batch_size, lr_factor=1.0, measure=False)
        targets = [each.tensors["goal"].numpy() for each in batch if "goal" in each.tensors]
        targets = targets or [each.tensors["next"].numpy() % 96 for each in batch]
        tokens, logits = (np.concatenate(parts) for parts in zip(*rows, strict=True))
        return Seen(tokens, np.concatenate(targets), logits, gradients[0])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("axis", sorted(FAMILIES))
def test_logits_and_gradients_are_those_of_transformers(tmp_path: Path, axis: str) -> None:
    theirs, plans = {}, {}
    for name in FAMILIES[axis]:
        (tmp_path / name).mkdir()
        theirs[name], path = made.write(tmp_path / name, name)
        plans[name] = dt.load(path, set={"parallelism": {axis: 2}, "layout.gpus": 2}).plan().plan
    found = on_ranks(plans[FAMILIES[axis][0]], step, *plans.values())
    for at, (name, plan) in enumerate(plans.items()):
        assert plan.layout.cuts is not None
        kinds = {node.kind for node in plan.layout.cuts.nodes.values()}
        assert kinds >= ({"experts"} if axis == "expert" else {"heads"})
        ranks = [rank[at] for rank in found]
        parts = ranks[:1] if axis == "tensor" else ranks  # all ranks of `tensor` read the same rows
        tokens, targets = (
            torch.from_numpy(np.concatenate([getattr(rank, key) for rank in parts])) for key in ("tokens", "targets")
        )
        wanted = theirs[name](tokens).logits
        logits = np.concatenate([rank.logits for rank in ranks], -1 if axis == "tensor" else 0)
        torch.testing.assert_close(torch.from_numpy(logits), wanted, rtol=TOLERANCE, atol=TOLERANCE, msg=name)
        F.cross_entropy(wanted.flatten(0, 1), targets.flatten()).backward()
        graded = made.theirs_as_ours(theirs[name], plan, grad=True)
        held = {key: item for rank in ranks for key, item in rank.gradients.items()}
        assert held.keys() == graded.keys()
        for key, gradient in graded.items():
            scale = gradient.abs().max()
            mine = torch.from_numpy(held[key])
            torch.testing.assert_close(
                mine / scale, gradient / scale, rtol=TOLERANCE, atol=TOLERANCE, msg=f"{name} {key}"
            )


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["deepseek", "gpt_oss"])
@pytest.mark.parametrize("axis", sorted(FAMILIES))
def test_an_untouched_model_is_given_back_to_the_bit(tmp_path: Path, axis: str, name: str) -> None:
    """One step on two ranks, with a learning rate of 0."""
    from safetensors.torch import load_file

    _, path = made.write(tmp_path, name, node=", bias_rate: 0.0" if name == "deepseek" else "")
    still = {"training.steps": 1, "training.optimizer.lr": 0.0, "parallelism": {axis: 2}, "layout.gpus": 2}
    run = dt.load(path, set=still).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "back").folder
    before, after = (load_file(each / "model.safetensors") for each in (tmp_path / "published", folder))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
