"""Mistakes planted in the `expert` axis and in the balance of experts: the parity cells find every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from declarative_train.components.layers.modules import expert_ranks
from declarative_train.components.layers.modules.context import ContextRanks
from declarative_train.components.layers.modules.divided import exchange
from declarative_train.components.layers.modules.expert_ranks import ExpertRanks
from declarative_train.components.layers.modules.moe import MoeModule
from declarative_train.engine.axes import expert
from declarative_train.engine.collectives import Alone
from declarative_train.engine.step import step_runner
from declarative_train.engine.step.objective import Objective
from declarative_train.graph import initialise
from tests.test_tensor_mistakes import is_found, prepared

Plant = Callable[[pytest.MonkeyPatch], object]
CLIPPED = "expert, 2 ranks, accumulation 2, masked, moe, clipped"
CONTEXT = "context x expert, 2 x 2 ranks, accumulation 2, masked, moe, clipped"
QUICK = ("experts are averaged over all ranks",)


def patch(owner: Any, name: str, value: Any) -> Plant:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def change_sync(**changes: Callable[[Any, Any], Any]) -> Plant:
    """Return a mistake in the sync of experts: fields from that of the other axes and the place on the mesh."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        def sync(plan: Any, sharing: Any, held: Any, place: Any) -> Any:
            made = whole(plan, sharing, held, place)
            return replace(made, **{name: make(sharing, place) for name, make in changes.items()})

        whole = expert.sync_experts
        monkeypatch.setattr(expert, "sync_experts", sync)

    return plant


def count_all(sharing: Any, place: Any) -> Any:
    return lambda gradients: place.expert.sum(sharing.norm(gradients).square()).sqrt()


def start_as_first(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = initialise.blocks_of
    monkeypatch.setattr(initialise, "blocks_of", lambda held, cut: whole(held, replace(cut, index=0)))


def keep_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = expert_ranks.exchange
    monkeypatch.setattr(expert_ranks, "exchange", lambda x, ahead, back: whole(x.detach(), ahead, back))


def balance_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = MoeModule._balance

    def balance(self: Any, scores: torch.Tensor, used: torch.Tensor, mask: Any, rows: int) -> torch.Tensor:
        return whole(self, scores, used, None, 1).expand(rows)

    monkeypatch.setattr(MoeModule, "_balance", balance)


def count_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = step_runner.end_step
    monkeypatch.setattr(step_runner, "end_step", lambda model, ranks, finite: whole(model, Alone(), finite))


def balance_own_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = MoeModule._balance

    def balance(self: Any, *given: Any) -> torch.Tensor:
        self.context = None
        return whole(self, *given)

    monkeypatch.setattr(MoeModule, "_balance", balance)


def count_own_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = step_runner.StepRunner.__init__

    def init(self: Any, plan: Any, model: Any, device: Any, ranks: Any, context: Any) -> None:
        whole(self, plan, model, device, ranks, context)
        self._counting = ranks

    monkeypatch.setattr(step_runner.StepRunner, "__init__", init)


def count_whole_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Objective.counts
    monkeypatch.setattr(Objective, "counts", lambda self, *given: whole(self, *given) / self._factors)


MISTAKES: dict[str, Plant] = {
    "experts are averaged over all ranks": patch(expert, "_gradients_of_experts", lambda plan, held: set()),
    "gradients of experts are not divided": change_sync(reduce=lambda sharing, place: sharing.reduce),
    "the norm has the own experts only": change_sync(norm=lambda sharing, place: sharing.norm),
    "the norm counts everything on each rank": change_sync(norm=count_all),
    "received rows are not sorted by expert": patch(
        ExpertRanks, "_order", lambda self, counts, number: torch.arange(number)
    ),
    "rows get no gradient": keep_gradients,
    "each rank starts as the first": start_as_first,
    "the balance loss is that of a microbatch": balance_batch,
    "the bias counts the rows of one rank": count_own_rows,
}
OF_POSITIONS: dict[str, Plant] = {
    "the balance loss is that of a rank's positions": balance_own_positions,
    "the balance loss gets the gradient of a rank": patch(
        ContextRanks, "add", lambda self, x: exchange(x, self._peers.sum, lambda gradient: gradient)
    ),
    "the bias counts the positions of one rank": count_own_positions,
    "each rank counts the whole balance loss": count_whole_balance,
}


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in (*MISTAKES, *OF_POSITIONS)],
)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan, reference, samples = prepared(CLIPPED if mistake in MISTAKES else CONTEXT)
    (MISTAKES | OF_POSITIONS)[mistake](monkeypatch)
    assert is_found(plan, reference, samples)


def test_nothing_is_found_without_a_mistake() -> None:
    _, plan, reference, samples = prepared(CLIPPED)
    assert not is_found(plan, reference, samples)
