"""Mistakes planted in the axes `tensor` and `context`, as their code could have them: the parity cells find all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from declarative_train.components.layers.modules import divided, embedding
from declarative_train.components.layers.modules.context import ContextRanks
from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.divided_linear import RowLinear
from declarative_train.components.losses.modules import classes
from declarative_train.core.cuts import ParameterCut, RankCut
from declarative_train.engine import engine
from declarative_train.engine.axes import context, tensor
from declarative_train.engine.collectives import MeshPosition, Ranks
from declarative_train.graph import initialise
from declarative_train.plan.plan import Plan
from tests.engine.parity import record_plan
from tests.parity.cells import NUM_STEPS, Cell, cells
from tests.parity.measure import BOUND, Gradients, largest, plan_of, reference_gradients

Plant = Callable[[pytest.MonkeyPatch], object]
CLIPPED = "tensor, 2 ranks, accumulation 2, masked, divided, clipped"
ADAPTED = "tensor, 2 ranks, accumulation 2, masked, adapted"
CONTEXT = "context, 2 ranks, accumulation 2, masked, divided"
DDP = "tensor x ddp, 2 x 2 ranks, accumulation 2, masked, divided"
QUICK = ("outputs are not summed", "gradients of inputs are not summed", "a tie is lost", "the data are divided too")


def _patched(owner: Any, name: str, value: Any) -> Plant:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def _bias_on_each_rank(self: RowLinear, input: torch.Tensor) -> torch.Tensor:
    return self._ranks.add(F.linear(input, self.weight, self.bias))


def _without_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(plan: Plan, *rest: Any) -> Any:
        layout = plan.layout
        assert layout.cuts is not None
        return whole(replace(plan, layout=replace(layout, cuts=replace(layout.cuts, summed=()))), *rest)

    whole = tensor.sync_parts
    monkeypatch.setattr(tensor, "sync_parts", sync)


def _norm(counts: Callable[[Any, Any, Any], Any]) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        def sync(plan: Plan, sharing: Any, held: Any, place: Any) -> Any:
            return replace(whole(plan, sharing, held, place), norm=lambda gradients: counts(sharing, place, gradients))

        whole = tensor.sync_parts
        monkeypatch.setattr(tensor, "sync_parts", sync)

    return plant


def _all_counted(sharing: Any, place: Any, gradients: Any) -> Any:
    return place.tensor.sum(sharing.norm(gradients).square()).sqrt()


def _own_only(sharing: Any, place: Any, gradients: Any) -> Any:
    return place.tensor.sum(sharing.norm(gradients)) / 2


def _untied(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = divided.set_cuts
    monkeypatch.setattr(divided, "set_cuts", lambda part, cuts, made: whole(part, cuts, {}))


def _one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnePiece(RankCut):
        def blocks(self, *words: Any) -> Any:
            return RankCut(ParameterCut(self.cut.dim, (sum(self.cut.pieces),)), self.index, self.size).blocks(*words)

    monkeypatch.setattr(tensor, "RankCut", OnePiece)


def _first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = initialise.blocks_of
    monkeypatch.setattr(initialise, "blocks_of", lambda held, cut: whole(held, replace(cut, index=0)))


def _no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(self: Any, x: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
        rows = self.weight.shape[0]
        return ranks.add(F.embedding(x % rows, self.weight) * (x < rows).unsqueeze(-1))

    monkeypatch.setattr(embedding.EmbeddingModule, "_look_up_part", look_up)


def _unmasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(self: Any, x: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
        return ranks.add(F.embedding(x % self.weight.shape[0], self.weight))

    monkeypatch.setattr(embedding.EmbeddingModule, "_look_up_part", look_up)


def _loss_with(name: str) -> Plant:
    """The cross entropy of parts, with a reduction that does nothing."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        class Broken(TensorRanks):
            pass

        setattr(Broken, name, lambda self, x: x)
        whole = classes.DividedCrossEntropy

        def made(smoothing: float, number: int, ranks: TensorRanks) -> Any:
            return whole(smoothing, number, Broken(ranks._peers))

        monkeypatch.setattr(classes, "DividedCrossEntropy", made)

    return plant


def _data_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(self: MeshPosition, layout: Any, along: Any) -> tuple[Any, Any]:
        return self.world, range(self.world.size)

    monkeypatch.setattr(MeshPosition, "_join", join)


def _scaled_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine._make_context

    def context(plan: Plan, held: Any, place: MeshPosition, device: Any) -> Any:
        found = whole(plan, held, place, device)
        found.dp_size = place.world.size
        return found

    monkeypatch.setattr(engine, "_make_context", context)


