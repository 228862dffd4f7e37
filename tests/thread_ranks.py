"""Ranks of the axes `tensor` and `expert` as threads of this process. Each has its part of a model, and they exchange
tensors through memory. `compare` measures how far their outputs and gradients are from those of the undivided model.

Models of transformers compute norms and probabilities in float32, whose rounding hides small differences; `use_float64`
makes them compute in float64.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from declarative_train.components.component import ModelParts
from declarative_train.components.layers.modules.divided import TensorRanks, cut_parameters
from declarative_train.components.layers.modules.expert_ranks import ExpertRanks
from declarative_train.core.cuts import CutKind, LayerCut, RankCut
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.engine.collectives import MeshPosition, Ranks
from declarative_train.engine.step.model_preparation import materialise
from declarative_train.graph.initialise import blocks_of
from declarative_train.packs.pretrained.libraries.modules.node import build_node, draw_model
from declarative_train.packs.pretrained.libraries.transformers import Transformers

SIZE = 2
LIMIT_S = 100


class Meeting:
    """Exchange of tensors between `size` threads: each gives one tensor, and gets those of all threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)
        self.given: list[Any] = [None] * size

    def exchange(self, rank: int, tensor: Tensor) -> list[Tensor]:
        self.given[rank] = tensor.detach().clone()
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found


