"""Losses over parts of the classes: the value and the gradients of torch's cross entropy of all scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.losses.modules.classes import DividedCrossEntropy
from declarative_train.engine.collectives import Ranks
from tests.engine.on_ranks import forked

CASES: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1},
    {"ignore_index": 3},
    {"weighted": True},
    {"weighted": True, "label_smoothing": 0.2, "ignore_index": 1},
    {"reduction": "none", "label_smoothing": 0.1, "ignore_index": 2},
]


def of_parts(rank: int, scores: torch.Tensor, target: torch.Tensor, case: dict[str, Any]) -> list[torch.Tensor]:
    ranks = TensorRanks(Ranks())
    width = scores.shape[1] // ranks.size
    part = scores[:, rank * width : (rank + 1) * width].clone().requires_grad_()
    loss = DividedCrossEntropy(case.get("label_smoothing", 0.0), scores.shape[1], ranks)
    value = loss(part, target, **arguments(scores, case))
    value.square().sum().backward()
    assert part.grad is not None
    return [value.detach(), part.grad]


def arguments(scores: torch.Tensor, case: dict[str, Any]) -> dict[str, Any]:
    weights = torch.linspace(0.5, 2, scores.shape[1], dtype=scores.dtype) if case.get("weighted") else None
    return {
        "weight": weights,
        "ignore_index": case.get("ignore_index", -100),
        "reduction": case.get("reduction", "sum"),
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cross_entropy_of_parts(case: dict[str, Any]) -> None:
    torch.manual_seed(0)
    scores, target = 50 * torch.randn(9, 6, dtype=torch.float64), torch.randint(0, 6, (9,))
    found = forked(2, of_parts, scores, target, case)
    whole = scores.clone().requires_grad_()
    smoothing = case.get("label_smoothing", 0.0)
    wanted = F.cross_entropy(whole, target, label_smoothing=smoothing, **arguments(scores, case))
    wanted.square().sum().backward()
    for value, _ in found:
        torch.testing.assert_close(value, wanted.detach())
    torch.testing.assert_close(torch.cat([gradient for _, gradient in found], 1), whole.grad)
