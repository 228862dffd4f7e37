"""The header of a safetensors file: names, shapes and dtypes, and where the numbers lie, without them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

_MOST_BYTES = 100 << 20  # as safetensors itself

Header = dict[str, tuple[tuple[int, ...], str]]
"""Of each tensor its shape and its dtype, in the words of safetensors."""


class Place(NamedTuple):
    """Of a tensor, also from which byte of the file up to which it lies."""

    shape: tuple[int, ...]
    dtype: str
    begin: int
    end: int


def read_header(path: str) -> Header:
    """The header alone: https://huggingface.co/docs/safetensors, "Format". Raises ValueError and OSError."""
    with open(path, "rb") as file:
        items, _ = _items(lambda start, stop: file.read(stop - start), os.path.getsize(path))
    return {name: (shape, dtype) for name, (shape, dtype, _) in items.items()}


def read_places(read: Callable[[int, int], bytes], size: int) -> dict[str, Place]:
    """Of a file of `size` bytes, of which `read` gives those from one up to another. Raises ValueError, and what `read`
    does."""
    items, begin = _items(read, size)
    found = {}
    for name, (shape, dtype, offsets) in items.items():
        first, last = offsets
        if not 0 <= first <= last <= size - begin:
            raise ValueError(f"it ends before the tensor `{name}` does")
        found[name] = Place(shape, dtype, begin + first, begin + last)
    return found


def _items(read: Callable[[int, int], bytes], whole: int) -> tuple[dict[str, tuple[tuple[int, ...], str, Any]], int]:
    """Shape, dtype and offsets of each tensor, and the byte that offsets count from."""
    size = int.from_bytes(read(0, 8), "little")
    if not 2 <= size <= min(_MOST_BYTES, whole):
        raise ValueError("it is not a safetensors file")
    try:
        header = json.loads(read(8, 8 + size))
        items = {name: item for name, item in header.items() if name != "__metadata__"}
        return {
            name: (tuple(map(int, item["shape"])), str(item["dtype"]), item.get("data_offsets", (0, 0)))
            for name, item in items.items()
        }, 8 + size
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("its header is not that of a safetensors file") from None
