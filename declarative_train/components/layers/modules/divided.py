"""Parts of a layer on the ranks of the `tensor` axis, and the communication between them.

Shoeybi et al., Megatron-LM, 2019: the input of divided layers is the same on all ranks, and its gradient is the sum of
theirs (`enter`); their outputs are summed, and the gradient of the sum is the same on all ranks (`add`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from declarative_train.core.cuts import RankCut

Exchange = Callable[[Tensor], Tensor]
_CUTS = "_dtrain_cuts"


class Peers(Protocol):
    """Ranks that reduce and gather tensors: this one is `rank` of `size`."""

    rank: int
    size: int

    def sum(self, tensor: Tensor) -> Tensor: ...
    def max(self, tensor: Tensor) -> Tensor: ...
    def gather(self, tensor: Tensor) -> Tensor: ...
    def gather_tokens(self, tensor: Tensor) -> Tensor: ...
    def sum_tokens(self, tensor: Tensor) -> Tensor: ...


class TensorRanks:
    """Ranks of the `tensor` axis, with operations that have a backward; this one is `index` of `size`.

    `reads` and `writes`: the state of the tokens around a layer, as in `graph/token_cuts.py`.
    """

    def __init__(self, peers: Peers, reads: str = "whole", writes: str = "whole") -> None:
        self._peers, self._reads, self._writes = peers, reads, writes
        self.index, self.size = peers.rank, peers.size

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of a divided layer, whole and equal on all ranks; in the backward, its gradients are
        summed."""
        if self._reads == "joined":  # `gather_tokens` has done both
            return x
        if self._reads == "tokens":
            return self.gather_tokens(x)
        return exchange(x, _unchanged, self._sum) if x.requires_grad else x

    def add(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, or this rank's tokens of it; in the backward, each gets the gradient of the
        sum."""
        if self._writes == "tokens":
            return exchange(x, self._peers.sum_tokens, self._peers.gather_tokens)
        return exchange(x, self._sum, _unchanged)

    def join(self, x: Tensor) -> Tensor:
        """Return the features of all ranks (..., F * size); in the backward, each gets the gradient of its own."""
        return exchange(x, lambda part: self._peers.gather(part.contiguous()), lambda whole: self._own(whole, -1))

    def gather_tokens(self, x: Tensor) -> Tensor:
        """Return the tokens of all ranks (B, T, ...) for layers that each give a part of their gradient; in the
        backward, each rank gets the sum of the gradients of its tokens."""
        return exchange(x, self._peers.gather_tokens, self._peers.sum_tokens)

    def copy_tokens(self, x: Tensor) -> Tensor:
        """Return the tokens of all ranks (B, T, ...) for a layer that all compute alike; in the backward, each rank
        gets the gradient of its tokens."""
        return exchange(x, self._peers.gather_tokens, lambda whole: self._own(whole, 1))

    def own_tokens(self, x: Tensor) -> Tensor:
        """Return this rank's part of the tokens (B, T, ...), which are equal on all ranks; in the backward, the
        gradients of all tokens are gathered."""
        return exchange(x, lambda whole: self._own(whole, 1), self._peers.gather_tokens)

    def total(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, without a gradient."""
        return self._sum(x.detach())

    def max(self, x: Tensor) -> Tensor:
        """Return the greatest value of each element over the ranks, without a gradient."""
        return self._peers.max(x.detach().contiguous())

    def _sum(self, x: Tensor) -> Tensor:
        return self._peers.sum(x.contiguous())

    def _own(self, x: Tensor, dim: int) -> Tensor:
        return self.take_part(x, dim).contiguous()

    def take_part(self, x: Tensor, dim: int) -> Tensor:
        """Return this rank's part of a tensor along a dimension."""
        return x.chunk(self.size, dim)[self.index]

    def __deepcopy__(self, memo: dict[int, object]) -> TensorRanks:
        return self  # process groups cannot be copied


class _Exchange(torch.autograd.Function):
    """Communication with one function of a tensor ahead, and another one of its gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ahead: Exchange, back: Exchange) -> Tensor:
        ctx.back = back
        return ahead(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0]), None, None


def exchange(x: Tensor, ahead: Exchange, back: Exchange) -> Tensor:
    """Return `ahead(x)`; the gradient of x is `back` of that of the result."""
    found: Tensor = _Exchange.apply(x, ahead, back)  # type: ignore[no-untyped-call]
    return found


def _unchanged(x: Tensor) -> Tensor:
    return x.view_as(x)


def set_cuts(part: nn.Module, cuts: Mapping[str, RankCut], made: dict[Tensor, nn.Parameter]) -> None:
    """Replace parameters of a module on the meta device by this rank's parts, and record their cuts on the module, as
    sharding replaces the tensors. `made`: the parts of whole parameters so far, so that tied ones stay tied."""
    for name, cut in cuts.items():
        whole = part._parameters[name]
        packed = getattr(part, "packed", None) if name == "weight" else None
        assert whole is not None
        shape = cut.local_shape(whole.shape) if packed is None else packed.divide(cut, len(whole))
        if whole not in made:
            local = torch.empty(shape, dtype=whole.dtype, device="meta")
            made[whole] = nn.Parameter(local, whole.requires_grad)
        part._parameters[name] = made[whole]
    setattr(part, _CUTS, dict(cuts))


def find_cuts(model: nn.Module) -> dict[str, RankCut]:
    """Return the cuts of all parameters of which this rank holds a part, by name."""
    return {
        f"{path}.{name}": cut for path, part in model.named_modules() for name, cut in getattr(part, _CUTS, {}).items()
    }
