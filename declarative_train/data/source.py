"""Sources of a recipe: their tables, the columns that fields read, and the rows that can be used. File records (sizes
and hashes) show later whether a file has changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from declarative_train.components.component import Component, ShapeError
from declarative_train.components.data import Column, Dataset, Field, Table
from declarative_train.components.datasets import endings_in_folders
from declarative_train.components.datasets.plugin import PluginDataset
from declarative_train.components.fields.columns import format_shape
from declarative_train.components.plugin_components import PluginComponent
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.checks.files import plugin_data_not_run, remote_source, unknown_column
from declarative_train.data.checks.values import column_does_not_fit
from declarative_train.data.diagnostics import DataDraft, Place, name_odd_value, source_problem
from declarative_train.data.field_reader import base_of, columns_of
from declarative_train.data.rows import RowOrder, RowWindows, SetRows, make_windows
from declarative_train.data.skipping import Skipped, convert_to_numbers, find_complete_rows
from declarative_train.data.spec import FileRecord, WindowSpec
from declarative_train.files.folders import files_below, list_remote, stamp_from_listing
from declarative_train.files.open_files import is_known, is_remote, local_path, read_bytes, size_bytes, skip_bad_rows
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    from declarative_train.recipe.sections.data import DataSection

Path = tuple[str | int, ...]
WHOLE_BYTES = 64 << 20  # a file of at most this size is hashed completely
ALL_BYTES = 256 << 20  # if all files together are larger, none is hashed completely; hashing this much takes a second
SAMPLE_BYTES = 64 << 10


def may_run(component: object) -> bool:
    return not isinstance(component, PluginComponent) or component.may_import


def report_unrun(section: DataSection, span: Place) -> list[Diagnostic]:
    """Return a diagnostic for each source, field or transform of a plugin whose code must not be run."""
    return [
        plugin_data_not_run(span((*path, "type")), what, component.type, _tells(component))
        for what, path, component in _parts(section)
        if not may_run(component)
    ]


def make_outlines(section: DataSection) -> dict[str | None, Table]:
    """Return a table without rows, which has the declared columns, for each plugin source that declares its columns.
    The key is the name of the set that has the source, or None for the main source."""
    found: dict[str | None, Table] = {}
    for name, source in list_sources(section).items():
        outline = source.outline() if isinstance(source, PluginDataset) else None
        if outline is not None:
            found[name] = outline
    return found


def list_sources(section: DataSection) -> dict[str | None, Dataset]:
    """Return a dict with the main source under the key None, and each source of a single set under the name of the
    set."""
    own = {name: split.own_source for name, split in section.split.items()}
    return {None: section.source, **{name: source for name, source in own.items() if source is not None}}


def _tells(component: Component) -> bool:
    return not isinstance(component, PluginDataset) or component.outline() is not None


def _parts(section: DataSection) -> Iterator[tuple[str, Path, Component]]:
    for name, source in list_sources(section).items():
        yield "source", ("data", "source") if name is None else ("data", "split", name, "source"), source
    for name, field in section.fields.items():
        yield "field", ("data", "fields", name), field
    for number, transform in enumerate(section.transforms):
        yield "transform", ("data", "transforms", number), transform


def arrange_rows(
    rows: Mapping[str, SetRows], window: WindowSpec | None, order: RowOrder
) -> dict[str, tuple[SetRows, RowWindows | None]]:
    """Return {set: (rows, windows)}. With `window`, rows are in the order in which windows are cut from them. If
    `window` is None, each row is a sample: the rows are unchanged and `windows` is None."""
    if window is None:
        return {name: (each, None) for name, each in rows.items()}
    return {name: make_windows(each, window, order) for name, each in rows.items()}


def open_table(dataset: Dataset, fields: Mapping[str, Field], *, skips: bool) -> Table:
    """Open a source and return its table. Raises SourceError.

    `skips`: leave out rows that cannot be parsed. Then a text column that a field of type `tensor` reads is converted
    to numbers, if more than four in five values are numbers.
    """
    with skip_bad_rows(skips):
        table = dataset.open()
    if skips:
        convert_to_numbers(table, fields.values())
    if lists := [name for field in fields.values() if field.takes_lists for name in field.wanted]:
        table.take_lists(lists)
    return table


def find_usable_rows(
    table: Table, rows: Mapping[str, SetRows], fields: Mapping[str, Field], *, skips: bool
) -> tuple[dict[str, SetRows], dict[str, list[Skipped]]]:
    """Return two dicts by name of the set: the rows that can be used, and the rows that are left out because a needed
    value is missing. Without `skips`, no row is left out: a missing value is reported later as an error. Raises
    SourceError."""
    if not skips:
        return dict(rows), {}
    columns = {name: (field, [column.name for column in columns_of(field, table)[0]]) for name, field in fields.items()}
    return find_complete_rows(table, rows, columns)


def open_sources(draft: DataDraft) -> dict[str | None, Table]:
    """Open the main source (key None) and the sources of single sets (key: name of the set). A source that fails is
    reported and left out."""
    tables: dict[str | None, Table] = {}
    for name, dataset in list_sources(draft.section).items():
        place = "data.source" if name is None else f"data.split.{name}.source"
        remote = next((path for path in dataset.paths if is_remote(path)), None)
        if remote is not None and draft.offline and is_known(remote):
            draft.report(remote_source(draft.span(f"{place}.path"), remote))
            continue
        try:
            tables[name] = open_table(dataset, draft.section.fields, skips=draft.skips)
        except SourceError as error:
            draft.report(source_problem(draft.span(f"{place}{error.below}.path"), error))
    return tables


def find_columns(
    draft: DataDraft, tables: Mapping[str | None, Table]
) -> dict[tuple[str | None, str], tuple[Column, ...]]:
    """Return {(source, field): the columns that the field reads}. A field is reported and left out if a column is
    missing, or if it does not accept its columns. `tables`: the opened table of each source. A source is None for the
    main source, else the name of the set that has this source."""
    found: dict[tuple[str | None, str], tuple[Column, ...]] = {}
    for source, table in tables.items():
        for name, field in draft.section.fields.items():
            columns, missed = columns_of(field, table)
            for missing in missed:
                draft.report(_missing_column(draft, source, table, name, field, missing))
            if missed:
                continue
            if not columns:
                at = draft.span(f"data.fields.{name}.exclude")
                draft.report(column_does_not_fit(at, name, "`exclude` removes all of its columns", None))
                continue
            # without rows, the types of the columns are not known
            shape_error = field.check(columns) if table.num_rows else None
            if shape_error is None and source is not None and (None, name) in found:
                shape_error = _other_shape(field, found[None, name], columns)
            if shape_error is not None:
                shape_error = name_odd_value(shape_error, table, columns)
                place = f"data.fields.{name}.{shape_error.field or 'column'}"
                span = draft.span(place if source is None else f"data.split.{source}.source")
                draft.report(column_does_not_fit(span, name, shape_error.message, shape_error.help))
                continue
            found |= {(source, each): columns for each in draft.fields if base_of(each) == name}
    return found


def _missing_column(
    draft: DataDraft, source: str | None, table: Table, name: str, field: Field, column: str
) -> Diagnostic:
    if source is not None:
        place = draft.span(f"data.split.{source}.source")
        return unknown_column(place, column, table.columns, table.left_out, f"the source of `{source}`")
    return unknown_column(draft.column_span(name, field, column), column, table.columns, table.left_out)


def has_unknown_columns(draft: DataDraft, main: Table) -> bool:
    """Return whether a split or the window names a column that the main source does not have. Report each such
    column."""
    asked = [
        (f"data.split.{name}.{'sort' if split.type == 'last' else 'column'}", column)
        for name, split in draft.section.split.items()
        for column in split.columns
    ]
    if draft.window is not None:
        asked += [(f"data.window.{key}", getattr(draft.window, key)) for key in ("by", "sort")]
    unknown = [(place, column) for place, column in asked if column is not None and column not in main.columns]
    for place, column in unknown:
        draft.report(unknown_column(draft.span(place), column, main.columns, main.left_out))
    return bool(unknown)


def _other_shape(field: Field, main: Sequence[Column], own: Sequence[Column]) -> ShapeError | None:
    here, there = field.row_spec(own, {}).shape, field.row_spec(main, {}).shape
    message = f"it is {format_shape(here)} in this source, but {format_shape(there)} in the main one"
    return None if here == there else ShapeError(message)


def record_files(paths: Iterable[str]) -> list[FileRecord]:
    """Return a record of each file, with which a later change of the file can be detected. Raises SourceError."""
    sizes = {path: 0 if _is_remote_folder(path) else size_bytes(path) for path in paths}
    are_few = sum(sizes.values()) <= ALL_BYTES
    return [record_file(path, whole=are_few and size <= WHOLE_BYTES) for path, size in sizes.items()]


def record_file(path: str, *, whole: bool) -> FileRecord:
    """Return the record of a file or folder. Raises SourceError.

    The record of a folder has a hash of the names and sizes, and the date of the newest file. The record of a file has
    a hash of the whole content if `whole`. Otherwise it has the date of the file, and a hash of its size and its first,
    middle and last 64 KiB.
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
    """Return the record of a remote folder: the sum of the sizes, and a hash of the names, sizes and tags in its
    listing."""
    root = path.rstrip("/")
    found = {name: stamp_from_listing(root, name) for name in sorted(list_remote(root, endings_in_folders()))}
    digest = hashlib.sha256("".join(f"{name}\0{size}\0{tag}\n" for name, (size, tag) in found.items()).encode())
    return FileRecord(path, sum(size for size, _ in found.values()), digest.hexdigest(), 0)
