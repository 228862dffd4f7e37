"""Mixture of experts: rows are sorted by expert, and the rows of each expert are multiplied by its matrices.

Each position uses all K experts that are chosen for it. None is dropped, however many positions choose the same
expert.

B batch, T positions of a sample, N = B * T positions, D width, E experts, K experts for each position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.layers.modules.context import ContextRanks
from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.expert_ranks import ExpertRanks, OwnExperts
from declarative_train.components.layers.modules.grouped import multiply_groups, permute_rows, repeat_rows
from declarative_train.components.layers.sample_groups import SampleGroups

_TINY = 1e-20  # sigmoids of all chosen experts may be 0
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
_CLIPPED_SLOPE = 1.702  # with this slope s, x * sigmoid(s * x) is close to gelu(x)


class Routing(NamedTuple):
    """Settings for the choice of experts: each position uses `top_k` of `num_experts` experts. The fields correspond
    to the keys of the layer `moe`: `is_sigmoid` to `scores`, `normalizes` to `normalize`. The experts are divided into
    `num_groups` groups, and a position uses experts of the best `top_groups` groups only.
    """

    num_experts: int
    top_k: int
    is_sigmoid: bool
    normalizes: bool
    scale: float
    num_groups: int
    top_groups: int
    bias_rate: float | None


class ExpertKind(NamedTuple):
    """Structure of the network of each expert. `hidden`: number of hidden features. `limit`: limit of the activation
    `clipped_silu`.
    """

    hidden: int
    activation: str
    has_biases: bool = False
    limit: float = 0.0


class MoeModule(nn.Module):
    """Module of the layer `moe`, from x (B, ..., D) to the output (B, ..., D) and the balance loss (B,).

    `mask`       bool (B, ...), True at positions that count in the balance loss; None: all count
    `balance`    (B,) balance loss of earlier layers, to which this one is added, or None
    `bias_rate`  if set, `fold` updates the router's bias after a step, from counts of the positions of each expert
    """

    trains_with_statistics = True  # the bias; a batch norm uses its running statistics only in evaluation

    def __init__(self, width: int, kind: ExpertKind, routing: Routing, dtype: torch.dtype) -> None:
        super().__init__()
        self.routing = routing
        self.router = nn.Linear(width, routing.num_experts, bias=kind.has_biases, dtype=dtype)
        self.experts = ExpertsModule(routing.num_experts, width, kind, dtype)
        self.ranks: TensorRanks | None = None
        self.peers: ExpertRanks | None = None
        self.context: ContextRanks | None = None
        self.pending: Tensor | None = None
        self.bias: Tensor | None
        if routing.bias_rate is None:
            self.bias = None
        else:
            self.register_buffer("bias", torch.zeros(routing.num_experts, dtype=dtype))
            self.over, self.groups = None, SampleGroups()  # these make it an instance of `MixesSamples`

    def reset_buffers(self) -> None:
        """Write the start values of the buffers. The caller has called `to_empty`, which leaves buffers without
        values.
        """
        if self.bias is not None:
            self.bias.zero_()
        self.pending = None

    def divide(self, ranks: TensorRanks) -> None:
        """Make the module compute only some of the hidden features of each expert, those of this rank. The caller
        replaces the parameters by the rows and columns of these features."""
        self.ranks, self.experts.hidden = ranks, self.experts.hidden // ranks.size
        self.experts.num_parts = ranks.size

    def divide_experts(self, peers: ExpertRanks) -> None:
        """Make the module compute only the experts of this rank. The caller replaces the parameters. `peers`: the
        ranks over which the experts are divided.
        """
        self.peers, self.experts.number = peers, self.experts.number // peers.size

    def forward(self, x: Tensor, mask: Tensor | None = None, balance: Tensor | None = None) -> tuple[Tensor, Tensor]:
        flat_ND = x.reshape(-1, x.shape[-1])
        scores_NE = self._scores(flat_ND)
        chosen_NK = self._choose(scores_NE)
        weights_NK = self._weights(scores_NE, chosen_NK)
        used_NE = torch.zeros_like(scores_NE).scatter_(1, chosen_NK, 1.0)  # no gradient
        own = self._balance(scores_NE, used_NE, mask, len(x))
        self._count(used_NE, mask, len(x))

        if self.ranks is not None:  # each rank computes a part of the hidden features
            flat_ND, weights_NK = self.ranks.enter(flat_ND), self.ranks.enter(weights_NK)
        y = apply_experts(self.experts, self.peers, self.routing.num_experts, flat_ND, chosen_NK, weights_NK).view_as(x)
        if self.ranks is not None:
            y = self.ranks.add(y)
        own = own.to(x.dtype)
        return y, own if balance is None else balance + own

    def _scores(self, flat_ND: Tensor) -> Tensor:
        """Return the router's score of each expert for each position, (N, E). They are computed in float32 at least,
        because rounding could change which experts are chosen.
        """
        dtype = torch.promote_types(flat_ND.dtype, torch.float32)
        is_plain = flat_ND.is_meta or not torch.is_autocast_enabled(flat_ND.device.type)
        with nullcontext() if is_plain else torch.autocast(flat_ND.device.type, enabled=False):
            bias = None if self.router.bias is None else self.router.bias.to(dtype)
            logits_NE = F.linear(flat_ND.to(dtype), self.router.weight.to(dtype), bias)
        return logits_NE.sigmoid() if self.routing.is_sigmoid else logits_NE.softmax(-1)

    @torch.no_grad()
    def _choose(self, scores_NE: Tensor) -> Tensor:
        """Return the indices (N, K) of the K experts that each position uses."""
        routing = self.routing
        for_choice = scores_NE if self.bias is None else scores_NE + self.bias
        if routing.top_groups < routing.num_groups:
            by_group = for_choice.view(len(for_choice), routing.num_groups, -1)
            best = by_group.topk(2, -1).values.sum(-1).topk(routing.top_groups, -1).indices
            is_open = torch.zeros_like(by_group[..., 0]).scatter_(1, best, 1.0).unsqueeze(-1) > 0
            for_choice = by_group.masked_fill(~is_open, float("-inf")).flatten(1)
        return for_choice.topk(routing.top_k, -1).indices

    def _weights(self, scores_NE: Tensor, chosen_NK: Tensor) -> Tensor:
        weights_NK = scores_NE.gather(1, chosen_NK)
        if self.routing.normalizes:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + _TINY)
        return weights_NK if self.routing.scale == 1.0 else weights_NK * self.routing.scale

    def _balance(self, scores_NE: Tensor, used_NE: Tensor, mask: Tensor | None, B: int) -> Tensor:
        """Return the balance loss (B,) of each of the B samples. `scores_NE`: the router's score of each expert for
        each position. `used_NE`: 1 where a position uses an expert, else 0. `mask`: False at positions that do not
        count; None: all count.
        """
        if self.routing.is_sigmoid:
            scores_NE = scores_NE / (scores_NE.sum(-1, keepdim=True) + _TINY)
        E, K = self.routing.num_experts, self.routing.top_k
        scores_BTE, used_BTE = scores_NE.view(B, -1, E), used_NE.view(B, -1, E)
        if mask is None and self.context is None:
            parts_BE, means_BE = used_BTE.mean(1), scores_BTE.mean(1)
        else:
            counts = (
                torch.ones_like(scores_BTE[..., :1]) if mask is None else mask.reshape(B, -1, 1).to(scores_NE.dtype)
            )
            sums = [(used_BTE * counts).sum(1), (scores_BTE * counts).sum(1), counts.sum(1)]
            if self.context is not None:  # the other positions of the samples are on other ranks
                sums = list(torch.split(self.context.add(torch.cat(sums, -1)), [E, E, 1], -1))
            total = sums[2].clamp(min=1)
            parts_BE, means_BE = sums[0] / total, sums[1] / total
        return (parts_BE * means_BE).sum(-1) * (E / K)

    @torch.no_grad()
    def _count(self, used_NE: Tensor, mask: Tensor | None, B: int) -> None:
        """Add to `pending` how many positions of this forward use each expert. Padding rows are not counted. `used_NE`:
        1 where a position uses an expert, else 0. `mask`: False at positions that do not count. `B`: number of samples.
        """
        if self.bias is None or not self.training or not self.groups.recording or self.groups.recomputing:
            return
        if mask is not None:
            used_NE = used_NE * mask.reshape(-1, 1)
        real = used_NE.view(B, -1, used_NE.shape[-1])[: self.groups.num_rows]
        counts = real.sum((0, 1)).to(self.bias.dtype)
        self.pending = counts if self.pending is None else self.pending + counts

    def take_pending(self) -> Tensor:
        """Return how many positions used each of the E experts since the last call, (E,), and start new counts."""
        assert self.bias is not None
        pending, self.pending = self.pending, None
        return torch.zeros_like(self.bias) if pending is None else pending

    @staticmethod
    @torch.no_grad()
    def fold(modules: Sequence[MoeModule], pending: Sequence[Tensor], finite: Tensor | None = None) -> None:
        """Update the router's bias of each module. An expert that is used by fewer positions than the mean gets a
        higher bias. An expert that is used by more positions gets a lower bias. `pending`: for each module, how many
        positions used each expert. If `finite` is false, the step was skipped, and nothing changes.
        """
        for module, counts in zip(modules, pending, strict=True):
            bias, rate = module.bias, module.routing.bias_rate
            assert bias is not None
            assert rate is not None
            step = torch.sign(counts.mean() - counts) * rate
            bias.add_(step if finite is None else torch.where(finite, step, 0.0))


def apply_experts(
    experts: Callable[[Tensor, Tensor], Tensor],
    peers: ExpertRanks | None,
    num_experts: int,
    x_ND: Tensor,
    chosen_NK: Tensor,
    weights_NK: Tensor,
) -> Tensor:
    """Return (N, D): for each row of `x_ND`, the weighted sum of the results of its K experts.

    `chosen_NK`, `weights_NK`  index and weight of each of these experts
    `experts(rows, ends)`      applies the experts to rows sorted by expert; `ends[e]`: end of the rows of expert e
    `peers`                    the ranks that divide the experts, to which rows are sent; None: no division"""
    K = chosen_NK.shape[1]
    numbers, order = chosen_NK.flatten().sort(stable=True)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    ends = torch.searchsorted(numbers, torch.arange(num_experts, device=order.device), right=True).to(torch.int32)
    rows = repeat_rows(x_ND, order, back, K)
    found = experts(rows, ends) if peers is None else peers.compute(experts, rows, ends)
    y_NKD = permute_rows(found, back, order).view(-1, K, x_ND.shape[-1])
    return (y_NKD * weights_NK.to(y_NKD.dtype).unsqueeze(-1)).sum(1)


class ExpertsModule(OwnExperts):
    """Module that applies the networks of the experts to `rows` (R, D), sorted by expert, and returns (R, D). `ends`
    (E,): index after the last row of each expert. `num_parts`: number of ranks that divide the hidden features. The
    results of these ranks are summed, so each rank adds 1 / num_parts of the last bias."""

    def __init__(self, number: int, width: int, kind: ExpertKind, dtype: torch.dtype) -> None:
        super().__init__()
        self.number, self.width, self.hidden, self.kind, self.num_parts = number, width, kind.hidden, kind, 1
        self.gate = nn.Parameter(torch.empty(number * kind.hidden, width, dtype=dtype))
        self.up = nn.Parameter(torch.empty(number * kind.hidden, width, dtype=dtype))
        self.down = nn.Parameter(torch.empty(number * width, kind.hidden, dtype=dtype))
        if kind.has_biases:
            self.gate_bias = nn.Parameter(torch.empty(number * kind.hidden, dtype=dtype))
            self.up_bias = nn.Parameter(torch.empty(number * kind.hidden, dtype=dtype))
            self.down_bias = nn.Parameter(torch.empty(number * width, dtype=dtype))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        inner, last = (self.number, self.hidden, self.width), (self.number, self.width, self.hidden)
        dtype = _product_dtype(rows)
        x, gate, up, down = (each.to(dtype) for each in (rows, self.gate, self.up, self.down))
        gated, upper = multiply_groups(x, gate.view(inner), ends), multiply_groups(x, up.view(inner), ends)
        if not self.kind.has_biases:
            return multiply_groups(self._gate(gated, upper), down.view(last), ends)
        experts = torch.searchsorted(ends, torch.arange(len(rows), device=ends.device, dtype=ends.dtype), right=True)
        gated, upper = self._add(gated, self.gate_bias, experts), self._add(upper, self.up_bias, experts)
        y = multiply_groups(self._gate(gated, upper), down.view(last), ends)
        return self._add(y, self.down_bias / self.num_parts, experts)

    def _gate(self, gate: Tensor, up: Tensor) -> Tensor:
        limit = self.kind.limit
        if self.kind.activation != "clipped_silu":
            return _ACTIVATIONS[self.kind.activation](gate) * up
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(_CLIPPED_SLOPE * gate) * (up + 1)

    def _add(self, rows: Tensor, bias: Tensor, experts: Tensor) -> Tensor:
        """Return each row plus the bias of its expert. `experts`: the index of the expert of each row."""
        return (rows + bias.view(self.number, -1)[experts]).to(rows.dtype)


def _product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which matrix products with `x` are computed: that of autocast if it is on, else that of `x`.
    The caller converts the inputs of `grouped_mm` to this dtype, because autocast does not.
    """
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)
