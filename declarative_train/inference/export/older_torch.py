"""What older versions of torch export wrongly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._decomp import decompositions


@contextmanager
def states_in_shape() -> Iterator[None]:
    """The final states of an LSTM while it is exported: the decomposition of torch 2.11 leaves a dimension of 1 in
    front of each, so that the program has wrong shapes behind them (torch-facts, section 6). That of 2.13 does not."""
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
