"""Fixes for errors in the export of older versions of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._decomp import decompositions


@contextmanager
def fix_lstm_states() -> Iterator[None]:
    """Fix the shapes of an LSTM's final states while it is exported. The decomposition of torch 2.11 leaves a leading
    dimension of 1 in each, so that later shapes are wrong (torch-facts, section 6). That of 2.13 is right."""
    shared: Any = decompositions
    before = shared.one_layer_lstm

    def one_layer(x: Tensor, states: Sequence[Tensor], *rest: Any, **more: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, final = before(x, states, *rest, **more)
        return output, tuple(
            each if each.dim() == first.dim() else each.reshape(first.shape)
            for each, first in zip(final, states, strict=True)
        )

    shared.one_layer_lstm = one_layer
    try:
        yield
    finally:
        shared.one_layer_lstm = before
