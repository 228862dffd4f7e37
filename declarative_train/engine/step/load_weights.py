"""Initial values from files (`model.weights`), for all parameters or for those of one node. In the second case, the
names in the file are relative to this node.

A rank reads only the rows that it needs; of a local file, no other bytes are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from declarative_train.components.layers.modules.divided import find_cuts
from declarative_train.components.layers.modules.packed import Packed, as_written, find_packed
from declarative_train.core.cuts import NO_CUTS, RankCut
from declarative_train.engine.checkpoints.store import CheckpointEntry, read_entry
from declarative_train.engine.failures import CheckpointFailure, RunFailure
from declarative_train.engine.step.frozen_base import open_base
from declarative_train.engine.step.tensor_files import (
    Tensors,
    add_rows,
    join_rows,
    join_tensors,
    of_tensors,
    open_tensors,
    read_bytes,
    rename_tensors,
    round_to_storage,
)
from declarative_train.files.open_files import local_path
from declarative_train.files.weight_files import INDEX, TORCH_BEGINS
from declarative_train.plan.checkpoint_files import EMA, PLAN, Shapes
from declarative_train.plan.checks.parameters import describe_unmatched_rename
from declarative_train.plan.renames import find_join, find_same_name, find_unmatched, join_shapes, resolve_joins
from declarative_train.plan.tensor_maps import ModelTensors, check_published, is_selected, parts_in, shape_of
from declarative_train.plan.weights import check_shapes

if TYPE_CHECKING:
    from declarative_train.components.storages import StorageName
    from declarative_train.plan.plan import PartPlan, TensorMapPlan, WeightsPlan


class WeightSource(Protocol):
    """Interface for reading tensors from a file or checkpoint. A tensor is read only when it is used."""

    @property
    def shapes(self) -> Shapes: ...

    def write(self, into: Mapping[str, torch.Tensor], cuts: Mapping[str, RankCut] = NO_CUTS) -> None:
        """Read values from the file into tensors. `into`: a dict from the name of each tensor in the file to the tensor
        that gets its values. If this rank has only a part of a tensor, only this part is read. `cuts`: for each tensor
        that the axis `tensor` or `expert` divides, which part this rank has."""

    def whole(self, name: str) -> torch.Tensor:
        """Return one tensor as stored in the file."""

    def all(self) -> dict[str, torch.Tensor]:
        """Return every tensor of the file, by name."""


@dataclass(frozen=True, slots=True)
class OpenedWeights:
    """Opened file of initial values. `names`: {parameter of the model: name of the tensor in the file that has its
    values}."""

    source: WeightSource
    names: Mapping[str, str]


def load_weights(model: nn.Module, plans: Iterable[WeightsPlan], *, whole: bool = True) -> None:
    """Load initial values into the model, from the files of all `plans` in order. If `whole` is False, `model` is a
    pipeline stage, and the files may have parameters of other stages. Raises RunFailure."""
    write_weights(model, open_weights(model, plans, whole=whole))


def open_weights(model: nn.Module, plans: Iterable[WeightsPlan], *, whole: bool = True) -> list[OpenedWeights]:
    """Open the files of initial values that `plans` name, and compare names and shapes with the model. No values are
    read. `whole`: if False, `model` is a pipeline stage, and the files may have parameters of other stages. Raises
    RunFailure for the first file that does not fit; its message lists all names in this file that do not fit."""
    return [_open(model, plan, whole) for plan in plans]


def _open(model: nn.Module, plan: WeightsPlan, whole: bool) -> OpenedWeights:
    source = open_source(plan.path)
    for prefix in find_unmatched(source.shapes, plan.rename):
        message, hint = describe_unmatched_rename(prefix, "it", list(source.shapes))
        raise RunFailure(f"model.weights: {plan.path}: {message}; help: {hint}")
    _require_none(plan, find_same_name(source.shapes, plan.rename))
    if plan.tensors is not None:
        return _open_published(model, plan, plan.tensors, source, whole)
    prefix = f"{plan.node}." if plan.node else ""
    made = resolve_joins(source.shapes, plan.rename)
    if not whole:
        held = model.state_dict()
        made = {name: parts for name, parts in made.items() if f"{prefix}{name}" in held}
    shapes, wrong = join_shapes(made, source.shapes)
    _require_none(plan, wrong or check_shapes(model, plan, shapes, whole=whole))
    made = {name: parts for name, parts in made.items() if not is_selected(plan.exclude, name)}
    if find_join(plan.rename) is None:
        return OpenedWeights(source, {f"{prefix}{name}": part.name for name, (part,) in made.items()})
    if not isinstance(source, Tensors):
        raise RunFailure(f"model.weights: {plan.path} is a checkpoint, but `rename` can only join tensors of files")
    return OpenedWeights(join_tensors(source, made), {f"{prefix}{name}": name for name in made})


def _open_published(
    model: nn.Module, plan: WeightsPlan, tensors: TensorMapPlan, source: WeightSource, whole: bool
) -> OpenedWeights:
    """Open the weights of a published model. Raises RunFailure if their names and shapes do not fit `model`. `plan`:
    entry of `model.weights`. `tensors`: which tensors of the file form each parameter. `source`: the file. `whole`: if
    False, `model` is a pipeline stage, and the file may have parameters of other stages."""
    assert isinstance(source, Tensors)
    source = rename_tensors(source, tensors, plan.rename)
    _require_none(plan, check_published(ModelTensors.by(model), plan, source.shapes, whole=whole))
    prefix = f"{plan.node}." if plan.node else ""
    parts: dict[str, tuple[PartPlan, ...]] = {}
    for name in model.state_dict(keep_vars=True):
        if name.startswith(prefix) and not is_selected(plan.exclude, name.removeprefix(prefix)):
            found = parts_in(tensors, name.removeprefix(prefix), source.shapes)
            if found and all(part.name in source.shapes for part in found):
                parts[name] = found
    shapes = {name: shape for name, found in parts.items() if (shape := shape_of(found, source.shapes)) is not None}

    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        assert dim == 0  # only tensors of a file are read by columns
        return join_rows(source, parts[name], first, last)

    grown = {f"{prefix}{name}": rows for name, rows in tensors.grown.items()}
    return OpenedWeights(add_rows(Tensors(shapes, read), grown), {name: name for name in shapes})


def write_weights(model: nn.Module, opened: Iterable[OpenedWeights]) -> None:
    """Write the values of opened files into the model, one file after another. Raises RunFailure."""
    held, packed, cuts = model.state_dict(keep_vars=True), find_packed(model), find_cuts(model)
    with torch.no_grad():
        for each in opened:
            into = {stored: held[name].detach() for name, stored in each.names.items()}
            held_so = {stored: packed[name] for name, stored in each.names.items() if name in packed}
            parts = {stored: cuts[name] for name, stored in each.names.items() if name in cuts}
            write_packed(each.source, into, held_so, parts)


def write_packed(
    source: WeightSource,
    into: Mapping[str, torch.Tensor],
    packed: Mapping[str, Packed],
    cuts: Mapping[str, RankCut] = NO_CUTS,
) -> None:
    """Write tensors of `source` into memory.

    into    {name in `source`: tensor that gets the values}
    packed  {name: format} for the tensors of `into` that are stored in fewer bits (nf4 or int8). They are written one
            at a time, because each needs memory for its float32 values
    cuts    {name: the part that this rank has} for tensors that the axis `tensor` or `expert` divides"""
    if plain := {name: target for name, target in into.items() if name not in packed}:
        source.write(plain, cuts)
    for name in into:
        if name in packed:
            with as_written(into[name], packed[name]) as values:
                source.write({name: values}, cuts)


def names_in(model: nn.Module, opened: Iterable[OpenedWeights]) -> Iterator[str]:
    """Yield the names of the model's parameters that get their values from the opened files. A tied parameter is
    yielded under all its names."""
    held = dict(model.named_parameters(remove_duplicate=False))
    written = {id(held[name]) for each in opened for name in each.names if name in held}
    return (name for name, item in held.items() if id(item) in written)


def _require_none(plan: WeightsPlan, problem: tuple[str, str | None] | None) -> None:
    if problem is not None:
        message, hint = problem
        raise RunFailure(f"model.weights: {plan.path} {message}" + (f"; help: {hint}" if hint else ""))


@dataclass(frozen=True, slots=True)
class CheckpointTensors:
    """Tensors in the checkpoint of a run. That run may have had another layout than the current process. `kind`: prefix
    of the names of these tensors in the checkpoint, such as `model/`. `shapes`, `dtypes` and all methods use names
    without the prefix."""

    entry: CheckpointEntry
    shapes: Shapes
    dtypes: Mapping[str, torch.dtype]
    kind: str = "model/"

    def write(self, into: Mapping[str, torch.Tensor], cuts: Mapping[str, RankCut] = NO_CUTS) -> None:
        from declarative_train.engine.checkpoints.format import load_tensors

        read = {
            name: target if target.dtype == self.dtypes[name] else torch.empty_like(target, dtype=self.dtypes[name])
            for name, target in into.items()
        }
        held = {f"{self.kind}{name}": tensor for name, tensor in read.items()}
        parts = {f"{self.kind}{name}": cuts[name] for name in read if name in cuts}
        load_tensors(self.entry.path, held, alone=True, cuts=parts)
        for name, target in into.items():
            if read[name] is not target:
                target.copy_(read[name])

    def whole(self, name: str) -> torch.Tensor:
        found = torch.empty(self.shapes[name], dtype=self.dtypes[name])
        self.write({name: found})
        return found

    def all(self) -> dict[str, torch.Tensor]:
        found = {name: torch.empty(shape, dtype=self.dtypes[name]) for name, shape in self.shapes.items()}
        self.write(found)
        return found


@dataclass(frozen=True, slots=True)
class CheckpointWithBase:
    """Tensors of a checkpoint together with the frozen weights to which it refers. The frozen weights are rounded to
    the number formats in which the run stored them."""

    held: CheckpointTensors
    base: tuple[Tensors, ...]

    @property
    def shapes(self) -> Shapes:
        return {name: shape for source in self._all for name, shape in source.shapes.items()}

    @property
    def _all(self) -> tuple[WeightSource, ...]:
        return (*self.base, self.held)

    def write(self, into: Mapping[str, torch.Tensor], cuts: Mapping[str, RankCut] = NO_CUTS) -> None:
        for source in self._all:
            if held := {name: target for name, target in into.items() if name in source.shapes}:
                source.write(held, cuts)

    def whole(self, name: str) -> torch.Tensor:
        return next(source for source in self._all if name in source.shapes).whole(name)

    def all(self) -> dict[str, torch.Tensor]:
        return {name: item for source in self._all for name, item in source.all().items()}


def open_averages(path: str) -> WeightSource:
    """Open the weights of the model in the checkpoint at `path`. For a parameter with a moving average, the average is
    read instead of the parameter. Raises RunFailure."""
    entry = read_entry(path)
    weights, averages = _open_checkpoint(entry), _open_checkpoint(entry, EMA)
    return Tensors(weights.shapes, lambda name, *_: (averages if name in averages.shapes else weights).whole(name))


def open_source(path: str) -> WeightSource:
    """Open a `.safetensors` file, an index of several such files, a `.pt` file, or a checkpoint's folder. Code in these
    files is never executed. Raises RunFailure."""
    if path.endswith((".safetensors", INDEX)):
        return open_tensors(path)
    if path.endswith((".pt", ".pth", ".bin")):
        return of_tensors(_read_torch(path))
    return _open_checkpoint(read_entry(path))


def _read_torch(path: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a file that `torch.save` wrote. If it is local and in torch's zip format, it is mapped, and
    tensors are read from disk when they are used. Raises RunFailure."""
    import io
    import pickle

    local = local_path(path)
    content = read_bytes(path, None if local is None else len(TORCH_BEGINS[0]))
    if not content.startswith(TORCH_BEGINS):
        raise RunFailure(f"model.weights: {path} cannot be read: it is not a torch file")
    mapped = local is not None and content.startswith(TORCH_BEGINS[0])
    source: Any = local if local is not None else io.BytesIO(content)
    try:
        found: Any = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError:  # its message is about torch's own arguments
        message = f"model.weights: {path} contains more than tensors, and its code is not executed"
        raise RunFailure(f"{message}; help: save a state_dict()") from None
    except Exception as error:  # damaged files raise many kinds of errors
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunFailure(f"model.weights: {path} cannot be read: {reason[:200]}") from None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(item, torch.Tensor) for item in found.values()):
        raise RunFailure(f"model.weights: {path} does not contain a mapping of names to tensors")
    return dict(found)


