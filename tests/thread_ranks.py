"""Ranks of the `tensor` axis as threads of this process: each has its part of a model, and they exchange tensors
through memory. `compare(plan)` says how far their outputs and gradients are from those of the undivided model.

Models of transformers compute norms and probabilities in float32, whose rounding hides small differences; `doubled`
makes them compute in float64.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from declarative_train.components.layers.modules.divided import find_cuts
from declarative_train.engine.axes.tensor import divide
from declarative_train.engine.collectives import MeshPosition
from declarative_train.engine.step.model_preparation import BuiltModel, fill, whole_model
from declarative_train.graph.initialise import blocks_of
from declarative_train.plan.plan import Plan

LIMIT_S = 100


class Meeting:
    """Exchange of one tensor from each of `size` threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)
        self.given: list[Any] = [None] * size

    def exchange(self, rank: int, tensor: Tensor) -> list[Tensor]:
        self.given[rank] = tensor.detach().clone()
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found


class ThreadPeers:
    """`Peers` of one thread."""

    def __init__(self, meeting: Meeting, rank: int, size: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, size

    def sum(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._meeting.exchange(self.rank, tensor)).sum(0)

    def gather(self, tensor: Tensor) -> Tensor:
        return torch.cat(self._meeting.exchange(self.rank, tensor), -1)


def on_threads(meeting: Meeting, calls: Sequence[Callable[[], None]]) -> None:
    """Run a function in each thread. Raises the first exception."""
    failures: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as problem:
            if not isinstance(problem, threading.BrokenBarrierError):
                failures.insert(0, problem)
            failures.append(problem)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def doubled() -> Iterator[None]:
    """Keep tensors of float64 when a library's code asks for float32."""

    def kept(call: Any) -> Any:
        def called(x: Tensor, *given: Any, **named: Any) -> Any:
            if x.dtype == torch.float64:
                given = tuple(torch.float64 if each is torch.float32 else each for each in given)
                named = {key: torch.float64 if each is torch.float32 else each for key, each in named.items()}
                if call is whole_float:
                    return x
            return call(x, *given, **named)

        return called

    whole_float = Tensor.float
    with (
        mock.patch.object(Tensor, "float", kept(Tensor.float)),
        mock.patch.object(Tensor, "to", kept(Tensor.to)),
        mock.patch.object(Tensor, "type", kept(Tensor.type)),
        mock.patch.object(Tensor, "softmax", kept(Tensor.softmax)),
        mock.patch.object(nn.functional, "softmax", kept(nn.functional.softmax)),
    ):
        yield


def place_of(peers: ThreadPeers) -> MeshPosition:
    """Return the place of a rank, with the axis `tensor` alone."""
    place: Any = SimpleNamespace(tensor=peers)
    return place  # type: ignore[no-any-return]


def compare(plan: Plan, tokens: Tensor, path: str = "net", *, dtype: torch.dtype) -> float:
    """Return the largest difference of the ranks' outputs and gradients of the node `path` from those of the undivided
    model, relative to the largest value of each tensor, with a floor of 1e-6 of the largest one. Raises AssertionError
    for a start value that differs."""
    cuts, size = plan.layout.cuts, plan.layout.size("tensor")
    assert cuts is not None
    meeting = Meeting(size)
    models = []
    for rank in range(-1, size):
        held = whole_model(plan)
        if rank >= 0:
            divide(held, cuts, place_of(ThreadPeers(meeting, rank, size)))
        fill(held, plan, torch.device("cpu"), alone=True)
        models.append(_node(held, path, dtype))
    whole, *ranks = models
    inputs = [tokens, *[None] * (len(whole._dtrain_layer.ports) - 1)]  # type: ignore[union-attr, arg-type]
    wanted, gradients = _step(whole, inputs)
    own = {f"{path}.{name}": item for name, item in whole.named_parameters()}
    found: list[Any] = [None] * size

    def call(rank: int) -> Callable[[], None]:
        def step() -> None:
            found[rank] = _step(ranks[rank], inputs)

        return step

    on_threads(meeting, [call(rank) for rank in range(size)])
    largest = max(_difference(wanted, outputs, float(wanted.abs().max())) for outputs, _ in found)
    top = max(float(item.abs().max()) for item in gradients.values() if item is not None)
    rank_cuts = [find_cuts(nn.ModuleDict({path: rank})) for rank in ranks]
    for name, gradient in gradients.items():
        parts = [each[name] for _, each in found]
        if gradient is None:
            assert all(part is None for part in parts), name
            continue
        full = f"{path}.{name}"
        if full in cuts.summed:
            parts = [sum(parts)] * size
        size_ = max(float(gradient.abs().max()), 1e-6 * top)
        for rank, part in enumerate(parts):
            held_part, cut = dict(ranks[rank].named_parameters())[name], rank_cuts[rank].get(full)
            if cut is None:
                assert torch.equal(held_part, own[full]), f"start value of {name}"
                largest = max(largest, _difference(gradient, part, size_))
                continue
            for values, first in blocks_of(held_part.detach(), cut):
                place_ = tuple(slice(at, at + length) for at, length in zip(first, values.shape, strict=True))
                assert torch.equal(values, own[full].detach()[place_]), f"start value of {name}"
            for values, first in blocks_of(part, cut):
                place_ = tuple(slice(at, at + length) for at, length in zip(first, values.shape, strict=True))
                largest = max(largest, _difference(gradient[place_], values, size_))
    return largest


def _node(held: BuiltModel, path: str, dtype: torch.dtype) -> nn.Module:
    node: Any = held.model.get_submodule(path).to(dtype).train()
    if dtype == torch.float64 and callable(choose := getattr(node, "set_experts_implementation", None)):
        choose("eager")  # the grouped product has no float64
    return node  # type: ignore[no-any-return]


def _step(model: nn.Module, inputs: Sequence[Tensor | None]) -> tuple[Tensor, dict[str, Tensor | None]]:
    output = model(*inputs)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    (output * weights).sum().backward()
    return output.detach(), {name: item.grad for name, item in model.named_parameters()}


def _difference(wanted: Tensor, found: Tensor, size: float) -> float:
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max()) / max(size, 1e-30) if wanted.numel() else 0.0
