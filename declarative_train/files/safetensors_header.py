"""Header of a safetensors file: names, shapes, dtypes and byte ranges of its tensors, without their values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

_MOST_BYTES = 100 << 20  # the limit of safetensors itself

Header = dict[str, tuple[tuple[int, ...], str]]
"""Name of each tensor -> its shape, and its dtype in the spelling of safetensors."""


class TensorPlace(NamedTuple):
    """Shape and dtype of one tensor, and its byte range in the file (`end` exclusive)."""

    shape: tuple[int, ...]
    dtype: str
    begin: int
    end: int


def read_header(path: str) -> Header:
    """Read the header of a safetensors file (https://huggingface.co/docs/safetensors, "Format"). Raises ValueError and
    OSError."""
    with open(path, "rb") as file:
        items, _ = _items(lambda start, stop: file.read(stop - start), os.path.getsize(path))
    return {name: (shape, dtype) for name, (shape, dtype, _) in items.items()}


def read_places(read: Callable[[int, int], bytes], size: int) -> dict[str, TensorPlace]:
    """Return a dict from the name of each tensor of a file to its `TensorPlace`. `size`: size of the file in bytes.
    `read(start, end)`: function that returns bytes of the file. Raises ValueError, and the exceptions of `read`."""
    items, begin = _items(read, size)
    found = {}
    for name, (shape, dtype, (first, last)) in items.items():
        if not 0 <= first <= last <= size - begin:
            raise ValueError(f"it ends inside the tensor `{name}`")
        found[name] = TensorPlace(shape, dtype, begin + first, begin + last)
    _check_without_overlaps(found)
    return found


def _check_without_overlaps(places: dict[str, TensorPlace]) -> None:
    """Raise ValueError if the byte ranges of two tensors overlap, which the format forbids."""
    in_order = sorted(places.items(), key=lambda item: (item[1].begin, item[1].end))
    for (name, place), (following, its_place) in pairwise(in_order):
        if its_place.begin < place.end:
            raise ValueError(f"the tensors `{name}` and `{following}` overlap")


def _items(
    read: Callable[[int, int], bytes], whole: int
) -> tuple[dict[str, tuple[tuple[int, ...], str, tuple[int, int]]], int]:
    """Return a dict from the name of each tensor in the header to (shape, dtype, (begin, end)), and the position in the
    file from which `begin` and `end` count. `read(start, end)`: function that returns bytes of the file. `whole`: size
    of the file in bytes. Raises ValueError."""
    size = int.from_bytes(read(0, 8), "little")
    if not 2 <= size <= min(_MOST_BYTES, whole):
        raise ValueError("it is not a safetensors file")
    try:
        header = json.loads(read(8, 8 + size), object_pairs_hook=_reject_repeats)
        items = {}
        for name, item in header.items():
            if name != "__metadata__":
                first, last = map(int, item.get("data_offsets", (0, 0)))
                items[name] = tuple(map(int, item["shape"])), str(item["dtype"]), (first, last)
    except _RepeatedError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("its header is not valid") from None
    return items, 8 + size


class _RepeatedError(ValueError):
    """Error: a header contains the same name twice."""


def _reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _RepeatedError(f"its header has the name `{twice}` twice")
    return found
