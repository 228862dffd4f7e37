"""Reader of the files of a published model. It compares the shapes of the stored tensors with those of a library's
model, and reads tensors by rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from declarative_train.core.amounts import list_names
from declarative_train.core.machine import install
from declarative_train.packs.pretrained.libraries.problem import LibraryError
from declarative_train.packs.pretrained.published import WEIGHTS

if TYPE_CHECKING:
    import torch
    from torch import nn

_SHOWN = 3
_FLOATS = ("F64", "F32", "F16", "BF16")
Read = Callable[[int, "int | None"], "torch.Tensor"]
"""Reads `count` rows of a tensor from `first` on; all of it for a count of None."""


class Files(NamedTuple):
    """Tensors in the files of a model.

    names       names of the tensors that are both in the files and in the model
    missing     parameters of the model that are not in the files, and start at random
    unexpected  names in the files that the model does not have
    read        function (name, first, count) -> `count` rows of a tensor (None: all), from row `first` on
    """

    names: frozenset[str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    read: Callable[[str, int, int | None], torch.Tensor]


class Header(NamedTuple):
    """Header of a tensor: the file that has it, its shape, and its dtype in safetensors' notation."""

    file: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Stored:
    """Headers of the tensors in a model's files, by name of the tensor. `tensors_in` caches this object until the files
    change."""

    tensors: Mapping[str, Header]


class TensorOrigin(NamedTuple):
    """Tensors in files from which one tensor of a model is made.

    names   names of the tensors in the files
    dtypes  their dtypes
    shape   shape of the tensor that is made
    read    function (first, count) -> `count` rows of the tensor that is made (None: all), from row `first` on"""

    names: tuple[str, ...]
    dtypes: frozenset[str]
    shape: tuple[int, ...]
    read: Read


def tensors_in(place: str) -> Stored:
    """Return the headers of the tensors in a folder, or in one `.safetensors` file. Raises LibraryError."""
    file = place
    if os.path.isdir(place):
        found = [os.path.join(place, name) for name in WEIGHTS if os.path.exists(os.path.join(place, name))]
        if not found:
            has_pickle = any(name.endswith(".bin") for name in os.listdir(place))
            hint = (
                "save it again with `save_pretrained`" if has_pickle else "`pretrained: false` starts from the config"
            )
            raise LibraryError(f"there is neither {' nor '.join(WEIGHTS[::-1])} in {place}", hint)
        file = found[0]
    if not os.path.exists(file):
        raise LibraryError(f"there is no file {file}", "give the path of a `.safetensors` file")
    try:
        stamp = os.stat(file)
        return _headers(file, stamp.st_mtime_ns, stamp.st_size)
    except ImportError:
        raise LibraryError(f"{file} needs the package safetensors", install("safetensors")) from None
    except LibraryError:
        raise
    except Exception as problem:  # SafetensorError has no public base class
        raise LibraryError(f"{file} cannot be read: {problem}") from None


@lru_cache(maxsize=8)
def _headers(file: str, time: int, size: int) -> Stored:
    from safetensors import safe_open

    files = [file]
    if file.endswith(".json"):
        with open(file, encoding="utf-8") as stream:
            named = json.load(stream)["weight_map"]
        files = [os.path.join(os.path.dirname(file), each) for each in sorted(set(named.values()))]
    found: dict[str, Header] = {}
    for each in files:
        if not os.path.exists(each):
            raise LibraryError(f"{file} names {os.path.basename(each)}, and there is no such file next to it")
        with safe_open(each, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                part = opened.get_slice(name)
                found[name] = Header(each, tuple(part.get_shape()), str(part.get_dtype()))
    return Stored(found)


def tensor_origin(name: str, header: Header) -> TensorOrigin:
    """Return the TensorOrigin of a tensor that the model uses just as a file stores it. `name`: its name in the file.
    `header`: its file, shape and dtype."""

    def read(first: int, count: int | None) -> torch.Tensor:
        from safetensors import safe_open

        with safe_open(header.file, framework="pt") as opened:
            file: Any = opened
            found: torch.Tensor = (
                file.get_tensor(name) if count is None else file.get_slice(name)[first : first + count]
            )
            return found

    return TensorOrigin((name,), frozenset({header.dtype}), header.shape, read)


def match(
    module: nn.Module,
    origins: Mapping[str, TensorOrigin],
    unexpected: Collection[str],
    may_differ: Collection[str] = (),
) -> Files:
    """Return the tensors of files with which a model starts. Raises LibraryError if shapes or dtypes do not fit, or if
    tied parameters have different values in the files.

    origins     dict from a tensor of the model to its origin in the files
    unexpected  names in the files that the model does not have
    may_differ  parameters that may have another shape in the files; they start at random then"""
    state = dict(module.state_dict(keep_vars=True))
    tensors = {
        name: origins[name]
        for name, item in state.items()
        if name in origins and not (name in may_differ and origins[name].shape != tuple(item.shape))
    }
    wrong = [
        f"{several(each.names)} is {each.shape} in the files, {tuple(state[name].shape)} in the model"
        for name, each in tensors.items()
        if each.shape != tuple(state[name].shape)
    ]
    if wrong:
        raise LibraryError(f"the files do not fit the model: {several(wrong)}", "remove the keys that change its sizes")
    odd = [name for name, each in tensors.items() if state[name].is_floating_point() and not each.dtypes <= {*_FLOATS}]
    if odd:
        raise LibraryError(
            f"not in floating point of 16 bits or more: {several(odd)}", "use the model without quantization"
        )
    alike: dict[int, list[str]] = {}
    for name, item in state.items():
        alike.setdefault(id(item), []).append(name)
    for group in alike.values():  # a tied parameter is in the files under one name
        there = [name for name in group if name in tensors]
        for name in group if there else ():
            tensors.setdefault(name, tensors[there[0]])
        if different := next((name for name in there[1:] if not _are_equal(tensors[there[0]], tensors[name])), None):
            raise LibraryError(
                f"`{there[0]}` and `{different}` are one parameter in the model, and differ in the files",
                "`config: {tie_word_embeddings: false}` unties a head from the embedding",
            )
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    missing = tuple(name for name in state if name in parameters and name not in tensors)

    def read(name: str, first: int, count: int | None) -> torch.Tensor:
        return tensors[name].read(first, count)

    return Files(frozenset(tensors), missing, tuple(unexpected), read)


def _are_equal(one: TensorOrigin, other: TensorOrigin) -> bool:
    """Return whether two tensors have the same values in the files of a model."""
    return bool((one.read(0, None) == other.read(0, None)).all())


def reject_leftovers(files: Files, kind: str, hint: str, *, field: str) -> None:
    """Raise LibraryError if the files lack parameters of the model, and also have tensors that the model does not have.
    In this case the parameters are probably in the files under other names. `kind`: name of the model, for the message.
    `hint`, `field`: attributes of the error."""
    if files.missing and files.unexpected:
        message = (
            f"the files are not those of a `{kind}`: they lack {several(files.missing)}, and they have "
            f"{several(files.unexpected)}, which the model does not have"
        )
        raise LibraryError(message, hint, field=field)


def several(names: Iterable[str]) -> str:
    return list_names(names, _SHOWN)
