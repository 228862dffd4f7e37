"""Tensors of safetensors files. A tensor is read only when it is used; of a local file, only the bytes that are needed
are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.components.layers.modules.packed import Packed
from declarative_train.core.cuts import NO_CUTS, RankCut
from declarative_train.core.machine import install
from declarative_train.core.packs import find_row
from declarative_train.core.untrusted import parse_json
from declarative_train.engine.failures import RunFailure
from declarative_train.files.open_files import local_path
from declarative_train.files.weight_files import INDEX, files_of_index
from declarative_train.graph.initialise import blocks_of, local_rows, write_whole
from declarative_train.plan.checkpoint_files import Shapes
from declarative_train.plan.renames import apply_renames, join_shapes
from declarative_train.plan.tensor_maps import respell, shape_of_part

if TYPE_CHECKING:
    from declarative_train.components.storages import StorageName
    from declarative_train.plan.plan import PartPlan, TensorMapPlan


_READ_AT_ONCE = 1 << 24  # elements


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors of a file, which are read when they are used. `shapes`: their shapes by name. `read(name, first, last,
    dim)` reads rows (`dim` 0) or columns (`dim` 1) `first` to `last` - 1 of the tensor `name`; the whole tensor if
    `first` and `last` are None."""

    shapes: Shapes
    read: Callable[[str, int | None, int | None, int], torch.Tensor]

    def write(self, into: Mapping[str, torch.Tensor], cuts: Mapping[str, RankCut] = NO_CUTS) -> None:
        for name, target in into.items():
            if name in cuts:
                self._write_part(name, target, cuts[name])
                continue
            rows = local_rows(target)
            if rows is None:
                write_whole(target, self.read(name, None, None, 0))
            elif rows.values.shape == target.shape:
                rows.values.copy_(self.read(name, None, None, 0))
            else:
                rows.values.copy_(self.read(name, rows.first, rows.first + len(rows.values), 0))

    def _write_part(self, name: str, target: torch.Tensor, cut: RankCut) -> None:
        """Write this rank's part of the tensor `name` into `target`, a few rows at a time. `cut`: how the tensor is
        divided over the ranks. Rows without elements of this part are not read from the file."""
        for values, (row, *columns) in blocks_of(target, cut):
            others = tuple(slice(at, at + size) for at, size in zip(columns, values.shape[1:], strict=True))
            at_once = max(1, _READ_AT_ONCE // max(1, prod(self.shapes[name][1:])))
            for first in range(0, len(values), at_once):
                part = values[first : first + at_once]
                part.copy_(self.read(name, row + first, row + first + len(part), 0)[:, *others])

    def whole(self, name: str) -> torch.Tensor:
        return self.read(name, None, None, 0)

    def all(self) -> dict[str, torch.Tensor]:
        return {name: self.whole(name) for name in self.shapes}


def open_tensors(path: str) -> Tensors:
    """Open a `.safetensors` file, or the index of several such files. Raises RunFailure."""
    return _open_index(path) if path.endswith(INDEX) else _open_safetensors(path)


def rename_tensors(source: Tensors, tensors: TensorMapPlan, rename: Mapping[str, str | None]) -> Tensors:
    """Return the tensors of a file under their names in the model. `tensors`: tensor map of the published model; it
    says how values are packed, and which tensors the file may have under older names. `rename`: the recipe's {old name:
    new name}; None drops a tensor."""
    if tensors.packed:
        source = find_row("formats", tensors.packed).unpack(source)
    names = apply_renames({name: name for name in source.shapes}, rename)
    names = {respell(tensors, new): old for new, old in names.items()}
    shapes = {new: source.shapes[old] for new, old in names.items()}
    return Tensors(shapes, lambda name, first, last, dim: source.read(names[name], first, last, dim))


def join_tensors(source: Tensors, made: Mapping[str, Sequence[PartPlan]]) -> Tensors:
    """Return the parameters that are made from the tensors `source` of a file, each from one or several. `made`: a dict
    from each parameter to its parts, which are stacked by rows."""
    shapes, _ = join_shapes(made, source.shapes)

    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        parts = made[name]
        if len(parts) == 1:
            return source.read(parts[0].name, first, last, dim)
        assert dim == 0  # only tensors of a file are read by columns
        return join_rows(source, parts, first, last)

    return Tensors(shapes, read)


def add_rows(source: Tensors, grown: Mapping[str, tuple[int, int]]) -> Tensors:
    """Return the tensors of `source`, some of them with more rows. `grown`: a dict from name to the number of rows
    before and after. Each new row is the mean of the rows in the source, as in Hewitt, Initializing new word embeddings
    for pretrained language models, 2021. The mean is summed in float64, in the same order on every rank, and rounded to
    float32."""
    grown = {name: rows for name, rows in grown.items() if name in source.shapes and source.shapes[name][0] == rows[0]}

    @cache
    def mean(name: str) -> torch.Tensor:
        before, _ = grown[name]
        at_once = max(1, _READ_AT_ONCE // max(1, prod(source.shapes[name][1:])))
        pieces = (source.read(name, row, min(row + at_once, before), 0) for row in range(0, before, at_once))
        return sum(piece.sum(0, dtype=torch.float64) for piece in pieces).float() / before  # type: ignore[union-attr]

    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        if name not in grown:
            return source.read(name, first, last, dim)
        assert dim == 0
        before, after = grown[name]
        first, last = (0, after) if first is None or last is None else (first, last)
        old = source.read(name, min(first, before), min(last, before), 0)
        num_new = last - max(first, before)
        if num_new <= 0:
            return old
        return torch.cat(
            [old.to(torch.promote_types(old.dtype, torch.float32)), mean(name).expand(num_new, *old.shape[1:])]
        )

    shapes = {name: (grown[name][1], *shape[1:]) if name in grown else shape for name, shape in source.shapes.items()}
    return Tensors(shapes, read)


def round_to_storage(source: Tensors, storages: Mapping[str, StorageName]) -> Tensors:
    """Return the tensors of `source`. Those in `storages` ({name: number format}) keep their dtype and shape, but have
    the values that remain after storing them in that format, in which each row has scales of its own."""

    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        values = source.read(name, first, last, dim)
        if name not in storages:
            return values
        assert dim == 0
        return Packed(storages[name], values.shape[1], values.device).round_trip(values)

    return Tensors(source.shapes, read)


def join_rows(source: Tensors, parts: Iterable[PartPlan], first: int | None, last: int | None) -> torch.Tensor:
    """Return rows `first` to `last` (exclusive; both None: all rows) of a parameter that consists of several tensors of
    a file, stacked by rows. `parts`: these tensors. `source`: reader of the file."""
    found = []
    for part, a, b in _find_rows_of_parts(parts, source.shapes, first, last):
        if part.ones < 0:  # the file's tensor becomes a single row
            whole = source.read(part.name, None, None, 0)
            found.append(whole.reshape((1,) * -part.ones + whole.shape)[a:b])
            continue
        if part.count:
            part_of = source.read(part.name, part.index, part.index + 1, 0)[0][..., part.first :: part.step]
            found.append((part_of.T if part.transpose else part_of)[a:b])
            continue
        read = source.read(part.name, a, b, _row_dimension(part))
        read = read.reshape(read.shape[part.ones :]) if part.ones else read
        found.append(read.T if part.transpose else read)
    return torch.cat(found) if len(found) > 1 else found[0]


def _row_dimension(part: PartPlan) -> int:
    """Return which dimension of a tensor in a weights file becomes the rows of the parameter. `part`: how the tensor is
    reshaped and transposed."""
    return part.ones + (1 if part.transpose else 0)


def _find_rows_of_parts(
    parts: Iterable[PartPlan], shapes: Shapes, first: int | None, last: int | None
) -> Iterator[tuple[PartPlan, int | None, int | None]]:
    """Yield (part, begin, end) for each part that has some of the wanted rows of a parameter. If no row is wanted,
    yield the last part with an empty range, which gives the caller the shape of the result.

    `parts`            the stored tensors that, stacked by rows, are the parameter
    `first`, `last`    the wanted rows, `last` exclusive; None: all
    begin, end         the wanted rows of the part, `end` exclusive; both None if these are all its rows
    """
    begin, found = 0, False
    parts = list(parts)
    for place, part in enumerate(parts):
        size = 1 if part.ones < 0 else shape_of_part(part, shapes[part.name])[0]
        a, b = (0, size) if first is None or last is None else (max(first - begin, 0), min(last - begin, size))
        begin += size
        if a < b or (place == len(parts) - 1 and not found):
            found = True
            yield (part, None, None) if (a, b) == (0, size) else (part, a, max(a, b))


def _open_index(path: str) -> Tensors:
    """Open the files of a model from their index `model.safetensors.index.json`
    (https://huggingface.co/docs/safetensors). Raises RunFailure."""
    try:
        files = files_of_index(path, parse_json(read_bytes(path)))
    except ValueError as problem:
        raise RunFailure(f"model.weights: cannot read {path}: {problem}") from None
    opened = {file: _open_safetensors(file) for file in sorted(set(files.values()))}
    lacking = next((name for name, file in files.items() if name not in opened[file].shapes), None)
    if lacking is not None:
        raise RunFailure(f"model.weights: {path} lists {lacking} in {files[lacking]}, which does not have it")
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
            return of_tensors(load(read_bytes(path)))
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


def of_tensors(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        return tensors[name] if first is None else tensors[name][(slice(None),) * dim + (slice(first, last),)]

    return Tensors({name: tuple(tensor.shape) for name, tensor in tensors.items()}, read)


def read_bytes(path: str, count: int | None = None) -> bytes:
    """Return the content of a file, or its first `count` bytes. Raises RunFailure if there is no such file."""
    from fsspec.core import open as open_file

    try:
        with open_file(path, "rb") as stream:
            content: bytes = stream.read() if count is None else stream.read(count)
    except FileNotFoundError:
        raise RunFailure(f"model.weights: there is no file {path}") from None
    return content
