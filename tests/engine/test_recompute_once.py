"""Where a backward comes in halves, a unit is computed again once: the gradients of a plain step, one forward more, and
nothing left behind."""

from __future__ import annotations

import gc
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils.checkpoint import checkpoint

from declarative_train.components.layers.sample_groups import SampleGroups
from declarative_train.engine.step.model_preparation import checkpoint_activations
from declarative_train.engine.step.recompute_once import checkpoint_once

WIDTH, DEPTH = 8, 3


class Counted(nn.Module):
    """A unit of several layers with weights, one of which draws."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])
        self.drop = nn.Dropout(p)
        self.calls = 0
        self.made: list[weakref.ref[torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for layer in self.layers:
            x = self.drop(torch.nn.functional.gelu(layer(x)))
            self.made.append(weakref.ref(x))
        return x


def in_halves(module: nn.Module, *, autocast: bool = False) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Gradients of the weights and of the input, as a zero-bubble schedule takes them."""
    torch.manual_seed(3)
    x = torch.randn(5, WIDTH, requires_grad=True)
    around: AbstractContextManager[Any] = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with around:
        out = module(x)
    _, groups = stage_backward_input([out], [torch.ones_like(out)], [x], iter(list(module.parameters())))
    stage_backward_weight(iter(list(module.parameters())), groups)
    assert x.grad is not None
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None], x.grad


def started(p: float = 0.0) -> Counted:
    torch.manual_seed(0)
    return Counted(p)


@pytest.mark.parametrize(("p", "autocast"), [(0.0, False), (0.5, False), (0.0, True)])
@pytest.mark.parametrize("keep", [frozenset(), frozenset({"attention", "every_second_product"})])
def test_gradients_are_those_of_a_plain_step_and_one_forward_more_is_made(
    p: float, autocast: bool, keep: frozenset[str]
) -> None:
    plain, again = started(p), started(p)
    checkpoint_activations(again, SampleGroups(), keep=keep, draws=p > 0, splits=True)
    expected, found = in_halves(plain, autocast=autocast), in_halves(again, autocast=autocast)
    for one, other in zip((*expected[0], expected[1]), (*found[0], found[1]), strict=True):
        assert torch.equal(one, other)
    assert (plain.calls, again.calls) == (1, 2)


def test_by_torch_it_is_a_forward_for_each_weight() -> None:
    """Why there is one of our own: the day that this fails, it may go."""
    module = started()
    forward = module.forward
    module.forward = lambda x: checkpoint(forward, x, use_reentrant=False)  # type: ignore[method-assign]
    in_halves(module)
    assert module.calls > DEPTH


def test_nothing_is_left_behind() -> None:
    module = started()
    checkpoint_activations(module, SampleGroups(), keep=frozenset(), draws=False, splits=True)
    gc.disable()
    try:
        in_halves(module)
        assert not [made for made in module.made if made() is not None]
    finally:
        gc.enable()


def test_a_forward_that_is_another_the_second_time_is_an_error() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    times: list[int] = []

    def changing(x: torch.Tensor) -> torch.Tensor:
        times.append(1)
        return layer(x) if len(times) > 1 else torch.tanh(layer(torch.tanh(x)))

    out = checkpoint_once(changing, (torch.randn(2, WIDTH, requires_grad=True),), draws=False, contexts=None)
    with pytest.raises(RuntimeError, match="recomputed unit saved"):
        out.sum().backward()
