"""Start values from files: `model.weights`, for the parameters below a node, names relative to it.

A rank reads what it holds: of a sharded parameter its rows, of a file on this machine no other byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from declarative_train.components.datasets.files import local_path
from declarative_train.graph.initialise import held_rows, write_whole
from declarative_train.plan.checks.parameters import words
from declarative_train.plan.published import Held, is_selected, parts_in, published_misfit, shape_of
from declarative_train.plan.run_folder import EMA, Shapes
from declarative_train.plan.weights import INDEX, TORCH_BEGINS, files_of_index, misfit, renamed, same_name, unmatched
from declarative_train.runtime.failures import RunFailure
from declarative_train.runtime.storage.checkpoint_store import Entry, read_entry
from declarative_train.terms.machine import install

if TYPE_CHECKING:
    from declarative_train.components.published import Part
    from declarative_train.plan.plan import TensorMapPlan, WeightsPlan


class Source(Protocol):
    """Tensors by name, which are not read yet."""

    @property
    def shapes(self) -> Shapes: ...

    def write(self, into: Mapping[str, torch.Tensor]) -> None:
        """Their values, or this rank's part of them."""

    def all(self) -> dict[str, torch.Tensor]:
        """Every tensor, whole."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file and where its tensors go: `names[name in the model]` is that in the file."""

    source: Source
    names: Mapping[str, str]


def load_weights(model: nn.Module, plans: Iterable[WeightsPlan], *, whole: bool = True) -> None:
    """In place, in the plan's order. Raises RunFailure."""
    write_weights(model, open_weights(model, plans, whole=whole))


def open_weights(model: nn.Module, plans: Iterable[WeightsPlan], *, whole: bool = True) -> list[Opened]:
    """Names and shapes alone are looked at. Raises RunFailure: one message on all names that do not fit.

    `whole` is False for a pipeline stage: names of the file that it does not hold are another stage's.
    """
    return [_opened(model, plan, whole) for plan in plans]


def _opened(model: nn.Module, plan: WeightsPlan, whole: bool) -> Opened:
    source = open_source(plan.path)
    if plan.tensors is not None:
        return _opened_published(model, plan, plan.tensors, source, whole)
    for prefix in unmatched(source.shapes, plan.rename):
        message, hint = words(prefix, "it", list(source.shapes))
        raise RunFailure(f"model.weights: {plan.path}: {message}; help: {hint}")
    _require_none(plan, same_name(source.shapes, plan.rename))
    prefix = f"{plan.node}." if plan.node else ""
    found = renamed({name: name for name in source.shapes}, plan.rename)
    if not whole:
        held = model.state_dict()
        found = {name: stored for name, stored in found.items() if f"{prefix}{name}" in held}
    shapes = {name: source.shapes[stored] for name, stored in found.items()}
    _require_none(plan, misfit(model, plan, shapes, whole=whole))
    found = {name: stored for name, stored in found.items() if not is_selected(plan.exclude, name)}
    return Opened(source, {f"{prefix}{name}": stored for name, stored in found.items()})


def _opened_published(
    model: nn.Module, plan: WeightsPlan, tensors: TensorMapPlan, source: Source, whole: bool
) -> Opened:
    """By the names of the model, each made of the tensors that the map names."""
    assert isinstance(source, Tensors)
    _require_none(plan, published_misfit(Held.by(model), plan, source.shapes, whole=whole))
    prefix = f"{plan.node}." if plan.node else ""
    parts: dict[str, tuple[Part, ...]] = {}
    for name in model.state_dict(keep_vars=True):
        if name.startswith(prefix) and not is_selected(plan.exclude, name.removeprefix(prefix)):
            found = parts_in(tensors, name.removeprefix(prefix), source.shapes)
            if found and all(part.name in source.shapes for part in found):
                parts[name] = found
    shapes = {name: shape for name, found in parts.items() if (shape := shape_of(found, source.shapes)) is not None}

    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        assert dim == 0  # columns are those of a file
        return joined(source, parts[name], first, last)

    return Opened(Tensors(shapes, read), {name: name for name in shapes})


