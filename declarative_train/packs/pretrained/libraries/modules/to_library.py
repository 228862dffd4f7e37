"""Conversion of a node's module to the library's own model, so that the library can write it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from declarative_train.components.plugin_layer import seed_generators
from declarative_train.packs.pretrained.libraries.modules.node import LibraryNode, alone


def library_model(node: LibraryNode, dtype: torch.dtype) -> nn.Module:
    """Return the library's own model with the values of `node`, on the CPU and in evaluation mode. Its floating-point
    tensors have the dtype `dtype`."""
    layer: Any = node._dtrain_layer
    with alone(), seed_generators(0):
        model: nn.Module = layer.make(node._dtrain_inputs, draws=False)
        model.to(dtype).load_state_dict(node.state_dict())
    return model.eval()


def find_difference(written: nn.Module, read: nn.Module) -> str | None:
    """Compare the model `written` with the model `read` from the files. Return the name of the first tensor that only
    one of them has, or that differs after a cast to the dtype in `read`; None if all are equal."""
    ours, theirs = written.state_dict(), read.state_dict()
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in ours or name not in theirs or not torch.equal(ours[name].to(theirs[name].dtype), theirs[name]):
            return name
    return None
