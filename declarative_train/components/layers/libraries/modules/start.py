"""Start values of a library's model: rows of its files, or of the values that its own code draws."""

from __future__ import annotations

import torch
from torch import Tensor

from declarative_train.components.layers.libraries.modules.node import (
    Inputs,
    LibraryInterface,
    bare,
    draw_model,
    key_of,
)

_DRAWN: dict[str, dict[str, Tensor]] = {}
"""The last model that was drawn, by the names of its parameters: kept until `forget`."""


def rows_of(
    layer: LibraryInterface, inputs: Inputs, seed: int, parameter: str, first: int, count: int | None
) -> Tensor:
    """Return `count` rows of a parameter from `first` on; all of it for None. Raises LibraryError."""
    files = layer.files(bare(layer, inputs))
    if files is not None and parameter in files.names:
        return files.read(parameter, first, count)
    key = f"{seed} {key_of(layer, inputs)}"
    if key not in _DRAWN:
        _DRAWN.clear()
        with torch.no_grad():
            _DRAWN[key] = dict(draw_model(layer, inputs, seed).named_parameters(remove_duplicate=False))
    whole = _DRAWN[key][parameter].detach()
    return whole if count is None else whole[first : first + count]


def forget() -> None:
    """Release the drawn model: it is in memory only while a part of it is filled."""
    _DRAWN.clear()