def joined(source: Tensors, parts: Iterable[Part], first: int | None, last: int | None) -> torch.Tensor:
    """The rows from `first` to `last` of the parts below each other, or all of them; nothing else is read."""
    found = []
    for part, a, b in _rows_of(parts, source.shapes, first, last):
        read = source.read(part.name, a, b, _rows_at(part))
        read = read.reshape((1,) * -part.ones + read.shape[max(part.ones, 0) :]) if part.ones else read
        found.append(read.T if part.transpose else read)
    return torch.cat(found) if len(found) > 1 else found[0]


def _rows_at(part: Part) -> int:
    """The dimension of the file that holds the rows of the parameter."""
    return max(part.ones, 0) + (1 if part.transpose else 0)


def _rows_of(
    parts: Iterable[Part], shapes: Shapes, first: int | None, last: int | None
) -> Iterator[tuple[Part, int | None, int | None]]:
    """What of each part lies in the rows from `first` to `last` of all together; else no rows of the last part."""
    begin, found = 0, False
    parts = list(parts)
    for place, part in enumerate(parts):
        size = 1 if part.ones < 0 else shapes[part.name][_rows_at(part)]
        a, b = (0, size) if first is None or last is None else (max(first - begin, 0), min(last - begin, size))
        begin += size
        if a < b or (place == len(parts) - 1 and not found):
            found = True
            yield (part, None, None) if (a, b) == (0, size) else (part, a, max(a, b))


def write_weights(model: nn.Module, opened: Iterable[Opened]) -> None:
    """Into the model's tensors, in place. Raises RunFailure."""
    held = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for each in opened:
            each.source.write({stored: held[name].detach() for name, stored in each.names.items()})


def names_in(model: nn.Module, opened: Iterable[Opened]) -> Iterator[str]:
    """Every name of the parameters that are written: a tied one has several."""
    held = dict(model.named_parameters(remove_duplicate=False))
    written = {id(held[name]) for each in opened for name in each.names if name in held}
    return (name for name, item in held.items() if id(item) in written)


def _require_none(plan: WeightsPlan, problem: tuple[str, str | None] | None) -> None:
    if problem is not None:
        message, hint = problem
        raise RunFailure(f"model.weights: {plan.path} {message}" + (f"; help: {hint}" if hint else ""))


@dataclass(frozen=True, slots=True)
class Tensors:
    """`read(name, first, last, dim)`: rows of a tensor (or columns, with dim 1), or all of it (None, None)."""

    shapes: Shapes
    read: Callable[[str, int | None, int | None, int], torch.Tensor]

    def write(self, into: Mapping[str, torch.Tensor]) -> None:
        for name, target in into.items():
            rows = held_rows(target)
            if rows is None:
                write_whole(target, self.read(name, None, None, 0))
            elif rows.values.shape == target.shape:
                rows.values.copy_(self.read(name, None, None, 0))
            else:
                rows.values.copy_(self.read(name, rows.first, rows.first + len(rows.values), 0))

    def all(self) -> dict[str, torch.Tensor]:
        return {name: self.read(name, None, None, 0) for name in self.shapes}


@dataclass(frozen=True, slots=True)
class CheckpointTensors:
    """Those of a run's checkpoint, whatever the layout that wrote it."""

    entry: Entry
    shapes: Shapes
    dtypes: Mapping[str, torch.dtype]
    kind: str = "model/"

    def write(self, into: Mapping[str, torch.Tensor]) -> None:
        from declarative_train.runtime.storage.checkpoint_format import load_tensors

        read = {
            name: target if target.dtype == self.dtypes[name] else torch.empty_like(target, dtype=self.dtypes[name])
            for name, target in into.items()
        }
        load_tensors(self.entry.path, {f"{self.kind}{name}": tensor for name, tensor in read.items()}, alone=True)
        for name, target in into.items():
            if read[name] is not target:
                target.copy_(read[name])

    def all(self) -> dict[str, torch.Tensor]:
        found = {name: torch.empty(shape, dtype=self.dtypes[name]) for name, shape in self.shapes.items()}
        self.write(found)
        return found


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """Tensors by name, whole, of whatever `open_source` opens. Raises RunFailure."""
    return open_source(path).all()


def read_averages(path: str) -> dict[str, torch.Tensor]:
    """Of a checkpoint's folder, by the parameters' names; empty where the run kept none. Raises RunFailure."""
    return _open_checkpoint(read_entry(path), EMA).all()


