"""Tensor parallelism: a layer is divided over the ranks of the `tensor` axis, with communication before and after it.

Shoeybi et al., Megatron-LM, 2019. Before a divided layer (`enter`), the input is the same on all ranks, and the
backward sums its gradient over the ranks. After the layer (`add`), the outputs are summed over the ranks, and the
gradient of the sum is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from declarative_train.core.cuts import RankCut

Exchange = Callable[[Tensor], Tensor]
_CUTS = "_dtrain_cuts"


class Peers(Protocol):
    """Interface of a process group whose ranks sum and gather tensors. `rank`: index of this process among the `size`
    processes."""

    rank: int
    size: int

    def sum(self, tensor: Tensor) -> Tensor: ...
    def max(self, tensor: Tensor) -> Tensor: ...
    def gather(self, tensor: Tensor) -> Tensor: ...
    def gather_tokens(self, tensor: Tensor) -> Tensor: ...
    def sum_tokens(self, tensor: Tensor) -> Tensor: ...
    def exchange(self, tensor: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor: ...


class TensorRanks:
    """Ranks of the `tensor` axis, with differentiable communication. `index`: index of this process among the `size`
    ranks. `reads`: tokens of the layer's input that this rank gets: "whole" (all), "tokens" (only its own) or "joined"
    (all, already gathered; see `graph/token_cuts.py`). `writes`: tokens of the output that it returns, "whole" or
    "tokens"."""

    def __init__(self, peers: Peers, reads: str = "whole", writes: str = "whole") -> None:
        self._peers, self._reads, self._writes = peers, reads, writes
        self.index, self.size = peers.rank, peers.size

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of a divided layer with all tokens, equal on all ranks. If `reads` is "tokens", `x` has only
        this rank's tokens, and the others are gathered. The backward sums the gradients of the ranks. If `reads` is
        "joined", `x` is returned unchanged: `gather_tokens` has gathered it, and will sum the gradients."""
        if self._reads == "joined":  # `gather_tokens` has gathered the tokens, and will sum the gradients
            return x
        if self._reads == "tokens":
            return self.gather_tokens(x)
        return exchange(x, _identity, self._sum) if x.requires_grad else x

    def add(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks: with all tokens if the class's `writes` is "whole", with only this
        rank's tokens if it is "tokens". In the backward, every rank gets the gradient of the whole sum."""
        if self._writes == "tokens":
            return exchange(x, self._peers.sum_tokens, self._peers.gather_tokens)
        return exchange(x, self._sum, _identity)

    def join(self, x: Tensor) -> Tensor:
        """Return the features of all ranks side by side, (..., F * size), given this rank's features `x` (..., F). In
        the backward, each rank gets the gradient of its own features.
        """
        return exchange(x, lambda part: self._peers.gather(part.contiguous()), lambda whole: self._own(whole, -1))

    def split(self, x: Tensor) -> Tensor:
        """Return this rank's part of the features of `x` (..., F), which is equal on all ranks. In the backward, each
        rank gets the gradients of all features, gathered from the ranks.
        """
        return exchange(x, lambda whole: self._own(whole, -1), lambda part: self._peers.gather(part.contiguous()))

    def gather_tokens(self, x: Tensor) -> Tensor:
        """Return the tokens of all ranks (B, T, ...), given this rank's tokens `x`: the input of a divided layer. Each
        rank computes only one summand of the gradient of this input, so the backward sums over the ranks."""
        return exchange(x, self._peers.gather_tokens, self._peers.sum_tokens)

    def copy_tokens(self, x: Tensor) -> Tensor:
        """Return all tokens (B, T, ...), given this rank's tokens `x`. Use it before a layer that is not divided. Every
        rank computes the whole gradient of that layer's input. So the backward returns this rank's part of it, without
        a sum over ranks."""
        return exchange(x, self._peers.gather_tokens, lambda whole: self._own(whole, 1))

    def own_tokens(self, x: Tensor) -> Tensor:
        """Return this rank's tokens of `x` (B, T, ...), which is equal on all ranks. In the backward, each rank gets
        the gradients of all tokens, gathered from the ranks.
        """
        return exchange(x, lambda whole: self._own(whole, 1), self._peers.gather_tokens)

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks. Not differentiable."""
        return self._sum(x.detach())

    def max(self, x: Tensor) -> Tensor:
        """Return the element-wise maximum of `x` over the ranks. Not differentiable."""
        return self._peers.max(x.detach().contiguous())

    def _sum(self, x: Tensor) -> Tensor:
        return self._peers.sum(x.contiguous())

    def _own(self, x: Tensor, dim: int) -> Tensor:
        return self.take_part(x, dim).contiguous()

    def take_part(self, x: Tensor, dim: int) -> Tensor:
        """Return this rank's part of `x`, which is divided evenly along dimension `dim`."""
        return x.chunk(self.size, dim)[self.index]

    def __deepcopy__(self, memo: dict[int, object]) -> TensorRanks:
        return self  # process groups cannot be copied


class _Exchange(torch.autograd.Function):
    """Autograd function that applies `ahead` to a tensor, and `back` to its gradient in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ahead: Exchange, back: Exchange) -> Tensor:
        ctx.back = back
        return ahead(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0]), None, None


def exchange(x: Tensor, ahead: Exchange, back: Exchange) -> Tensor:
    """Return `ahead(x)`. In the backward, the gradient of `x` is `back(gradient of the result)`."""
    found: Tensor = _Exchange.apply(x, ahead, back)  # type: ignore[no-untyped-call]
    return found


def _identity(x: Tensor) -> Tensor:
    return x.view_as(x)


def set_cuts(part: nn.Module, cuts: Mapping[str, RankCut], made: dict[Tensor, nn.Parameter]) -> None:
    """Replace each divided parameter of the module `part`, which is on the meta device, by this rank's part of it.

    `cuts`: {parameter name: how it is divided}. It is also stored on the module. `made`: {whole parameter: this rank's
    part}, to which the function adds its results. With one such dict for all modules, modules that share a parameter
    get the same part.
    """
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


def cut_parameters(model: nn.Module, cuts: Mapping[str, RankCut]) -> None:
    """Replace parameters of `model`, which is on the meta device, by the parts that this rank holds. `cuts`: dict from
    the full name of a parameter to how it is divided. Parameters that the model does not have, such as those of other
    pipeline stages, are ignored."""
    by_owner: dict[str, dict[str, RankCut]] = {}
    modules, made = dict(model.named_modules()), dict[Tensor, nn.Parameter]()
    for name, cut in cuts.items():
        owner, _, attribute = name.rpartition(".")
        if owner in modules:
            by_owner.setdefault(owner, {})[attribute] = cut
    for owner, found in by_owner.items():
        set_cuts(modules[owner], found, made)


def find_cuts(model: nn.Module) -> dict[str, RankCut]:
    """Return a dict from the name of each divided parameter of `model` to how it is divided."""
    return {
        f"{path}.{name}": cut for path, part in model.named_modules() for name, cut in getattr(part, _CUTS, {}).items()
    }
