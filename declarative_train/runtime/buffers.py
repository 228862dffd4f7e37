"""Running statistics that each rank moved by its own rows become their mean over the ranks."""

from __future__ import annotations

import torch
from torch import nn

from declarative_train.runtime.collectives import Ranks


@torch.no_grad()
def average_buffers(module: nn.Module, ranks: Ranks) -> None:
    """Floating buffers only, in one reduction: counters move alike everywhere."""
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    total = ranks.sum(torch.cat([buffer.reshape(-1).double() for buffer in buffers])) / ranks.size
    for buffer, part in zip(buffers, torch.split(total, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))