def open_source(path: str) -> Source:
    """A `.safetensors` file, the index of several, a `.pt` file, or a checkpoint's folder (that of a run's which
    `run_dir.settled_weights` chose). No code in it is run. Raises RunFailure."""
    if path.endswith(INDEX):
        return _open_index(path)
    if path.endswith(".safetensors"):
        return _open_safetensors(path)
    if path.endswith((".pt", ".pth", ".bin")):
        return _of_tensors(_read_torch(path))
    return _open_checkpoint(read_entry(path))


def _of_tensors(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        return tensors[name] if first is None else tensors[name][(slice(None),) * dim + (slice(first, last),)]

    return Tensors({name: tuple(tensor.shape) for name, tensor in tensors.items()}, read)


def _open_index(path: str) -> Tensors:
    """Of a model in several files: https://huggingface.co/docs/safetensors, `model.safetensors.index.json`."""
    try:
        files = files_of_index(path, json.loads(_bytes(path)))
    except ValueError as problem:
        raise RunFailure(f"model.weights: cannot read {path}: {problem}") from None
    opened = {file: _open_safetensors(file) for file in sorted(set(files.values()))}
    lacking = next((name for name, file in files.items() if name not in opened[file].shapes), None)
    if lacking is not None:
        raise RunFailure(f"model.weights: {path} says that {lacking} is in {files[lacking]}, and it is not")
    shapes = {name: opened[file].shapes[name] for name, file in files.items()}
    return Tensors(shapes, lambda name, first, last, dim: opened[files[name]].read(name, first, last, dim))


def _open_safetensors(path: str) -> Tensors:
    try:
        from safetensors import safe_open
        from safetensors.torch import load
    except ImportError:
        raise RunFailure(
            f"model.weights: {path} needs the package safetensors; help: {install('safetensors')}"
        ) from None
    try:
        if (local := local_path(path)) is None:
            return _of_tensors(load(_bytes(path)))
        file: Any = safe_open(local, framework="pt")
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        raise RunFailure(f"model.weights: there is no file {path}") from None
    except (OSError, RunFailure):
        raise
    except Exception as error:  # SafetensorError has no public base class
        raise RunFailure(f"model.weights: cannot read {path}: {error}") from None

    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        if first is None:
            found: torch.Tensor = file.get_tensor(name)
        else:
            found = file.get_slice(name)[(slice(None),) * dim + (slice(first, last),)]
        return found

    return Tensors(shapes, read)


def _read_torch(path: str) -> dict[str, torch.Tensor]:
    """Of an archive on this machine the numbers are read when they are looked at."""
    import io
    import pickle

    local = local_path(path)
    content = _bytes(path, None if local is None else len(TORCH_BEGINS[0]))
    if not content.startswith(TORCH_BEGINS):
        raise RunFailure(f"model.weights: {path} cannot be read: it is no file of torch")
    mapped = local is not None and content.startswith(TORCH_BEGINS[0])
    source: Any = local if local is not None else io.BytesIO(content)
    try:
        found: Any = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError:  # whose words are about arguments of torch's own
        message = f"model.weights: {path} holds more than tensors, and no code from it is run"
        raise RunFailure(f"{message}; help: save a state_dict()") from None
    except Exception as error:  # whatever torn bytes lead to
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunFailure(f"model.weights: {path} cannot be read: {reason[:200]}") from None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(item, torch.Tensor) for item in found.values()):
        raise RunFailure(f"model.weights: {path} does not hold a mapping of names to tensors")
    return dict(found)


def _open_checkpoint(entry: Entry, kind: str = "model/") -> CheckpointTensors:
    from declarative_train.runtime.storage.checkpoint_format import entries

    found = {name.removeprefix(kind): item for name, item in entries(entry.path).items() if name.startswith(kind)}
    return CheckpointTensors(
        entry,
        {name: tuple(size) for name, (size, _) in found.items()},
        {name: dtype for name, (_, dtype) in found.items()},
        kind,
    )


def _bytes(path: str, count: int | None = None) -> bytes:
    """All of a file, or its first `count` bytes."""
    from fsspec.core import open as open_file

    try:
        with open_file(path, "rb") as stream:
            content: bytes = stream.read() if count is None else stream.read(count)
    except FileNotFoundError:
        raise RunFailure(f"model.weights: there is no file {path}") from None
    return content
