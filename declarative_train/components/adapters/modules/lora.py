"""A linear map with a trained product of two thin matrices beside its own, frozen one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Iterator


class LoraLinear(nn.Linear):
    """x (..., in) -> (..., out): x W^T + b + scaling * dropout(x) A^T B^T.

    `adapter` is the component. `weight` (out, in) and `bias` keep the names that they have without an adapter, so
    that files and checkpoints of the base fit; beside them stand `lora_A.weight` (rank, in) and `lora_B.weight` (out,
    rank), PEFT's names.
    Hu et al., LoRA, 2021, https://arxiv.org/abs/2106.09685, section 4.1.
    """

    def __init__(self, base: nn.Linear, adapter: Any) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        place = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.lora_A = nn.Linear(base.in_features, adapter.rank, bias=False, **place)
        self.lora_B = nn.Linear(adapter.rank, base.out_features, bias=False, **place)
        self.adapter = adapter
        self.scaling, self.dropout = adapter.scaling, adapter.dropout

    def forward(self, input: Tensor) -> Tensor:
        y = F.linear(input, self.weight, self.bias)
        x = F.dropout(input, self.dropout) if self.training and self.dropout else input
        z: Tensor = self.lora_B(self.lora_A(x))
        changed: Tensor = y + z * self.scaling
        return changed


def linear_maps(module: nn.Module) -> dict[str, tuple[int, int]]:
    """The path of each linear map in a layer's module ("" for itself) and the shape of its weight; those of an adapter
    are none."""
    return {path: (part.out_features, part.in_features) for path, part in _linear(module, "")}


def _linear(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Linear]]:
    if isinstance(module, nn.Linear):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _linear(child, f"{path}.{name}" if path else name)
