"""The tensors of a published model, held against a library's model by headers alone; read by rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from declarative_train.components.layers.libraries.problem import LibraryError
from declarative_train.components.published import WEIGHTS
from declarative_train.terms.machine import install

if TYPE_CHECKING:
    import torch
    from torch import nn

_SHOWN = 3
_FLOATS = ("F64", "F32", "F16", "BF16")


class Files(NamedTuple):
    """`names`: of the model's tensors that the files have. `missing` parameters start at random; `unexpected` names of
    the files are of nothing in the model. `read(name, first, count)`: rows of a tensor by the model's name."""

    names: frozenset[str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    read: Callable[[str, int, int | None], torch.Tensor]


class Header(NamedTuple):
    """Of a tensor: its file, its shape, its dtype in the words of safetensors."""

    file: str
    shape: tuple[int, ...]
    dtype: str


def tensors_in(place: str) -> dict[str, Header]:
    """Of a folder, or of one `.safetensors` file. Raises LibraryError."""
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
def _headers(file: str, time: int, size: int) -> dict[str, Header]:
    from safetensors import safe_open

    files = [file]
    if file.endswith(".json"):
        with open(file, encoding="utf-8") as stream:
            named = json.load(stream)["weight_map"]
        files = [os.path.join(os.path.dirname(file), each) for each in sorted(set(named.values()))]
    found: dict[str, Header] = {}
    for each in files:
        if not os.path.exists(each):
            raise LibraryError(f"{file} names {os.path.basename(each)}, and there is no such file beside it")
        with safe_open(each, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                part = opened.get_slice(name)
                found[name] = Header(each, tuple(part.get_shape()), str(part.get_dtype()))
    return found


def matched(module: nn.Module, stored: Mapping[str, Header], prefix: str = "", may_differ: Iterable[str] = ()) -> Files:
    """The files' names as the model's: as they are, or with `prefix` put before them or taken away, whichever fits.
    `may_differ`: parameters of another shape in the files that start at random, as a head for other classes does.
    Raises LibraryError for other shapes and dtypes."""
    state = dict(module.state_dict(keep_vars=True))
    ways: list[Callable[[str], str]] = [lambda name: name]
    if prefix:
        dot = f"{prefix}."
        ways += [lambda name: f"{dot}{name}", lambda name: name.removeprefix(dot)]
    best = max(ways, key=lambda way: sum(_today(way(name)) in state for name in stored))
    names = {_today(best(name)): name for name in stored}
    differing = {
        name
        for name, item in state.items()
        if name in names and tuple(item.shape) != stored[names[name]].shape and name in set(may_differ)
    }
    names = {name: each for name, each in names.items() if name not in differing}
    wrong = [
        f"{names[name]} is {stored[names[name]].shape} in the files, {tuple(item.shape)} in the model"
        for name, item in state.items()
        if name in names and tuple(item.shape) != stored[names[name]].shape
    ]
    if wrong:
        raise LibraryError(f"the files do not fit the model: {several(wrong)}", "leave out what changes its sizes")
    odd = [
        name
        for name, item in state.items()
        if name in names and item.is_floating_point() and stored[names[name]].dtype not in _FLOATS
    ]
    if odd:
        raise LibraryError(
            f"not in floating point of 16 bits or more: {several(odd)}", "give the model as it was before that"
        )
    tensors = {name: stored[names[name]] for name in state if name in names}
    alike: dict[int, list[str]] = {}
    for name, item in state.items():
        alike.setdefault(id(item), []).append(name)
    for group in alike.values():  # a tied parameter stands in the files under one name
        there = next((name for name in group if name in tensors), None)
        for name in group if there is not None else ():
            tensors.setdefault(name, tensors[there])  # type: ignore[index]
            names.setdefault(name, names[there])  # type: ignore[index]
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    missing = tuple(name for name in state if name in parameters and name not in tensors)
    unexpected = tuple(each for name, each in names.items() if name not in state)

    def read(name: str, first: int, count: int | None) -> torch.Tensor:
        from safetensors import safe_open

        with safe_open(tensors[name].file, framework="pt") as opened:
            file: Any = opened
            if count is None:
                whole: torch.Tensor = file.get_tensor(names[name])
                return whole
            rows: torch.Tensor = file.get_slice(names[name])[first : first + count]
            return rows

    return Files(frozenset(tensors), missing, unexpected, read)


_OLD = {".gamma": ".weight", ".beta": ".bias"}  # of layer norms, in files that TensorFlow's names went into


def _today(name: str) -> str:
    for old, new in _OLD.items():
        if name.endswith(old) and "LayerNorm" in name:
            return name.removesuffix(old) + new
    return name


def several(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_SHOWN]) + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")
