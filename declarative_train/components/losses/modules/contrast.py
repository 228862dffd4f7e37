"""Contrastive loss: match the two views of each sample within a group of samples. Letters in shapes: R rows of this
rank, N samples of a group, G groups, D features."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from declarative_train.components.component import Collective, LossModule
from declarative_train.components.layers.modules.sample_mean import gather_rows
from declarative_train.components.layers.sample_groups import SampleGroups
from declarative_train.components.losses.modules.elementwise import count_items, upcast_half


class Contrast(nn.Module, LossModule):
    """Contrastive loss between two views of each sample, `input` and `target` (R, D). Padding rows are not used as
    negatives. `count` is the number of rows.

    `groups`, set by the engine, says which rows are compared (`components/layers/sample_groups.py`). In training, a
    group that is larger than a microbatch is gathered from its ranks, with gradients. In an evaluation, the rows of all
    ranks are stored until a group is complete."""

    def __init__(self, temperature: float, symmetric: bool, normalize: bool, over: int | None) -> None:
        super().__init__()
        self.temperature, self.symmetric, self.normalize = temperature, symmetric, normalize
        self.over = over
        self.groups = SampleGroups()
        self.items_per_row = 1.0
        self._waiting: Tensor | None = None  # (rows, 2, D) of all ranks: the start of an incomplete group

    def sum(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor:
        assert target is not None
        a, b = upcast_half(input), upcast_half(target)
        if self.normalize:
            a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        weight = a.new_ones(a.shape[0]) if row_weight is None else row_weight.to(a.dtype)
        slot = self.groups.microbatch_size
        if self.over is not None and slot is not None and self.over > slot and self.groups.recording:
            return self._across_ranks(_pad(a, slot), _pad(b, slot), _pad(weight, slot), self.over // slot)
        if self.over is not None and self.groups.ranks is not None and not self.groups.recording:
            return self._whole_groups(torch.stack([a, b], 1)[weight > 0], self.over, self.groups.ranks)
        size = self.over or a.shape[0]
        padded = -(-a.shape[0] // size) * size
        a, b, weight = (_pad(x, padded).reshape(-1, size, *x.shape[1:]) for x in (a, b, weight))
        own = torch.arange(size, device=a.device).expand(weight.shape)
        value = self._sum_losses(a, b, weight, weight, own)
        return (value + self._sum_losses(b, a, weight, weight, own)) / 2 if self.symmetric else value

    def take_rest(self) -> Tensor:
        """Return this rank's part of the loss sum of the last group of an evaluation, which is incomplete; 0 if there
        is no incomplete group."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or self.groups.ranks is None:
            return torch.zeros(())
        return self._share(waiting, self.groups.ranks)

    def _whole_groups(self, views: Tensor, over: int, ranks: Collective) -> Tensor:
        """Gather the rows of all ranks, and append them to earlier rows whose group was incomplete. Return this rank's
        part of the loss, summed over all groups that are now complete. `views` (R, 2, D): rows of this rank. `over`:
        number of rows in a group. `ranks`: the data-parallel ranks."""
        found = ranks.concatenate(views.detach())
        waiting = found if self._waiting is None else torch.cat([self._waiting, found])
        *whole, rest = waiting.tensor_split(list(range(over, len(waiting) + 1, over)))
        self._waiting = rest
        return sum((self._share(group, ranks) for group in whole), waiting.new_zeros(()))

    def _share(self, group: Tensor, ranks: Collective) -> Tensor:
        """Return this rank's part of the loss sum for `group` (n, 2, D): two views of n samples, equal on all ranks.
        Rank r of N computes the losses of the samples r, r + N, ..., each of which matches its first view with all
        second views. If the loss is symmetric, it also matches its second view with all first views, and the result is
        the mean of both."""
        a, b = group.unbind(1)
        own = torch.arange(len(group), device=group.device)[ranks.rank :: ranks.size]
        weight = group.new_ones(len(group))
        value = self._sum_losses(a[own], b, weight[own], weight, own)
        return (value + self._sum_losses(b[own], a, weight[own], weight, own)) / 2 if self.symmetric else value

    def _across_ranks(self, a: Tensor, b: Tensor, weight: Tensor, span: int) -> Tensor:
        """Return the sum of the loss over this rank's samples, in a group of `span` neighbouring ranks. `a`, `b`: first
        and second views (R, D) of this rank's samples. `weight`: weight of each sample.

        Each row of `a` is compared with the rows of `b` on all ranks of the group. If the loss is symmetric, the rows
        of `b` are also compared with those of `a`, and the result is the mean of both."""
        group = self.groups.process_groups[span]
        all_a, all_b = gather_rows(torch.stack([a, b], 1), group).unbind(1)
        all_weight = gather_rows(weight, group)
        own = distributed.get_rank(group) * a.shape[0] + torch.arange(a.shape[0], device=a.device)
        value = self._sum_losses(a, all_b, weight, all_weight, own)
        return (value + self._sum_losses(b, all_a, weight, all_weight, own)) / 2 if self.symmetric else value

    def _sum_losses(self, x: Tensor, among: Tensor, weight: Tensor, weight_among: Tensor, own: Tensor) -> Tensor:
        """Return the sum of the losses of the rows of `x` (..., R, D). The loss of a row is the cross entropy of
        choosing its partner among the rows of `among` (..., N, D); the logits are the similarities.

        `own`: index of the partner of each row. `weight`: factor on the loss of each row. `weight_among`: 0 for the
        rows of `among` that cannot be chosen.
        """
        scores = x @ among.mT / self.temperature
        absent = (weight_among == 0).unsqueeze(-2)
        scores = scores.masked_fill(absent, torch.finfo(scores.dtype).min)  # -inf would give nan if all are absent
        each = F.cross_entropy(scores.flatten(0, -2), own.flatten(), reduction="none").view_as(weight)
        return torch.where(weight > 0, each * weight, 0).sum()

    def count(self, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None, rows: int) -> Tensor:
        return count_items(None, row_weight, rows, 1)


def _pad(x: Tensor, rows: int) -> Tensor:
    """Return `x` with rows of zeros appended until it has `rows` rows."""
    return x if x.shape[0] == rows else torch.cat([x, x.new_zeros(rows - x.shape[0], *x.shape[1:])])
