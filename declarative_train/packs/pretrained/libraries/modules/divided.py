"""Division of a model of transformers over the ranks of the axes `tensor` and `expert`, as `division.py` decides. The
functions here replace linear layers and experts by this rank's part of them, and put hooks on other modules. The new
layers and the hooks communicate with the other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.divided_linear import divide_linear
from declarative_train.components.layers.modules.expert_ranks import ExpertRanks, OwnExperts
from declarative_train.components.layers.modules.moe import apply_experts


def divide_parts(model: nn.Module, parts: Mapping[str, str], ranks: TensorRanks) -> None:
    """Change submodules of a model so that each rank computes only a part of them. `parts`: {path of a submodule: how
    it is divided}. The caller must then replace the parameters by this rank's parts of them."""
    for path, kind in parts.items():
        part = model.get_submodule(path)
        if isinstance(part, nn.Embedding):
            (_look_up_part if kind == "vocabulary" else _join)(part, ranks)
        elif isinstance(part, nn.Identity):  # the output of an undivided expert, which the ranks sum
            part.register_forward_pre_hook(lambda _, inputs: (inputs[0] / ranks.size, *inputs[1:]))
        elif kind == "hidden":
            _sum_outputs(part, ranks)
        elif kind == "shared" and isinstance(part, nn.Linear):
            _share_rotary_keys(part, _rope_width(model), ranks)
        elif isinstance(part, nn.Linear):
            divided = divide_linear(part, "rows" if kind == "split" else kind, ranks)
            if kind == "split":
                divided.register_forward_pre_hook(lambda _, inputs: (ranks.split(inputs[0]), *inputs[1:]))
            model.set_submodule(path, divided)


def divide_experts(model: nn.Module, parts: Sequence[str], peers: ExpertRanks) -> None:
    """Divide the experts of a model over the ranks of the axis `expert`. `parts`: paths of the submodules that contain
    experts. The caller then replaces the parameters by those of this rank's experts."""
    for path in parts:
        part: Any = model.get_submodule(path)
        kind: Any = type(part)
        part.__class__ = _class_of_own(kind)
        part.peers, part.num_experts = peers, part.num_experts // peers.size


class _OwnLibraryExperts(OwnExperts):
    """Mixin for a library's class of experts, in a model of which each rank has only some experts. Its forward has the
    library's arguments and result: (rows, indices of the chosen experts, weights) -> rows. It sends each row to the
    ranks that have its experts. There, the library's code computes the experts."""

    peers: ExpertRanks
    num_experts: int

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        x_ND, chosen_NK, weights_NK = (*given, *named.values())
        y = apply_experts(self._compute, self.peers, self.num_experts * self.peers.size, x_ND, chosen_NK, weights_NK)
        return y.to(x_ND.dtype)

    def _compute(self, rows: Tensor, ends: Tensor) -> Tensor:
        some = rows if len(rows) else rows.sum(0, keepdim=True)  # never empty, so that the parameters get a gradient
        numbers = torch.searchsorted(ends, torch.arange(len(some), device=ends.device, dtype=ends.dtype), right=True)
        numbers = numbers.clamp(max=self.num_experts - 1).unsqueeze(-1)
        found: Tensor = super().forward(some, numbers, torch.ones_like(numbers, dtype=rows.dtype))
        return found[: len(rows)]


@cache
def _class_of_own(kind: Any) -> Any:
    return type(kind.__name__, (_OwnLibraryExperts, kind), {"__module__": kind.__module__})


def _rope_width(model: Any) -> int:
    width: int = model.config.get_text_config().qk_rope_head_dim
    return width


def _look_up_part(part: nn.Embedding, ranks: TensorRanks) -> None:
    """Make an embedding look up only the rows that this rank has, and sum the resulting vectors over the ranks."""
    rows = part.num_embeddings // ranks.size
    first = ranks.index * rows
    padding = None if part.padding_idx is None else part.padding_idx - first
    part.padding_idx = padding if padding in range(rows) else None
    held: list[Tensor] = []

    def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        place = inputs[0] - first
        is_here = (place >= 0) & (place < rows)
        held.append(is_here)
        return (torch.where(is_here, place, 0), *inputs[1:])

    def leave(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return ranks.add(output * held.pop().unsqueeze(-1))

    part.register_forward_pre_hook(enter)
    part.register_forward_hook(leave)


def _join(part: nn.Module, ranks: TensorRanks) -> None:
    part.register_forward_hook(lambda _, inputs, output: ranks.join(output))


def _sum_outputs(part: nn.Module, ranks: TensorRanks) -> None:
    """Make a module sum its outputs over the ranks, and in the backward pass the gradients of its inputs."""

    def enter_one(value: Any) -> Any:
        return ranks.enter(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    def enter(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(enter_one, inputs)), {name: enter_one(value) for name, value in named.items()}

    part.register_forward_pre_hook(enter, with_kwargs=True)
    part.register_forward_hook(lambda _, inputs, output: ranks.add(output))


def _share_rotary_keys(part: nn.Linear, width: int, ranks: TensorRanks) -> None:
    """Make the backward sum the gradients of the last `width` output features of the projection `part` over the ranks.
    These features are the rotary keys, which the heads of all ranks read. The gradients of the other features are
    summed by the divided layer that reads them."""

    def leave(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return torch.cat([output[..., :-width], ranks.enter(output[..., -width:])], -1)

    part.register_forward_hook(leave)
