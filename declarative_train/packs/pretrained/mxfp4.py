"""Weights of four bits in published files: the format MXFP4 (https://www.opencomputeproject.org, OCP Microscaling
Formats 1.0), in which gpt-oss is stored.

For a tensor `NAME`, the file has two others. `NAME_blocks` (..., rows, blocks, 16): bytes with two numbers each, the
lower half first. `NAME_scales` (..., rows, blocks): the exponent of each block of 32 numbers. The unpacked tensor has
the columns first: (..., blocks * 32, rows)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from declarative_train.files.weight_files import Header

if TYPE_CHECKING:
    import torch

    from declarative_train.engine.step.tensor_files import Tensors

_BLOCKS, _SCALES = "_blocks", "_scales"
_BIAS = 127  # subtracted from a stored exponent
_BYTES = 16  # bytes of a block of 32 numbers
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def unpack_header(header: Header) -> Header:
    """Return the header (names, shapes and dtypes of tensors) after unpacking: a packed weight is stored as two tensors
    (blocks and scales), which become one. Its dtype is bfloat16, which can represent all values."""
    packed = _find_packed({name: shape for name, (shape, _) in header.items()})
    parts = {f"{name}{end}" for name in packed for end in (_BLOCKS, _SCALES)}
    kept = {name: item for name, item in header.items() if name not in parts}
    return kept | {name: (shape, "BF16") for name, shape in packed.items()}


def unpack(source: Tensors) -> Tensors:
    """Return the tensors of files after unpacking: a packed weight is stored as two tensors (blocks and scales), which
    become one. It is unpacked when it is read, one slice of the first dimension at a time."""
    from declarative_train.engine.step.tensor_files import Tensors

    packed = _find_packed(source.shapes)
    parts = {f"{name}{end}" for name in packed for end in (_BLOCKS, _SCALES)}
    shapes = {name: shape for name, shape in source.shapes.items() if name not in parts} | packed

    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        if name not in packed:
            return source.read(name, first, last, dim)
        assert dim == 0
        return _decode(*(source.read(f"{name}{end}", first, last, 0) for end in (_BLOCKS, _SCALES)))

    return Tensors(shapes, read)


def _find_packed(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return {name of a packed tensor: its shape after unpacking}. `shapes`: {name: shape} of all tensors in the
    files."""
    found = {}
    for name, shape in shapes.items():
        whole = name.removesuffix(_BLOCKS)
        if whole != name and shapes.get(f"{whole}{_SCALES}") == shape[:-1] and shape[-1:] == (_BYTES,):
            *leading, rows, blocks, _ = shape
            found[whole] = (*leading, blocks * 2 * _BYTES, rows)
    return found


def _decode(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Unpack numbers of four bits, and return them as bfloat16 (..., blocks * 32, rows). `blocks` (..., rows, blocks,
    16): bytes with two numbers each. `scales` (..., rows, blocks): the exponent of each block."""
    import torch

    values = torch.tensor((*_VALUES, *(-value for value in _VALUES)))
    both = torch.stack([blocks & 0xF, blocks >> 4], -1).flatten(-2).long()
    exponents = scales.to(torch.int32).unsqueeze(-1) - _BIAS
    return torch.ldexp(values[both], exponents).flatten(-2).mT.to(torch.bfloat16)