def _open_checkpoint(entry: CheckpointEntry, kind: str = "model/") -> WeightSource:
    """Open the tensors of a checkpoint whose names begin with `kind`. For `model/`, also open the frozen weights to
    which the checkpoint refers. Raises CheckpointFailure if their files have changed."""
    from declarative_train.engine.checkpoints.format import describe_tensors

    records = entry.manifest.get("base", []) if kind == "model/" else []
    found = {
        name.removeprefix(kind): item for name, item in describe_tensors(entry.path).items() if name.startswith(kind)
    }
    held = CheckpointTensors(
        entry,
        {name: tuple(size) for name, (size, _) in found.items()},
        {name: dtype for name, (_, dtype) in found.items()},
        kind,
    )
    if not records:
        return held
    storages = read_storages(entry)
    return CheckpointWithBase(
        held, tuple(round_to_storage(open_base(record, entry.path), storages) for record in records)
    )


def read_storages(entry: CheckpointEntry) -> dict[str, StorageName]:
    """Return a dict from weight to number format for the weights that the run of a checkpoint stores in fewer bits.
    Raises CheckpointFailure."""
    from fsspec.core import url_to_fs

    if PLAN not in entry.manifest["files"]:
        return {}
    fs, inner = url_to_fs(entry.path)
    try:
        plan = json.loads(fs.cat_file(f"{inner}/{PLAN}"))
        held = {item["name"]: item.get("storage") for item in plan["parameters"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointFailure(f"the checkpoint {entry.path} is damaged: {PLAN} cannot be read: {error}") from None
    return {name: storage for name, storage in held.items() if storage is not None}
