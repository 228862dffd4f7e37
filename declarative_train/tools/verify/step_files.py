"""Files with the tensors of the step that a single process computes for comparison: parameters, gradients and updated
parameters. They are mapped into memory, so that a rank reads only its own parts."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path

import torch

from declarative_train.core.cuts import RankCut
from declarative_train.graph.initialise import blocks_of, local_rows

AT_ONCE = 1 << 22  # elements that are compared at a time

Place = tuple[tuple[int, ...], tuple[int, ...]]
"""Block of a whole tensor: its first element and its size along each dimension."""


@dataclass(slots=True)
class ParameterRecord:
    """Record of one parameter after the step that a single process computes for comparison. `gradient`: largest
    absolute value of its gradient; None if it has none. `moved`: largest absolute value of its update. `largest`:
    largest absolute value of the parameter after the update."""

    shape: tuple[int, ...]
    dtype: str
    gradient: float | None = None
    moved: float = 0.0
    largest: float = 0.0


@dataclass(slots=True)
class StepIndex:
    """Facts about the step as one process computes it.

    samples     index in the set of each row of the global batch
    counts      number of items of each loss term, by which its sum is divided
    sums        sum of each loss term over the global batch
    norm        norm of all gradients together
    nodes       dict from the path of a layer to its output's shape for one sample
    statistics  records of running statistics, such as those of batch norms, by name
    """

    samples: list[int] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    norm: float = 0.0
    parameters: dict[str, ParameterRecord] = field(default_factory=dict)
    nodes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    statistics: dict[str, ParameterRecord] = field(default_factory=dict)


class StepFiles:
    """Folder with the tensors of the step that a single process computes for comparison. The single process writes
    whole tensors; each rank reads its parts of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_index(self, index: StepIndex) -> None:
        (self._folder / "index").write_bytes(pickle.dumps(index))

    @cached_property
    def index(self) -> StepIndex:
        found: StepIndex = pickle.loads((self._folder / "index").read_bytes())
        return found

    def write(self, kind: str, number: int, tensor: torch.Tensor) -> None:
        """Write all values of a tensor. `kind`: start, gradient, updated, node or statistic. `number`: index of the
        parameter, node or statistic."""
        tensor = tensor.detach()
        self._open(kind, number, tensor.shape, tensor.dtype).copy_(tensor)

    def read(self, kind: str, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self._open(kind, number, shape, dtype)

    def _open(self, kind: str, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if not prod(shape):
            return torch.empty(shape, dtype=dtype)
        path = self._folder / f"{kind}_{number}"
        return torch.from_file(str(path), shared=True, size=prod(shape), dtype=dtype).view(shape)


def parts_of(tensor: torch.Tensor, cut: RankCut | None) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """Yield each block of the whole tensor that this rank has, as (values, index of the block's first element in the
    whole tensor). `tensor`: the parameter or gradient on this rank. `cut`: its division by the axis `tensor` or
    `expert`; None if it is whole, or only sharded by rows."""
    if cut is not None:
        yield from blocks_of(tensor, cut)
        return
    rows = local_rows(tensor)
    assert rows is not None, "a parameter is sharded by rows"
    if rows.values.numel():
        yield rows.values, (rows.first, *[0] * (rows.values.dim() - 1))[: rows.values.dim()]


def pieces(values: torch.Tensor, first: tuple[int, ...]) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """Split a block of a tensor into smaller blocks of a few rows. Yield (values, position) of each smaller block. A
    position is the index of a block's first element in the whole tensor. `first`: the position of `values`."""
    if not values.dim():
        yield values, first
        return
    rows = max(1, AT_ONCE // max(1, values[0].numel()))
    for row in range(0, len(values), rows):
        yield values[row : row + rows], (first[0] + row, *first[1:])


def part_at(whole: torch.Tensor, first: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    """Return a block of the tensor `whole`, as a view. `first`: index of the block's first element. `sizes`: the
    block's shape."""
    found: torch.Tensor = whole[tuple(slice(begin, begin + size) for begin, size in zip(first, sizes, strict=True))]
    return found
