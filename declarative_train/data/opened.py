"""Opening of sets: a DataSpec -> its prepared sets, and records of its files, which show later whether they changed.

Sets that `describe` prepared in this process are not read again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from declarative_train.components.data import Dataset, Field, MissingPackageError, Split, Table
from declarative_train.components.datasets import DATASETS, endings_in_folders
from declarative_train.components.fields import FIELDS
from declarative_train.components.registry import ComponentError
from declarative_train.components.splits import SPLITS
from declarative_train.core.amounts import counted
from declarative_train.data.blocks import most_held_beside
from declarative_train.data.field_reader import columns_of, make_part
from declarative_train.data.late import TransformChain, TransformError
from declarative_train.data.materialize import HOLD_BYTES, BadSampleError, PreparedSet, prepare
from declarative_train.data.rows import RowRange, SetRows
from declarative_train.data.skipping import Skipped, Skips, as_numbers, whole_rows
from declarative_train.data.spec import DataError, DataSpec, FieldSpec, FileRecord, SetSpec, WindowSpec
from declarative_train.data.splitting import TRAINING, SplitError, split_rows
from declarative_train.data.windows import RowOrder, Windows, make_windows, row_order
from declarative_train.files.folders import files_below, list_remote, stamp_from_listing
from declarative_train.files.open_files import local_path, read_bytes, size_bytes, skip_bad_rows
from declarative_train.files.paths import SourceError

_COUNTED = 1 << 14  # samples per chunk of `training_values`
# The sets of one spec. Forked ranks find here what their parent prepared. The sets are not part of the Job: it is
# pickled for spawned ranks, and would carry all data; those ranks read the files again.
_latest: dict[str, dict[str, PreparedSet]] = {}


def remember(spec: DataSpec, sets: dict[str, PreparedSet]) -> None:
    """Keep these sets for the next `prepare_sets` of an equal spec; drop those of any other."""
    _keep(_key(spec), sets)


def _keep(key: str, sets: dict[str, PreparedSet]) -> None:
    _latest.clear()
    _latest[key] = sets


def _key(spec: DataSpec) -> str:
    """Return the spec as JSON; without `asdict`, which would first copy the record of each of 10,000 files."""
    return json.dumps(spec, default=_as_fields, sort_keys=True)


def _as_fields(value: Any) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def prepare_sets(spec: DataSpec) -> dict[str, PreparedSet]:
    """Return the sets by name, `training` first. Raises DataError if the data differ from the spec."""
    key = _key(spec)
    if key not in _latest:
        try:
            _keep(key, _prepare_all(spec))
        except (BadSampleError, ComponentError) as error:
            raise DataError(str(error)) from error
        except (MissingPackageError, SourceError, SplitError, TransformError, ValueError) as error:
            raise DataError(f"the data cannot be read as when the plan was made: {error}") from error
    return _latest[key]


def training_values(spec: DataSpec, field: str) -> Iterator[np.ndarray]:
    """Yield the values (N, ...) of a field in the training samples, in chunks, for counts before training."""
    training = prepare_sets(spec)[TRAINING]
    for start in range(0, training.num_samples, _COUNTED):
        samples = np.arange(start, min(start + _COUNTED, training.num_samples))
        yield training.gather(samples, [field])[field]


def arrange_rows(
    rows: Mapping[str, SetRows], window: WindowSpec | None, order: RowOrder
) -> dict[str, tuple[SetRows, Windows | None]]:
    """Return the rows of sets of one table in the order of their samples, with their windows."""
    if window is None:
        return {name: (each, None) for name, each in rows.items()}
    return {name: make_windows(each, window, order) for name, each in rows.items()}


def open_table(dataset: Dataset, fields: Mapping[str, Field], *, skips: bool) -> Table:
    """Open a source. Raises SourceError.

    `skips`: rows that cannot be parsed are left out, and a text column with few non-numbers is read as numbers.
    """
    with skip_bad_rows(skips):
        table = dataset.open()
    if skips:
        as_numbers(table, fields.values())
    if lists := [name for field in fields.values() if field.takes_lists for name in field.wanted]:
        table.take_lists(lists)
    return table


def usable(
    table: Table, rows: Mapping[str, SetRows], fields: Mapping[str, Field], *, skips: bool
) -> tuple[dict[str, SetRows], dict[str, list[Skipped]]]:
    """Return the rows of sets without those that lack a value, if these are skipped, and the rows left out.

    Raises SourceError.
    """
    if not skips:
        return dict(rows), {}
    columns = {name: (field, [column.name for column in columns_of(field, table)[0]]) for name, field in fields.items()}
    return whole_rows(table, rows, columns)


def _prepare_all(spec: DataSpec) -> dict[str, PreparedSet]:
    window = spec.window
    fields = [(each, FIELDS.read(each.component)) for each in spec.fields]
    splits: dict[str, Split] = {
        each.name: SPLITS.read(each.split) for each in spec.sets if each.split is not None and each.source is None
    }
    chain = TransformChain.of(spec)
    skips = spec.on_bad_row == "skip"
    of_fields = {each.name: field for each, field in fields}
    main = open_table(DATASETS.read(spec.source), of_fields, skips=skips)
    by, sort = (None, None) if window is None else (window.by, window.sort)
    cuts, _ = usable(main, split_rows(main, splits, spec.seed, by, sort), of_fields, skips=skips)
    rows = arrange_rows(cuts, window, row_order(main, window))
    sets: dict[str, PreparedSet] = {}
    for each in spec.sets:
        most = HOLD_BYTES
        if each.name == TRAINING:
            most = 0 if spec.rolls else HOLD_BYTES
        elif each.source is None:
            most = most_held_beside(sets[TRAINING])
        if each.source is not None:
            table = open_table(DATASETS.read(each.source), of_fields, skips=skips)
            whole, _ = usable(table, {each.name: RowRange(0, table.num_rows)}, of_fields, skips=skips)
            own = arrange_rows(whole, window, row_order(table, window))[each.name]
            sets[each.name] = _prepare_one(each, table, own, fields, window, chain, most, skips)
        else:
            sets[each.name] = _prepare_one(each, main, rows[each.name], fields, window, chain, most, skips)
    return sets


def _prepare_one(
    wanted: SetSpec,
    table: Table,
    rows: tuple[SetRows, Windows | None],
    fields: list[tuple[FieldSpec, Field]],
    window: WindowSpec | None,
    chain: TransformChain,
    most: int,
    skips: bool,
) -> PreparedSet:
    parts = []
    for spec, field in fields:
        columns, missed = columns_of(field, table)
        if missed:
            raise DataError(f"the column `{missed[0]}` of field `{spec.name}` is no longer there")
        if (why := field.misreads(spec.statistics)) is not None:
            raise DataError(f"field `{spec.name}` is not that of the plan: {why}")
        part = make_part(spec.name, field, columns, spec.statistics, window, chain)
        parts.append(part)
        if part.sample != spec.tensor:
            raise DataError(f"field `{part.name}` is now {part.sample}, and the plan was made for {spec.tensor}")
    found = prepare(
        wanted.name, table, *rows, tuple(parts), most, chain, is_checked=True, skips=Skips() if skips else None
    )
    if found.num_samples != wanted.num_samples:
        raise DataError(
            f"`{wanted.name}` has {counted(found.num_samples, 'sample')}, and the plan was made for "
            f"{wanted.num_samples:,}"
        )
    return found


WHOLE_BYTES = 64 << 20  # a file up to here may be read whole
ALL_BYTES = 256 << 20  # all files of a recipe together: a second of hashing
SAMPLE_BYTES = 64 << 10


def records(paths: Iterable[str]) -> list[FileRecord]:
    """Return the records of all files that a recipe uses. Raises SourceError."""
    sizes = {path: 0 if _is_remote_folder(path) else size_bytes(path) for path in paths}
    are_few = sum(sizes.values()) <= ALL_BYTES
    return [record(path, whole=are_few and size <= WHOLE_BYTES) for path, size in sizes.items()]


def record(path: str, *, whole: bool) -> FileRecord:
    """Return the record of a file or folder. Raises SourceError.

    For a folder of files: names, sizes and the latest date. For a file that is not hashed `whole`, `sha256` covers the
    size and the first, middle and last 64 KiB, and its date is kept, which changes with the rest.
    """
    local = local_path(path)
    if local is not None and os.path.isdir(local):
        return _folder_record(path, local)
    if _is_remote_folder(path):
        return _remote_folder_record(path)
    size = size_bytes(path)
    if whole:
        return FileRecord(path, size, hashlib.sha256(read_bytes(path)).hexdigest())
    digest = hashlib.sha256(f"{size}\n".encode())
    for start in sorted({0, max(size - SAMPLE_BYTES, 0) // 2, max(size - SAMPLE_BYTES, 0)}):
        digest.update(read_bytes(path, start, min(start + SAMPLE_BYTES, size)))
    return FileRecord(path, size, digest.hexdigest(), 0 if local is None else os.stat(local).st_mtime_ns)


def _folder_record(path: str, folder: str) -> FileRecord:
    found = {}
    for name in sorted(files_below(folder, endings_in_folders())):
        with suppress(OSError):  # a broken link: decoding reports it
            found[name] = os.stat(os.path.join(folder, name))
    digest = hashlib.sha256("".join(f"{name}\0{each.st_size}\n" for name, each in found.items()).encode())
    latest = max((each.st_mtime_ns for each in found.values()), default=0)
    return FileRecord(path, sum(each.st_size for each in found.values()), digest.hexdigest(), latest)


def _is_remote_folder(path: str) -> bool:
    return path.endswith("/") and local_path(path) is None


def _remote_folder_record(path: str) -> FileRecord:
    """Return the record of a remote folder from its listing: names, and sizes and tags if it has them."""
    root = path.rstrip("/")
    found = {name: stamp_from_listing(root, name) for name in sorted(list_remote(root, endings_in_folders()))}
    digest = hashlib.sha256("".join(f"{name}\0{size}\0{tag}\n" for name, (size, tag) in found.items()).encode())
    return FileRecord(path, sum(size for size, _ in found.values()), digest.hexdigest(), 0)
