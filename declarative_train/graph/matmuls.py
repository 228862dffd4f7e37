"""The matrix products of an expression, found by running it: `scores @ values`, `matmul(a, b)`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.lower import infer
from declarative_train.components.products import Product
from declarative_train.graph.probe import SMALL_ACTIVATIONS
from declarative_train.terms.tensor_spec import TensorSpec


@lru_cache(maxsize=256)
def matmuls(
    text: str, inputs: tuple[tuple[str, TensorSpec], ...], graded: tuple[tuple[str, bool], ...]
) -> tuple[Product, ...]:
    """Of one sample."""
    if "@" not in text and "matmul" not in text:
        return ()
    wants = dict(graded)
    num_elements = sum(spec.num_elements for _, spec in inputs)
    device = torch.device("cpu" if num_elements <= SMALL_ACTIVATIONS else "meta")
    tensors = {name: _example(spec, wants[name], device) for name, spec in inputs}
    counting = _Counting()
    with torch.enable_grad(), counting:
        infer(parse(text), tensors)
    return tuple(counting.found)


def _example(spec: TensorSpec, wants_gradient: bool, device: torch.device) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    made = torch.ones((1, *spec.shape), dtype=dtype, device=device)
    return made.requires_grad_(wants_gradient and spec.is_floating)


class _Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Product] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("matmul", "__matmul__", "__rmatmul__"):
            first, second = args[:2]
            sides = int(first.requires_grad) + int(second.requires_grad)
            self.found.append(Product(2 * result.numel() * first.shape[-1], sides))
        return result
