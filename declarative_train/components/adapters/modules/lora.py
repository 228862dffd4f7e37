"""A linear map with a trained product of two thin matrices beside its own, frozen one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.layers.modules.packed import Packed, product

if TYPE_CHECKING:
    from collections.abc import Iterator


class LoraLinear(nn.Linear):
    """x (..., in) -> (..., out): x W^T + b + scaling * dropout(x) A^T B^T.

    `adapter` is the component. `weight` (out, in) and `bias` keep the names that they have without an adapter, so
    that files and checkpoints of the base fit; beside them stand `lora_A.weight` (rank, in) and `lora_B.weight` (out,
    rank), PEFT's names. Of a joined map that PEFT adapted as several, each part has an A of its own (`Lora.split`).
    Hu et al., LoRA, 2021, https://arxiv.org/abs/2106.09685, section 4.1.
    """

    def __init__(self, base: nn.Linear, adapter: Any) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.packed: Packed | None = None
        place = {"dtype": base.weight.dtype, "device": base.weight.device}
        (rows_a, _), (rows_b, _) = adapter.shapes((base.out_features, base.in_features)).values()
        self.lora_A = nn.Linear(base.in_features, rows_a, bias=False, **place)
        self.lora_B = nn.Linear(adapter.rank, rows_b, bias=False, **place)
        self.split = adapter.split
        self.adapter = adapter
        self.scaling, self.dropout = adapter.scaling, adapter.dropout

    def forward(self, input: Tensor) -> Tensor:
        y = product(input, self.weight, self.bias, self.packed)
        x = F.dropout(input, self.dropout) if self.training and self.dropout else input
        z: Tensor = self.lora_A(x)
        if self.split is not None:
            return self._in_parts(y, z)
        changed: Tensor = y + self.lora_B(z) * self.scaling
        return changed

    def _in_parts(self, y: Tensor, z: Tensor) -> Tensor:
        """Each part of z (..., parts * rank) changes its own rows of y; what lies between them stays."""
        assert self.split is not None
        found, done, first_b = [], 0, 0
        for (first, last), part in zip(self.split, z.chunk(len(self.split), -1), strict=True):
            rows = F.linear(part, self.lora_B.weight[first_b : first_b + last - first])
            found += [y[..., done:first], y[..., first:last] + rows * self.scaling]
            done, first_b = last, first_b + last - first
        return torch.cat([*found, y[..., done:]], -1)


def linear_maps(module: nn.Module) -> dict[str, tuple[int, int]]:
    """The path of each linear map in a layer's module ("" for itself) and the shape of its weight; those of an adapter
    are none, and none is one that has its weight from elsewhere in the module, as a tied head has."""
    users: dict[int, int] = {}
    for _, item in module.named_parameters(remove_duplicate=False):
        users[id(item)] = users.get(id(item), 0) + 1
    found = ((path, part) for path, part in _linear(module, "") if users.get(id(part.weight), 1) == 1)
    return {path: (part.out_features, part.in_features) for path, part in found}


def _linear(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Linear]]:
    if isinstance(module, nn.Linear):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _linear(child, f"{path}.{name}" if path else name)
