"""Linear map with a frozen weight and a trained low-rank change of it (LoRA). With DoRA, the lengths of the rows are
trained too."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.packed import Packed, product
from declarative_train.packs.pretrained.adapters import MAGNITUDE


class LoraLinear(nn.Linear):
    """Linear map W, b plus an adapter A, B: x (..., in) -> x W^T + b + scaling * dropout(x) A^T B^T, (..., out).

    weight, bias             (out, in), (out,): the base model, with the names that its files have
    lora_A.weight            (rank, in); several A under each other if PEFT adapted parts of the map separately
    lora_B.weight            (out, rank)
    lora_magnitude_vector    m (rows,), for DoRA: the result is x (m W' / |W'|)^T + b, where W' = W + scaling * B A and
                             |W'| are the lengths of its rows; with dropout, only x W^T is computed from x, and what is
                             added to it from dropout(x), as in PEFT

    Hu et al., LoRA, 2021, https://arxiv.org/abs/2106.09685, section 4.1. Liu et al., DoRA, 2024,
    https://arxiv.org/abs/2402.09353, sections 4.1 and 4.3.
    """

    def __init__(self, base: nn.Linear, adapter: Any) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.packed: Packed | None = None
        place: dict[str, Any] = {"dtype": base.weight.dtype, "device": base.weight.device}
        (rows_a, _), (rows_b, _), *_ = adapter.shapes((base.out_features, base.in_features)).values()
        self.lora_A = nn.Linear(base.in_features, rows_a, bias=False, **place)
        self.lora_B = nn.Linear(adapter.rank, rows_b, bias=False, **place)
        if adapter.has_magnitude:
            self.lora_magnitude_vector = nn.Parameter(torch.ones(rows_b, **place))
        self.has_magnitude, self.split = adapter.has_magnitude, adapter.split
        self.adapter = adapter
        self.scaling, self.dropout = adapter.scaling, adapter.dropout
        self._ranks: TensorRanks | None = None
        self._kind = ""

    def divide(self, kind: str, ranks: TensorRanks) -> None:
        """Prepare the module to compute only this rank's part of the linear map. `ranks`: the ranks that divide the
        map. `kind`: how they divide it (`LayerCut.kind`). The caller then replaces the parameters by their parts on
        this rank."""
        self._kind, self._ranks = kind, ranks
        if kind != "rows" and self.split is not None:
            self.split = tuple((first // ranks.size, last // ranks.size) for first, last in self.split)
            self.adapter = self.adapter.model_copy(update={"split": self.split})

    def forward(self, input: Tensor) -> Tensor:
        ranks = self._ranks
        if ranks is None or self._kind == "heads":
            return self._multiply(input, self.bias)
        if self._kind == "rows":
            y = ranks.add(self._multiply(input, None))
            return y if self.bias is None else y + self.bias
        y = self._multiply(ranks.enter(input), self.bias)
        return ranks.join(y) if self._kind == "gathered" else y

    def _multiply(self, input: Tensor, bias: Tensor | None) -> Tensor:
        if self.has_magnitude:
            return self._scale_rows(input, bias)
        y = product(input, self.weight, bias, self.packed)
        z: Tensor = self.lora_A(self._drop(input))
        if self.split is not None:
            return self._add_parts(y, z)
        changed: Tensor = y + self.lora_B(z) * self.scaling
        return changed

    def _drop(self, input: Tensor) -> Tensor:
        if not (self.training and self.dropout):
            return input
        if self._ranks is None or self._kind != "rows":
            return F.dropout(input, self.dropout)
        # draws for all features, as in one process; this rank uses those of its features
        kept = F.dropout(input.new_ones(*input.shape[:-1], input.shape[-1] * self._ranks.size), self.dropout)
        return input * self._ranks.take_part(kept, -1)

    def _scale_rows(self, input: Tensor, bias: Tensor | None) -> Tensor:
        x = self._drop(input)
        y = product(input, self.weight, None, self.packed)
        base = y if x is input else product(x, self.weight, None, self.packed)
        with torch.no_grad(), torch.autocast(input.device.type, enabled=False):
            lengths = self._lengths(self.weight, self.lora_A.weight, self.lora_B.weight)
        factors = row_factors(lengths, self.lora_magnitude_vector, self.split).to(y.dtype)
        z: Tensor = self.lora_A(x)
        change = self.lora_B(z) * self.scaling if self.split is None else self._add_parts(torch.zeros_like(y), z)
        made: Tensor = y + (factors - 1) * base + factors * change
        return made if bias is None else made + bias.to(made.dtype)

    def _lengths(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return the lengths (out,) of the rows of the adapted weight, which is `weight` plus the scaled product of `b`
        and `a`."""
        lengths: Tensor = torch.linalg.vector_norm(self.add_product(weight, a, b), dim=1)
        if self._ranks is None or self._kind != "rows":
            return lengths
        return self._ranks.total(lengths.square()).sqrt()

    def add_product(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return the adapted weight, which is `weight` plus the scaled product of `b` and `a`, in at least float32."""
        wide = torch.promote_types(a.dtype, torch.float32)
        whole = weight.to(wide) if self.packed is None else self.packed.unpack(weight, wide)
        found: Tensor = self.adapter.add_product(whole, a.to(wide), b.to(wide))
        return found

    def start_from_weights(self, path: str, given: Container[str]) -> None:
        """Set the magnitudes of DoRA to the lengths of the rows of the current weight, unless they already have values.
        Sharded tensors are gathered for this. `path`: path of the module. `given`: names of parameters that have
        values."""
        if not self.has_magnitude or f"{path}.{MAGNITUDE}" in given:
            return
        lengths = self._lengths(
            *(_whole(each.detach()) for each in (self.weight, self.lora_A.weight, self.lora_B.weight))
        )
        if self.split is not None:
            lengths = torch.cat([lengths[first:last] for first, last in self.split])
        _write(self.lora_magnitude_vector, lengths)

    def _add_parts(self, y: Tensor, z: Tensor) -> Tensor:
        """Return `y` plus the outputs of the adapters. `y` (..., out): joined outputs of several linear maps, such as
        `qkv`. `z` (..., number of adapters * rank): the input times A of each adapter. `self.split` has, for each map
        with an adapter, its range in the last dimension of `y`."""
        assert self.split is not None
        found, done, first_b = [], 0, 0
        for (first, last), part in zip(self.split, z.chunk(len(self.split), -1), strict=True):
            rows = F.linear(part, self.lora_B.weight[first_b : first_b + last - first])
            found += [y[..., done:first], y[..., first:last] + rows * self.scaling]
            done, first_b = last, first_b + last - first
        return torch.cat([*found, y[..., done:]], -1)


def row_factors(lengths: Tensor, magnitude: Tensor, split: tuple[tuple[int, int], ...] | None) -> Tensor:
    """Return the factor of each row, (out,), by which DoRA multiplies the weight: magnitude / length of the row.
    `split`: ranges (first, end) of the adapted rows; other rows get the factor 1. None: all rows are adapted."""
    lengths = lengths.clamp_min(torch.finfo(lengths.dtype).tiny)  # a row of zeros stays zero
    if split is None:
        factors: Tensor = magnitude / lengths
        return factors
    found, done, first_m = [], 0, 0
    for first, last in split:
        part = magnitude[first_m : first_m + last - first] / lengths[first:last]
        found += [torch.ones_like(lengths[done:first]), part]
        done, first_m = last, first_m + last - first
    return torch.cat([*found, torch.ones_like(lengths[done:])])


def _whole(tensor: Tensor) -> Tensor:
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def _write(tensor: Tensor, whole: Tensor) -> None:
    if not hasattr(tensor, "placements"):
        tensor.copy_(whole)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    local = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.to_local().copy_(local.to_local())