class ThreadPeers(Ranks):
    """Collective operations of one rank that is a thread."""

    def __init__(self, meeting: Meeting, rank: int, size: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, size

    def sum(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._meeting.exchange(self.rank, tensor)).sum(0)

    def gather(self, tensor: Tensor) -> Tensor:
        return torch.cat(self._meeting.exchange(self.rank, tensor), -1)

    def exchange(self, tensor: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        sizes = self._meeting.exchange(self.rank, torch.tensor(sent))
        rows = self._meeting.exchange(self.rank, tensor)
        return torch.cat([each.split(size.tolist())[self.rank] for each, size in zip(rows, sizes, strict=True)])


def run_on_threads(meeting: Meeting, calls: Sequence[Callable[[], None]]) -> None:
    """Call each function in a thread of its own. Raises the first exception of any thread."""
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
def use_float64() -> Iterator[None]:
    """Make a library compute in float64: its conversions of float64 tensors to float32 have no effect in the `with`
    block."""

    def keep(call: Any) -> Any:
        def call_kept(x: Tensor, *given: Any, **named: Any) -> Any:
            if x.dtype == torch.float64:
                given = tuple(torch.float64 if each is torch.float32 else each for each in given)
                named = {key: torch.float64 if each is torch.float32 else each for key, each in named.items()}
                if call is whole_float:
                    return x
            return call(x, *given, **named)

        return call_kept

    whole_float = Tensor.float
    with (
        mock.patch.object(Tensor, "float", keep(Tensor.float)),
        mock.patch.object(Tensor, "to", keep(Tensor.to)),
        mock.patch.object(Tensor, "type", keep(Tensor.type)),
        mock.patch.object(Tensor, "softmax", keep(Tensor.softmax)),
        mock.patch.object(nn.functional, "softmax", keep(nn.functional.softmax)),
    ):
        yield


def place_of(peers: ThreadPeers) -> MeshPosition:
    """Return the position in the mesh of a rank that has only the axis `tensor`."""
    place: Any = SimpleNamespace(tensor=peers)
    return place  # type: ignore[no-any-return]


def compare(
    layer: Transformers, inputs: Mapping[str, TensorSpec], tokens: Tensor, dtype: torch.dtype, kind: CutKind = "inside"
) -> float:
    """Return the largest relative difference between two ranks and the undivided model, over outputs and gradients.

    The difference is relative to the largest value of the tensor, or to 1e-6 of the largest gradient if that is larger.
    `kind`: "inside" for ranks of `tensor`; "experts" for ranks of `expert`, each of which reads its half of the
    samples. The model is in evaluation mode, because threads would draw different random numbers.
    """
    cut, meeting = layer.cut(kind, inputs, SIZE), Meeting(SIZE)
    assert isinstance(cut, LayerCut)
    whole = build_node(layer, inputs)
    whole.load_state_dict(draw_model(layer, inputs, 0).state_dict())
    ranks = [_divide(layer, inputs, cut, kind, ThreadPeers(meeting, rank, SIZE), whole) for rank in range(SIZE)]
    for model in (whole, *ranks):
        _prepare(model, dtype)
    rows = [slice(None)] * SIZE
    if kind == "experts":
        half = len(tokens) // SIZE
        rows = [slice(rank * half, (rank + 1) * half) for rank in range(SIZE)]
    outputs: list[Any] = [None] * SIZE

    def call(rank: int) -> Callable[[], None]:
        def step() -> None:
            outputs[rank] = _step(ranks[rank], layer, tokens, rows[rank])

        return step

    wanted, gradients = _step(whole, layer, tokens, slice(None))
    run_on_threads(meeting, [call(rank) for rank in range(SIZE)])
    top = float(wanted.abs().max())
    largest = max(_difference(wanted[part], output, top) for part, (output, _) in zip(rows, outputs, strict=True))
    top = max(float(item.abs().max()) for item in gradients.values() if item is not None)
    for name, gradient in gradients.items():
        parts = [found[name] for _, found in outputs]
        if gradient is None:
            assert all(part is None for part in parts), name
            continue
        if name in cut.summed or (kind == "experts" and name not in cut.parameters):
            parts = [sum(part for part in parts if part is not None)] * SIZE
        scale = max(float(gradient.abs().max()), 1e-6 * top)
        for rank, part in enumerate(parts):
            if name not in cut.parameters:
                largest = max(largest, _difference(gradient, part, scale))
                continue
            for values, first in blocks_of(part, RankCut(cut.parameters[name], rank, SIZE)):
                largest = max(largest, _difference(_block(gradient, first, values), values, scale))
    return largest


def compare_parts(layer: Transformers, inputs: Mapping[str, TensorSpec], tokens: Tensor, dtype: torch.dtype) -> float:
    """Compare the parts of a model for a pipeline, computed one after the other, with the whole model. Return the
    largest relative difference, as in `compare`."""
    found = layer.split(inputs)
    assert isinstance(found, ModelParts)
    whole = build_node(layer, inputs)
    whole.load_state_dict(draw_model(layer, inputs, 0).state_dict())
    parts = {path: layer.take_part(path).build(inputs) for path in found.outputs}
    values = dict(whole.named_parameters(remove_duplicate=False))
    for path, part in parts.items():
        with torch.no_grad():
            for name, item in part.named_parameters(remove_duplicate=False):
                item.copy_(values[f"{path}.{name}"])
    for module in (whole, *parts.values()):
        _prepare(module, dtype)
    chain = _Chain(list(parts.values()))
    wanted, gradients = _step(whole, layer, tokens, slice(None))
    output, _ = _step(chain, layer, tokens, slice(None))
    largest = _difference(wanted, output, float(wanted.abs().max()))
    own: dict[str, list[Tensor]] = {}
    for path, part in parts.items():
        for name, item in part.named_parameters():
            if item.grad is not None:
                full = f"{path}.{name}"
                own.setdefault(found.ties.get(full, full), []).append(item.grad)
    top = max(float(item.abs().max()) for item in gradients.values() if item is not None)
    for name, gradient in gradients.items():
        if gradient is not None:
            scale = max(float(gradient.abs().max()), 1e-6 * top)
            largest = max(largest, _difference(gradient, torch.stack(own[name]).sum(0), scale))
    return largest


class _Chain(nn.Module):
    """Module that applies several modules, one after the other."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor, *others: None) -> Tensor:
        for part in self.parts:
            x = part(x, *others)
        return x


def _divide(
    layer: Transformers,
    inputs: Mapping[str, TensorSpec],
    cut: LayerCut,
    kind: CutKind,
    peers: ThreadPeers,
    whole: nn.Module,
) -> nn.Module:
    """Return the part of a model that one rank has, with the values of `whole`."""
    with torch.device("meta"):
        module: Any = build_node(layer, inputs)
    if kind == "experts":
        module.divide_experts(list(cut.parts), ExpertRanks(peers))
    else:
        module.divide_parts({name: part.kind for name, part in cut.parts.items() if part.kind}, TensorRanks(peers))
    cuts = {name: RankCut(each, peers.rank, peers.size) for name, each in cut.parameters.items()}
    cut_parameters(module, cuts)
    materialise([module], torch.device("cpu"))
    module.reset_buffers()
    own = dict(module.named_parameters())
    with torch.no_grad():
        for name, values in whole.named_parameters():
            if name not in cuts:
                own[name].copy_(values)
                continue
            for block, first in blocks_of(own[name], cuts[name]):
                block.copy_(_block(values, first, block))
    return module  # type: ignore[no-any-return]


def _block(whole: Tensor, first: Sequence[int], block: Tensor) -> Tensor:
    """Return the block of `whole` that begins at the indices `first`, and has the shape of `block`."""
    return whole[tuple(slice(at, at + length) for at, length in zip(first, block.shape, strict=True))]


def _prepare(model: Any, dtype: torch.dtype) -> None:
    model.to(dtype).eval()
    for part in model.modules():
        if dtype == torch.float64 and hasattr(part, "_is_expert_parallel"):
            part.config._experts_implementation = "eager"  # torch's grouped matrix product has no float64


def _step(
    model: nn.Module, layer: Transformers, tokens: Tensor, rows: slice
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Return the outputs for the rows `rows` of `tokens`, and the gradients of a sum of all outputs with random
    weights."""
    output = model(tokens[rows], *[None] * (len(layer.ports) - 1))
    shape = (len(tokens), *output.shape[1:])
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    (output * weights[rows]).sum().backward()
    return output.detach(), {name: item.grad for name, item in model.named_parameters()}


def _difference(wanted: Tensor, found: Tensor, scale: float) -> float:
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max()) / max(scale, 1e-30) if wanted.numel() else 0.0
