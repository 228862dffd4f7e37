"""Batch normalisation over groups of samples, whose size is the key `over` of the recipe. The groups are the same for
any division of the batch over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from declarative_train.components.layers.modules.norms import unify_format
from declarative_train.components.layers.sample_groups import SampleGroups


class BatchNormModule(nn.Module):
    """Batch normalisation of (B, C, ...): mean 0 and variance 1 per channel over each group of `over` samples, then
    scale and shift. `fold` updates the running statistics once per step (`sample_groups.py`).

    Padding rows come last and are normalised separately, so that their values stay finite. The running statistics
    ignore a group with only one value per channel, which has no variance.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float,
        affine: bool,
        over: int | None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.over = over
        self.groups = SampleGroups()
        self.weight = nn.Parameter(torch.empty(num_features, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.empty(num_features, dtype=dtype)) if affine else None
        self.register_buffer("running_mean", torch.zeros(num_features, dtype=dtype))
        self.register_buffer("running_var", torch.ones(num_features, dtype=dtype))
        self.pending: Tensor | None = None  # sums over groups: C means, C variances, number of groups

    def reset_buffers(self) -> None:
        """Write the start values of the running statistics. The caller has called `to_empty`, which leaves buffers
        without values.
        """
        with torch.no_grad():
            self.running_mean.zero_()
            self.running_var.fill_(1)
        self.pending = None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._scale_and_shift()
        if not self.training:
            y = F.batch_norm(unify_format(x), self.running_mean, self.running_var, weight, bias, False, 0.0, self.eps)
            return unify_format(y)
        rows, groups = x.shape[0], self.groups
        real = rows if groups.num_rows is None else groups.num_rows
        slot = groups.microbatch_size
        if self.over is not None and slot is not None and self.over > slot:
            pieces = [self._across_ranks(x[:real], self.over // slot)]
        else:
            pieces = self._within_rank(x, real, self.over or max(real, 1))
        if real < rows:
            pieces.append(self._normalise(x[real:], 1, counts=False))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _scale_and_shift(self) -> tuple[Tensor | None, Tensor | None]:
        """Return weight and bias in the dtype of the running statistics, because `fully_shard` may have cast them to
        bfloat16.
        """
        if self.weight is None or self.bias is None:
            return None, None
        return self.weight.to(self.running_mean.dtype), self.bias.to(self.running_mean.dtype)

    def _within_rank(self, x: Tensor, real: int, size: int) -> list[Tensor]:
        """Normalise the first `real` rows of `x` in groups of `size` rows; later rows are padding. Return at most two
        tensors: the rows of all complete groups, and the rows of the last group if it is smaller."""
        full = real // size * size
        pieces = [self._normalise(x if full == x.shape[0] else x[:full], full // size)] if full else []
        if real > full:
            pieces.append(self._normalise(x[full:real], 1))
        return pieces

    def _normalise(self, x: Tensor, num_groups: int, counts: bool = True) -> Tensor:
        """Return `x` (G * n, C, ...) with each of its G groups of n rows normalised by the group's mean and variance.
        `counts`: add the means and the unbiased variances of the groups to `pending`.

        The groups are arranged as channels, (n, G * C, ...), so that one call of torch's kernel is enough.
        """
        C = self.num_features
        weight, bias = self._scale_and_shift()
        if num_groups > 1:
            grouped = x.reshape(num_groups, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
            weight = None if weight is None else weight.repeat(num_groups)
            bias = None if bias is None else bias.repeat(num_groups)
        else:
            grouped = x
        mean = var = None
        single = grouped.numel() == num_groups * C  # one value per channel: the unbiased variance would be 0 / 0
        if counts and self.groups.recording and not single:  # also in a recomputation, which must save the same tensors
            mean, var = torch.zeros(2, num_groups * C, dtype=self.running_mean.dtype, device=x.device)
        y = torch.batch_norm(
            unify_format(grouped), weight, bias, mean, var, True, 1.0, self.eps, torch.backends.cudnn.enabled
        )
        y = unify_format(y)
        if mean is not None and var is not None:
            one = mean.new_full((1,), num_groups)
            self._count(torch.cat([mean.view(-1, C).sum(0), var.view(-1, C).sum(0), one]))
        return y.reshape(-1, num_groups, *x.shape[1:]).transpose(0, 1).flatten(0, 1) if num_groups > 1 else y

    def _across_ranks(self, x: Tensor, span: int) -> Tensor:
        """Return this rank's rows `x`, normalised by the mean and variance of all rows of their group. `span`: number
        of neighbouring ranks that have the rows of the group. A rank without rows must call this method too."""
        group = self.groups.process_groups[span]
        y, mean, var, count = _NormaliseAcross.apply(x, *self._scale_and_shift(), self.eps, group)  # type: ignore[no-untyped-call]
        if self.groups.recording:
            there = (count > 1).to(self.running_mean.dtype)
            unbiased = var * (count / (count - 1).clamp(min=1))
            self._count(torch.cat([mean, unbiased, torch.ones_like(there)]).to(there.dtype) * there)
        result: Tensor = y
        return result

    def _count(self, sums: Tensor) -> None:
        if self.groups.recomputing:
            return
        sums = sums.detach()
        self.pending = sums if self.pending is None else self.pending + sums

    def take_pending(self) -> Tensor:
        """Return the sums over all groups since the last call, and start new sums. The vector (2 C + 1,) has the sum of
        the groups' means, then the sum of their variances, then the number of groups.
        """
        pending, self.pending = self.pending, None
        return self.running_mean.new_zeros(2 * self.num_features + 1) if pending is None else pending

    @staticmethod
    @torch.no_grad()
    def fold(modules: Sequence[BatchNormModule], pending: Sequence[Tensor], finite: Tensor | None = None) -> None:
        """Move the running mean and variance of each module towards the means over this step's groups of samples, which
        are normalised together.

        `pending`: for each module, the vector of `take_pending`, added up over the ranks; a module whose vector counts
        no group is not changed. `finite`: if false, the step was skipped and no module is changed."""
        # updated together: one update per module would launch 640 kernels for a ResNet-50
        by_momentum: dict[tuple[float, torch.dtype], list[tuple[BatchNormModule, Tensor]]] = {}
        for module, part in zip(modules, pending, strict=True):
            by_momentum.setdefault((module.momentum, module.running_mean.dtype), []).append((module, part))
        for (momentum, dtype), pairs in by_momentum.items():
            counts = torch.cat([part[-1:].expand(len(part) - 1) for _, part in pairs])
            new = torch.cat([part[:-1] for _, part in pairs]) / counts.clamp(min=1)
            statistics = [each for module, _ in pairs for each in (module.running_mean, module.running_var)]
            before = torch.cat(statistics)
            moves = counts > 0 if finite is None else (counts > 0) & finite
            after = torch.where(moves, before.lerp(new.to(dtype), momentum), before)
            torch._foreach_copy_(statistics, torch.split(after, [len(each) for each in statistics]))


class _NormaliseAcross(torch.autograd.Function):
    """Autograd function that normalises rows by the mean and variance over all ranks of a process group. Inputs: x (R,
    C, ...) of this rank (R may be 0), weight and bias (C,) or None, eps, group. Outputs: normalised x; mean (C,),
    biased variance (C,) and number of values per channel (1,), all three over all ranks. Gradients of weight and bias
    are those of this rank's rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: Any) -> Any:
        dims = [dim for dim in range(x.dim()) if dim != 1]
        C, values = x.shape[1], x.to(torch.promote_types(x.dtype, torch.float32))
        world, place = distributed.get_world_size(group), distributed.get_rank(group)
        # each rank writes its own row of (count, means, squared deviations): adding zeros keeps all bits
        table = values.new_zeros(world, 2 * C + 1)
        if x.shape[0]:
            mean = values.mean(dims)
            table[place, 0] = values.numel() // C
            table[place, 1 : C + 1] = mean
            table[place, C + 1 :] = (values - _per_channel(mean, x)).square().sum(dims)
        distributed.all_reduce(table, group=group)
        counts, means, squares = table[:, :1], table[:, 1 : C + 1], table[:, C + 1 :]
        count = counts.sum(0)
        n = count.clamp(min=1)
        mean = (counts * means).sum(0) / n
        var = (squares + counts * (means - mean).square()).sum(0) / n
        invstd = (var + eps).rsqrt()
        y = (values - _per_channel(mean, x)) * _per_channel(invstd, x)
        ctx.save_for_backward(x, weight, mean, invstd, n)
        ctx.group = group
        if weight is not None and bias is not None:
            y = y * _per_channel(weight, x) + _per_channel(bias, x)
        ctx.mark_non_differentiable(mean, var, count)
        return y.to(x.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *unused: Tensor) -> Any:
        x, weight, mean, invstd, n = ctx.saved_tensors
        dims = [dim for dim in range(x.dim()) if dim != 1]
        dy = dy.to(mean.dtype)
        normal = (x - _per_channel(mean, x)) * _per_channel(invstd, x)
        sums = torch.cat([dy.sum(dims), (dy * normal).sum(dims)])
        dweight, dbias = (None, None) if weight is None else (sums[x.shape[1] :], sums[: x.shape[1]])
        dx = None
        if ctx.needs_input_grad[0]:
            total = sums.clone()
            distributed.all_reduce(total, group=ctx.group)
            of_shift, of_scale = (_per_channel(part / n, x) for part in total.chunk(2))
            dx = (dy - of_shift - normal * of_scale) * _per_channel(invstd if weight is None else invstd * weight, x)
            dx = dx.to(x.dtype)
        return dx, dweight, dbias, None, None


def adopt_batch_norms(module: nn.Module) -> None:
    """Turn torch's batch normalisations in `module` into `BatchNormModule`, in place. Each then normalises over a
    microbatch: all samples that one forward has on one rank.

    Only the class of each module changes; names, tensors, hooks and references stay. Three kinds are not changed:
    subclasses with their own `forward`, modules without running statistics, and modules with `momentum` None (a
    cumulative average).
    """
    for part in module.modules():
        if type(part) in _KINDS and part.momentum is not None and part.running_mean is not None:
            kind: Any = type(part)
            part.__class__ = _adopting_class(kind)
            part.over, part.groups, part.pending = None, SampleGroups(), None  # type: ignore[assignment]


_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BATCH_NORMS = (*_KINDS, nn.SyncBatchNorm)  # all of torch's


@cache
def _adopting_class(kind: Any) -> Any:
    return type(kind.__name__, (BatchNormModule, kind), {"__doc__": BatchNormModule.__doc__})


def _per_channel(vector: Tensor, like: Tensor) -> Tensor:
    """Return `vector` (C,) reshaped to (1, C, 1, ...), with as many dimensions as `like`."""
    return vector.view(1, -1, *(1,) * (like.dim() - 2))
