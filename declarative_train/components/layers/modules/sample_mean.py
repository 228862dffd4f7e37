"""Mean over groups of samples, whose size is the key `over` of the recipe. The groups are the same for any division of
the batch over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from declarative_train.components.layers.sample_groups import SampleGroups


class SampleMeanModule(nn.Module):
    """Module that replaces each sample of (B, ...) by the mean over its group of `over` samples. Padding rows come
    last and do not count. Evaluation uses the mean over the groups of the last training step, which `fold` stores
    (`sample_groups.py`).
    """

    running_mean: Tensor

    def __init__(self, shape: tuple[int, ...], over: int | None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.over = over
        self.groups = SampleGroups()
        self.register_buffer("running_mean", torch.zeros(shape, dtype=dtype))
        self.pending: Tensor | None = None  # sum of the means of the groups, flat, and the number of groups

    def reset_buffers(self) -> None:
        """Write the start values of the buffers. The caller has called `to_empty`, which leaves buffers without
        values.
        """
        with torch.no_grad():
            self.running_mean.zero_()
        self.pending = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.running_mean.to(x.dtype).expand_as(x)
        rows, groups = x.shape[0], self.groups
        real = rows if groups.num_rows is None else groups.num_rows
        slot = groups.microbatch_size
        values = x.flatten(1).to(self.running_mean.dtype) if x.dim() > 1 else x[:, None].to(self.running_mean.dtype)
        values = torch.cat([values, torch.ones_like(values[:, :1])], 1)  # the last column counts the samples
        values = torch.where(torch.arange(rows, device=x.device)[:, None] < real, values, 0)
        if self.over is not None and slot is not None and self.over > slot:
            sums = gather_rows(values.sum(0, keepdim=True), groups.process_groups[self.over // slot])
            size, sums = rows, sums.sum(0, keepdim=True)
        else:
            size = min(self.over or rows, rows) or 1
            padding = values.new_zeros(-rows % size, values.shape[1])
            sums = torch.cat([values, padding]).reshape(-1, size, values.shape[1]).sum(1)
        means = sums[:, :-1] / sums[:, -1:].clamp(min=1)
        if groups.recording and not groups.recomputing:
            exist = (sums[:, -1:] > 0).to(means.dtype)
            found = torch.cat([means, exist], 1).detach().sum(0)
            self.pending = found if self.pending is None else self.pending + found
        return means.repeat_interleave(size, 0)[:rows].reshape(x.shape).to(x.dtype)

    def take_pending(self) -> Tensor:
        """Return a vector: the sum of the means of all groups of samples since the last call, then the number of these
        groups. Start a new sum."""
        pending, self.pending = self.pending, None
        return self.running_mean.new_zeros(self.running_mean.numel() + 1) if pending is None else pending

    @staticmethod
    @torch.no_grad()
    def fold(modules: Sequence[SampleMeanModule], pending: Sequence[Tensor], finite: Tensor | None = None) -> None:
        """Store in each module the mean over all groups of samples of the step; evaluations use it. A module without a
        group in the step keeps its mean. `pending`: for each module, the vector that `take_pending` returned, summed
        over the ranks. `finite`: bool scalar; if false, no module is changed."""
        for module, part in zip(modules, pending, strict=True):
            moves = part[-1] > 0 if finite is None else (part[-1] > 0) & finite
            new = (part[:-1] / part[-1].clamp(min=1)).view_as(module.running_mean)
            module.running_mean.copy_(torch.where(moves, new, module.running_mean))


class _Gather(torch.autograd.Function):
    """Differentiable all-gather of rows, in the order of the ranks: (R, ...) on each rank to (ranks * R, ...) on all.
    In the backward, each rank gets the gradients of its own rows, summed over the ranks.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        dy = dy.contiguous().clone()
        distributed.all_reduce(dy, group=ctx.group)
        return dy.chunk(distributed.get_world_size(ctx.group))[distributed.get_rank(ctx.group)], None


def gather_rows(x: Tensor, group: Any) -> Tensor:
    """Return the rows `x` (R, ...) of all ranks of a process group, concatenated in rank order. The result is
    differentiable.
    """
    found: Tensor = _Gather.apply(x, group)  # type: ignore[no-untyped-call]
    return found
