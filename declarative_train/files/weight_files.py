"""Formats of weight files, and the headers of their tensors: name, shape, dtype and byte range, read without values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from declarative_train.core.untrusted import parse_json

if TYPE_CHECKING:
    import torch

INDEX = ".safetensors.index.json"  # ending of the index of a model in several files
KINDS = (".safetensors", INDEX, ".pt", ".pth", ".bin")
# largest file in torch's old format that is read: it has no index, so that it is read completely
_MOST_OLD_BYTES = 256 << 20
TORCH_BEGINS = (b"PK\x03\x04", b"\x80")  # first bytes of a file of torch: an archive, or an older pickle
_MOST_BYTES = 100 << 20  # the limit of safetensors itself

Header = dict[str, tuple[tuple[int, ...], str]]
"""Name of each tensor -> its shape, and its dtype in the spelling of safetensors."""
_LETTERS = {"float": "F", "bfloat": "BF", "int": "I", "uint": "U"}


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
    """Return a dict from the name of each tensor of a safetensors file to its shape, dtype and byte range. `size`: size
    of the file in bytes. `read(start, end)`: function that returns bytes of the file. Raises ValueError, and the
    exceptions of `read`."""
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
    """Return (tensors, start) from the header of a safetensors file. `tensors`: {name: (shape, dtype, (begin, end))}.
    `start`: the position in the file from which `begin` and `end` count. Raises ValueError.

    `read(start, end)`: function that returns bytes of the file. `whole`: size of the file in bytes."""
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


def files_of_index(path: str, index: object) -> dict[str, str]:
    """Return a dict from tensor name to the path of its file. `index`: content of the index file at `path`. Raises
    ValueError if it is malformed."""
    named = index.get("weight_map") if isinstance(index, Mapping) else None
    if not isinstance(named, Mapping) or not named or not all(isinstance(file, str) for file in named.values()):
        raise ValueError("it has no `weight_map` from names to files")
    folder = f"{path.rpartition('/')[0]}/" if "/" in path else ""
    return {str(name): f"{folder}{file}" for name, file in named.items()}


def header_of(path: str) -> Header | None:
    """Return the names, shapes and dtypes of the tensors in a weights file. Return None for a file of torch that cannot
    be loaded now, or is too large to be read completely. Raises ValueError and OSError."""
    if path.endswith(INDEX):
        return _header_of_index(path)
    if path.endswith(".safetensors"):
        return read_header(path)
    found = _tensors_in_torch(path)
    if found is None:
        return None
    return {name: (tuple(item.shape), _dtype_words(item.dtype)) for name, item in found.items()}


def _dtype_words(dtype: torch.dtype) -> str:
    """Return a dtype in the spelling of safetensors: `F32`, `BF16`, `I64`."""
    name = str(dtype).removeprefix("torch.")
    return re.sub(r"^(float|bfloat|u?int)(?=\d)", lambda kind: _LETTERS[kind[1]], name)


def _header_of_index(path: str) -> Header:
    with open(path, "rb") as stream:
        files = files_of_index(path, parse_json(stream.read()))
    held: dict[str, Header] = {}
    for file in sorted(set(files.values())):
        if not os.path.exists(file):
            raise ValueError(f"it refers to {os.path.basename(file)}, which does not exist in its folder")
        held[file] = read_header(file)
    for name, file in files.items():
        if name not in held[file]:
            raise ValueError(f"{name} is not in {os.path.basename(file)}")
    return {name: held[file][name] for name, file in files.items()}


def _tensors_in_torch(path: str) -> dict[str, torch.Tensor] | None:
    """Return the tensors of a file that torch saved, as meta tensors. Raises ValueError if the file has something other
    than tensors.

    Return None for a file that torch cannot load now. Also return None for a large file in torch's old format, because
    it would have to be read completely.
    """
    import pickle

    import torch

    with open(path, "rb") as file:
        begin = file.read(4)
    if not begin.startswith(TORCH_BEGINS):
        raise ValueError("it is not a torch file")
    is_archive = begin.startswith(TORCH_BEGINS[0])
    if not is_archive and os.path.getsize(path) > _MOST_OLD_BYTES:
        return None
    try:
        found = torch.load(path, map_location="meta", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError:
        raise ValueError("it contains more than tensors, and its code is not executed; save a state_dict()") from None
    except Exception:  # an older format, or a file without weights: the run reports it
        return None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(item, torch.Tensor) for item in found.values()):
        raise ValueError("it does not contain a mapping of names to tensors")
    return {str(name): tensor for name, tensor in found.items()}
