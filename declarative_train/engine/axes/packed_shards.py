"""Shards of packed weights, which are integers, on torch 2.11.

There `fully_shard` has each shard require a gradient before it asks whether the parameter does, which integers cannot,
and casts all that it gathers to the dtype of the forward. Newer versions of torch do neither; for them nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group


class _WithParameter:
    """`torch.nn`, where a Parameter of integers requires no gradient."""

    def __getattr__(self, name: str) -> Any:
        return getattr(nn, name)

    @staticmethod
    def Parameter(data: torch.Tensor, requires_grad: bool = True) -> nn.Parameter:  # noqa: N802 (torch's name)
        return nn.Parameter(data, requires_grad and data.dtype.is_floating_point)


class _AsTheyAre(_fsdp_param.FSDPParam):
    """Integers are gathered as integers."""

    def init_dtype_attrs(self, mp_policy: MixedPrecisionPolicy) -> None:
        super().init_dtype_attrs(mp_policy)
        if not self.orig_dtype.is_floating_point:
            self.param_dtype = None


@contextmanager
def integers_as_they_are(model: nn.Module) -> Iterator[None]:
    """While the parameters of `model` are shared out."""
    if all(parameter.dtype.is_floating_point for parameter in model.parameters()):
        yield
        return
    shards: Any = _fsdp_param
    groups: Any = _fsdp_param_group
    before = shards.nn, groups.FSDPParam
    shards.nn, groups.FSDPParam = _WithParameter(), _AsTheyAre
    try:
        yield
    finally:
        shards.nn, groups.FSDPParam = before