def _averaged_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from declarative_train.engine.axes import replicate

    whole = replicate.wrap_in_ddp
    monkeypatch.setattr(replicate, "wrap_in_ddp", lambda model, device, group: whole(model, device, None))


def _own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine._make_context

    def own(plan: Plan, held: Any, place: MeshPosition, device: Any) -> Any:
        found = whole(plan, held, place, device)
        found.counting = None
        return found

    monkeypatch.setattr(engine, "_make_context", own)


def _halves(self: ContextRanks, whole: torch.Tensor) -> torch.Tensor:
    return whole.chunk(2, 1)[self._peers.rank]


def _in_rank_order(self: ContextRanks, x: torch.Tensor) -> torch.Tensor:
    return self._peers.gather_tokens(x)


def _own_gradient(self: ContextRanks, gradient: torch.Tensor) -> torch.Tensor:
    return self.take(gradient)


def _from_zero(self: ContextRanks, num_own: int, device: torch.device) -> torch.Tensor:
    return torch.arange(num_own, device=device)


MISTAKES: dict[str, tuple[str, Plant]] = {
    "gradients of inputs are not summed": (CLIPPED, _patched(TensorRanks, "enter", lambda self, x: x)),
    "outputs are not summed": (CLIPPED, _patched(TensorRanks, "add", lambda self, x: x)),
    "outputs are averaged": (CLIPPED, _patched(Ranks, "sum", lambda self, x: _summed(self, x) / self.size)),
    "outputs are summed twice": (CLIPPED, _patched(Ranks, "sum", lambda self, x: _summed(self, _summed(self, x)))),
    "the bias is added on each rank": (CLIPPED, _patched(RowLinear, "forward", _bias_on_each_rank)),
    "norms of heads keep their part of the gradient": (CLIPPED, _without_summed),
    "whole parameters count twice in the norm": (CLIPPED, _norm(_all_counted)),
    "a rank clips by its own part": (CLIPPED, _norm(_own_only)),
    "adapters keep their part of the gradient": (ADAPTED, _without_summed),
    "rows of DoRA have the length of their part": (ADAPTED, _patched(TensorRanks, "total", lambda self, x: x)),
    "a tie is lost": (CLIPPED, _untied),
    "the fused projections are one piece": (CLIPPED, _one_piece),
    "each rank starts as the first part": (CLIPPED, _first_part),
    "an embedding ignores its offset": (CLIPPED, _no_offset),
    "an embedding counts words of other ranks": (CLIPPED, _unmasked),
    "a loss takes the maximum of its part": (CLIPPED, _loss_with("max")),
    "a loss takes the sums of its part": (CLIPPED, _loss_with("add")),
    "gradients of positions are not summed": (CONTEXT, _patched(context, "sync_positions", lambda sharing, _: sharing)),
    "items are counted by each rank": (CONTEXT, _own_counts),
    "positions are halves, masks are of quarters": (CONTEXT, _patched(ContextRanks, "take", _halves)),
    "keys stay in the order of the ranks": (CONTEXT, _patched(ContextRanks, "_gather", _in_rank_order)),
    "gradients of keys are not summed": (CONTEXT, _patched(ContextRanks, "_sum", _own_gradient)),
    "rotary positions begin at 0": (CONTEXT, _patched(ContextRanks, "places", _from_zero)),
    "the data are divided too": (CLIPPED, _data_of_all),
    "the loss is scaled by all ranks": (DDP, _scaled_by_all),
    "replicas average over all ranks": (DDP, _averaged_over_all),
}
_summed = Ranks.sum


@cache
def prepared(name: str) -> tuple[Cell, Plan, Gradients, list[tuple[int, ...]]]:
    (cell,) = [each for each in cells() if each.name == name]
    folder = Path(tempfile.mkdtemp())
    plan = plan_of(cell, folder)
    return (cell, plan, *reference_gradients(plan, cell))


@pytest.mark.parametrize(
    "mistake", [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in MISTAKES]
)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plant = MISTAKES[mistake]
    _, plan, reference, samples = prepared(name)
    plant(monkeypatch)
    assert is_found(plan, reference, samples)


def test_nothing_is_found_without_a_mistake() -> None:
    _, plan, reference, samples = prepared(CLIPPED)
    assert not is_found(plan, reference, samples)


def is_found(plan: Plan, reference: Gradients, samples: list[tuple[int, ...]]) -> bool:
    """Whether a rank fails, ranks disagree, or gradients differ from those of one process."""
    try:
        found = record_plan(plan, num_steps=NUM_STEPS)
    except Exception:
        return True
    return found.sample_ids != samples or largest(reference, found.gradients)[0] > BOUND
