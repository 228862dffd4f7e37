"""Random numbers in training. Before each forward, the generators are seeded with a hash of (seed, step, data-parallel
rank, stage, chunk), so that checkpoints need no state of generators.

With the same layout a run draws bitwise the same numbers, even if it was interrupted. With another layout it draws
other numbers from the same distribution."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.components.expressions.grammar import parse
from declarative_train.graph.read import read_layer

if TYPE_CHECKING:
    from declarative_train.graph.graph import Graph

_MASK = (1 << 64) - 1


class Randomness:
    """Random generators of this rank. `key`: this rank's part of the seed, (data-parallel rank, stage). If `needed` is
    False, the model draws no random numbers, and nothing is seeded."""

    def __init__(self, seed: int, key: tuple[int, ...], device: torch.device, *, needed: bool) -> None:
        self._key = mix(seed, *key)
        self._needed = needed
        self._generators: list[Any] = [torch.default_generator]  # objects with a method `manual_seed`
        self.add([device])

    def add(self, devices: Sequence[torch.device]) -> None:
        """Add the generators of further devices on which this process draws random numbers."""
        if self._needed:
            self._generators += [
                torch.cuda.default_generators[device.index or 0] for device in devices if device.type == "cuda"
            ]
            self._generators += [torch.mps for device in devices if device.type == "mps"]

    def begin(self, step: int, chunk: int, part: int = 0) -> None:
        """Seed the generators before the forward of a chunk (the rows of one forward). `chunk`: index of the chunk in
        the step. `part`: index of the pipeline stage, as a rank may have several stages; 0 without a pipeline."""
        if self._needed:
            # not `torch.manual_seed`, which looks for every backend and takes 96 us
            for number, generator in enumerate(self._generators):
                generator.manual_seed(mix(self._key, step, chunk, part, number))


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Apply `training.deterministic` within the `with` block. If `wanted`, operations without a deterministic kernel
    raise an error. Otherwise cuDNN tries its kernels for each shape and uses the fastest.

    Enter the block before the first matrix product on a GPU, because cuBLAS reads its environment variable for
    determinism only then.
    """
    cudnn = torch.backends.cudnn
    if not wanted:
        tried, cudnn.benchmark = cudnn.benchmark, True
        try:
            yield
        finally:
            cudnn.benchmark = tried
        return
    before = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        cudnn.deterministic, cudnn.benchmark = before[1:]


def mix(*words: int) -> int:
    """Return a 64-bit hash of whole numbers. It applies the last step of splitmix64 to one number after the other."""
    state = 0x9E3779B97F4A7C15
    for word in words:
        state = (state ^ word & _MASK) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def draws(graph: Graph, plugins: tuple[str, ...] = ()) -> bool:
    """Return whether a layer or expression of the graph draws random numbers in training. `plugins`: plugin files,
    which may define layers of the graph."""
    for node in graph.nodes:
        if node.kind == "layer" and node.component is not None and read_layer(node.component, plugins).is_random:
            return True
        if node.kind == "expression" and node.expression is not None and parse(node.expression).is_random:
            return True
        if node.graph is not None and draws(node.graph, plugins):
            return True
    return False
