"""Mixture of experts: values and gradients of one expert after the other, balance losses, the bias that balances."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from declarative_train.components.layers import LAYERS
from declarative_train.components.layers.modules import grouped
from declarative_train.components.layers.modules.moe import MoeModule
from declarative_train.components.layers.sample_groups import SampleGroups, attach, end_step
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.engine.collectives import Alone

B, T, D, HIDDEN = 3, 5, 6, 4


def build(**fields: Any) -> MoeModule:
    layer = LAYERS["moe"](**{"experts": 8, "top_k": 3, "hidden": HIDDEN} | fields)
    made = layer.build({"x": TensorSpec((T, D), "float64")})
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    assert isinstance(made, MoeModule)
    return made


def compute_one_by_one(moe: MoeModule, x: Tensor, scores: Tensor, weights_of: Any) -> Tensor:
    """Return the output of each position alone, by each of its experts."""
    gate, up, down = (each.chunk(8) for each in (moe.experts.gate, moe.experts.up, moe.experts.down))
    rows = []
    for position, score in zip(x.reshape(-1, D), scores, strict=True):
        y = torch.zeros_like(position)
        for expert, weight in weights_of(score):
            y = y + weight * (down[expert] @ (F.silu(gate[expert] @ position) * (up[expert] @ position)))
        rows.append(y)
    return torch.stack(rows).view_as(x)


def route_as_mixtral(score: Tensor) -> list[tuple[int, Tensor]]:
    best = score.topk(3)
    return list(zip(best.indices.tolist(), best.values / best.values.sum(), strict=True))


def route_as_deepseek(score: Tensor) -> list[tuple[int, Tensor]]:
    """Return the choice among the 2 best of 4 groups, with a bias for the choice alone."""
    with_bias = score.detach() + torch.linspace(-0.5, 0.5, 8, dtype=torch.float64)
    groups = with_bias.view(4, 2).sum(1).topk(2).indices.tolist()
    allowed = [expert for expert in range(8) if expert // 2 in groups]
    chosen = sorted(allowed, key=lambda expert: -with_bias[expert].item())[:3]
    total = sum(score[expert] for expert in chosen)
    return [(expert, 2.5 * score[expert] / total) for expert in chosen]


def keep_scores(score: Tensor) -> list[tuple[int, Tensor]]:
    best = score.topk(3)
    return list(zip(best.indices.tolist(), best.values, strict=True))


DEEPSEEK = {"scores": "sigmoid", "groups": 4, "top_groups": 2, "scale": 2.5, "bias_rate": 0.0}


@pytest.mark.parametrize(
    ("fields", "weights_of"),
    [({}, route_as_mixtral), (DEEPSEEK, route_as_deepseek), ({"normalize": False}, keep_scores)],
    ids=["mixtral", "deepseek", "not normalised"],
)
def test_it_is_the_sum_of_the_chosen_experts(fields: dict[str, Any], weights_of: Any) -> None:
    moe = build(**fields)
    if moe.bias is not None:
        moe.bias.copy_(torch.linspace(-0.5, 0.5, 8, dtype=torch.float64))
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    parts = (x, *moe.parameters())
    found, _ = moe(x)
    got = torch.autograd.grad(found.square().sum(), parts)
    logits = x.reshape(-1, D) @ moe.router.weight.T
    scores = logits.sigmoid() if moe.routing.is_sigmoid else logits.softmax(-1)
    wanted = compute_one_by_one(moe, x, scores, weights_of)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(got, torch.autograd.grad(wanted.square().sum(), parts))


def test_the_balance_loss_of_a_sample_does_not_depend_on_the_others() -> None:
    moe, x = build(), torch.randn(B, T, D, dtype=torch.float64)
    mask = torch.rand(B, T) < 0.6
    mask[:, 0] = True
    _, balance = moe(x, mask)
    for sample in range(B):
        shown = x[sample, mask[sample]]
        scores = (shown @ moe.router.weight.T).softmax(-1)
        used = F.one_hot(scores.topk(3, -1).indices, 8).sum(1).double()
        wanted = 8 / 3 * (used.mean(0) * scores.mean(0)).sum()
        torch.testing.assert_close(balance[sample], wanted)
    torch.testing.assert_close(moe(x, mask, balance)[1], 2 * balance)


def test_equal_use_has_balance_1() -> None:
    moe = build(experts=8, top_k=8)
    torch.testing.assert_close(moe(torch.randn(B, T, D, dtype=torch.float64))[1], torch.ones(B, dtype=torch.float64))


def test_the_bias_moves_towards_experts_that_few_positions_chose() -> None:
    moe, x = build(bias_rate=0.1), torch.randn(B, T, D, dtype=torch.float64)
    groups = SampleGroups()
    attach(moe, groups)
    moe(x)  # outside of a step
    assert not moe.take_pending().any()
    groups.begin(2)  # the last row fills the batch
    moe(x)
    recomputation = groups.checkpoint_contexts()[1]
    with recomputation:
        moe(x)
    groups.end()
    used = F.one_hot((x[:2].reshape(-1, D) @ moe.router.weight.T).topk(3, -1).indices, 8).sum((0, 1)).double()
    assert moe.pending is not None
    assert torch.equal(moe.pending, used)
    end_step(moe, Alone(), torch.tensor(True))
    assert moe.bias is not None
    assert torch.equal(moe.bias, 0.1 * torch.sign(used.mean() - used))
    before = moe.bias.clone()
    groups.begin()
    moe(x)
    end_step(moe, Alone(), torch.tensor(False))  # the step was dropped
    assert torch.equal(moe.bias, before)


def test_grouped_products_of_torch_are_those_of_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ends = torch.tensor([3, 3, 10], dtype=torch.int32)
    made = torch.randn(10, 8, dtype=torch.bfloat16), torch.randn(3, 16, 8, dtype=torch.bfloat16)
    towards = torch.randn(10, 16, dtype=torch.bfloat16)
    found = []
    for has_kernel in (False, True):
        monkeypatch.setattr(grouped, "has_kernel", lambda x, has_kernel=has_kernel: has_kernel)
        x, weight = (each.clone().requires_grad_() for each in made)
        y = grouped.multiply_groups(x, weight, ends)
        y.backward(towards)
        found.append((y.detach(), x.grad, weight.grad))
    torch.testing.assert_close(*found)
    of_weight = found[0][2]
    assert of_weight is not None
    assert not of_weight[1].any(), "a group without rows"


def test_no_rows_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "has_kernel", lambda x: True)
    x = torch.zeros(0, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(3, 16, 8, dtype=torch.bfloat16, requires_grad=True)
    grouped.multiply_groups(x, weight, torch.zeros(3, dtype=torch.int32)).sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
