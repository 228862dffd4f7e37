"""Compilation of the section `data` to a DataSpec, which has everything that ranks need to know about the data, and
diagnostics.

It opens the sources, divides the rows into sets and computes the statistics of the training rows. It checks every
value by converting it once. Prepared sets are kept, so that a run in this process does not read them again. torch is
not imported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from declarative_train.components.data import Column, MissingPackageError, NoStatisticsError, Table
from declarative_train.components.datasets.mix import MixDataset
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.tensor_spec import DType
from declarative_train.data import diagnostics
from declarative_train.data.checks.pictures import pictures_without_size, transform_does_not_fit
from declarative_train.data.checks.samples import rows_skipped
from declarative_train.data.checks.values import column_does_not_fit, no_statistics, unread_messages
from declarative_train.data.diagnostics import DataDraft, Place, bad_sample, find_row_with, source_problem
from declarative_train.data.field_reader import BadSampleError, FieldReader, base_of, make_reader
from declarative_train.data.lazy_fields import TransformError
from declarative_train.data.length_buckets import count_buckets
from declarative_train.data.mixture import specify_sources
from declarative_train.data.mixup import check_transforms
from declarative_train.data.prepared_set import PreparedSet, prepare
from declarative_train.data.rows import SetRows
from declarative_train.data.shared_sets import remember
from declarative_train.data.shuffle import choose_block_shuffle, max_held_bytes, max_held_bytes_of_others
from declarative_train.data.skipping import Skipped, Skips, in_words
from declarative_train.data.source import (
    find_columns,
    has_unknown_columns,
    make_outlines,
    open_sources,
    record_files,
    report_unrun,
)
from declarative_train.data.spec import DataSpec, FieldSpec, MixtureSourceSpec, SetSpec
from declarative_train.data.split_checks import RowsOfSet, divide, find_overlaps
from declarative_train.data.split_rows import TRAINING
from declarative_train.data.statistics import (
    Inherited,
    StatisticsCache,
    find_misreading,
    measure_missing,
    origin_of,
    unknown_value,
)
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    from declarative_train.recipe.sections.data import DataSection


def describe(
    section: DataSection,
    seed: int,
    span: Place,
    *,
    floats: DType,
    offline: bool = False,
    inherited: Mapping[str, Inherited] | None = None,
    read: Collection[str] | None = None,
) -> tuple[DataSpec | None, list[Diagnostic]]:
    """Return the DataSpec of the section, and diagnostics. The DataSpec is None if there is an error or, with
    `offline`, if a source is on another machine.

    `floats`     dtype of floating-point fields without the key `dtype`
    `inherited`  fields of an earlier run whose statistics and class numbers are used
    `read`       names that model and objective read. Of the additional outputs of fields (`NAME.mask`), only these are
                 made; None: all are made
    """
    draft = DataDraft(section, seed, span, floats, offline, inherited or {}, read)
    try:
        spec = _describe(draft)
    except SourceError as error:  # a file went away after its source was opened
        draft.report(source_problem(span("data.source.path"), error))
        spec = None
    return spec, draft.diagnostics


def _describe(draft: DataDraft) -> DataSpec | None:
    _check_without_source(draft)
    if waiting := report_unrun(draft.section, draft.span):
        _check_outlines(draft)
        draft.diagnostics += waiting
        return None
    tables = open_sources(draft)
    main = tables.get(None)
    if main is None:
        return None
    draft.diagnostics += find_overlaps(draft.section.source, draft.section.split, tables, draft.span)
    columns = find_columns(draft, tables)
    sets = None if has_unknown_columns(draft, main) or not draft.window_fits else divide(draft, tables)
    if sets is None:
        return None
    readers = _read_fields(draft, main, sets[TRAINING].rows, columns)
    _check_transforms(draft, readers)
    prepared = _prepare(draft, sets, readers, columns)
    if any(item.is_error for item in draft.diagnostics) or len(tables) <= _num_own(draft):
        return None
    _report_skipped(draft, tables, prepared)
    draft.diagnostics += diagnostics.check_bucket_counts(draft.section, prepared[TRAINING], draft.span)
    _report_unread(draft, main, readers, {sets[name].source: each.table for name, each in prepared.items()})
    spec = _make_spec(draft, tables, readers, prepared)
    remember(spec, prepared)
    return spec


def _check_outlines(draft: DataDraft) -> None:
    """Report columns that the recipe names but the source does not have. The columns of a plugin's source are those
    that it declares; its code is not run."""
    tables = make_outlines(draft.section)
    find_columns(draft, tables)
    if None in tables:
        has_unknown_columns(draft, tables[None])


def _num_own(draft: DataDraft) -> int:
    return sum(split.own_source is not None for split in draft.section.split.values())


def _check_without_source(draft: DataDraft) -> None:
    """Report errors that can be found without the content of the source."""
    if draft.window is None:
        draft.diagnostics += diagnostics.check_without_window(draft.section, draft.span)
    draft.diagnostics += diagnostics.check_transform_keys(draft.section, draft.span)
    draft.diagnostics += diagnostics.check_buckets(draft.section, draft.window, draft.span)
    window_errors = list(diagnostics.check_window(draft.section, draft.window, draft.span))
    draft.diagnostics += window_errors
    draft.window_fits = not window_errors


def _report_transform(draft: DataDraft, name: str, error: TransformError) -> None:
    shape_error = error.shape_error
    if error.place is None:
        draft.report(
            pictures_without_size(draft.span(f"data.fields.{name}"), name, shape_error.message, shape_error.help)
        )
        return
    span = draft.span(("data", "transforms", error.place, shape_error.field or "type"))
    draft.report(transform_does_not_fit(span, f"field `{name}`: {shape_error.message}", shape_error.help))


def _read_fields(
    draft: DataDraft, main: Table, training: SetRows, columns: Mapping[tuple[str | None, str], tuple[Column, ...]]
) -> dict[str, FieldReader]:
    """Return {field name: reader of the field}. The readers have the statistics of the training rows.

    Fields whose statistics cannot be computed are reported and left out. `main`: table of the main source. `columns`:
    {(source, field): columns of the field}. The source is None for the main source, else the name of the set that has
    this source.
    """
    readers = []
    for name, field in draft.fields.items():
        if (None, name) not in columns:
            continue
        try:
            read = field.with_floats(draft.floats, columns[None, name])
            readers.append(make_reader(name, read, columns[None, name], {}, None, draft.chain))
        except TransformError as error:
            _report_transform(draft, name, error)
    known = StatisticsCache(main, (TRAINING, *draft.cut))
    statistics, problems = known.statistics(
        readers, lambda: measure_missing(main, training, readers, draft.inherited), may_keep=not draft.inherited
    )
    for name, problem in {id(problem): (name, problem) for name, problem in problems.items()}.values():
        if isinstance(problem, BadSampleError):
            _report_bad(draft, main, problem)
        elif isinstance(problem, SourceError):
            draft.report(source_problem(draft.span("data.source.path"), problem))
        else:
            where = hint = None
            if isinstance(problem, NoStatisticsError):
                where, hint = find_row_with(main, training, problem), problem.help
            draft.report(no_statistics(draft.span(f"data.fields.{name}"), name, str(problem), where, hint))
    found = {
        reader.name: make_reader(
            reader.name, reader.field, reader.columns, statistics[reader.name], draft.window, draft.chain
        )
        for reader in readers
        if reader.name not in problems
    }
    for name in found.keys() & draft.inherited.keys():
        reader = found[name]
        place = draft.column_span(base_of(name), reader.field, reader.columns[0].name)
        if said := find_misreading(reader, draft.inherited[name], place):
            draft.diagnostics += said
            del found[name]
    return found


def _check_transforms(draft: DataDraft, readers: Mapping[str, FieldReader]) -> None:
    specs = {name: reader.sample for name, reader in readers.items()}
    pictures = [name for name, reader in readers.items() if reader.field.is_lazy and not reader.field.takes_lists]
    for place, shape_error in check_transforms(draft.section.transforms, specs, pictures):
        span = draft.span(("data", "transforms", *place))
        draft.report(transform_does_not_fit(span, shape_error.message, shape_error.help))


def _prepare(
    draft: DataDraft,
    sets: Mapping[str, RowsOfSet],
    readers: Mapping[str, FieldReader],
    columns: Mapping[tuple[str | None, str], tuple[Column, ...]],
) -> dict[str, PreparedSet]:
    """Convert the values of the sets to check them, and return the prepared sets by name. After a bad value, report it
    and go on without its field.

    `readers`: {field: its reader for the main source}. `columns`: {(source, field): columns of the field}; the
    source is None for the main source, else the name of the set that has this source.
    """
    left = dict(readers)
    found: dict[str, PreparedSet] = {}
    for name, each in sets.items():
        while left:
            used = _fields_of_set(each.source, left, columns)
            try:
                if each.source is None and name != TRAINING and TRAINING in found:
                    most = max_held_bytes_of_others(found[TRAINING])
                else:
                    window = draft.section.shuffle_window if name == TRAINING and draft.section.shuffle else None
                    most = max_held_bytes(each.table, each.rows, each.windows, window)
                known = StatisticsCache(each.table, (name, *draft.cut))
                skips = Skips() if draft.skips else None
                found[name] = prepare(
                    name, each.table, each.rows, each.windows, used, most, draft.chain, known, skips=skips
                )
                break
            except MissingPackageError as error:
                lazy = next(reader for reader in left.values() if reader.field.is_lazy)
                words, _, hint = str(error).partition("; help: ")
                draft.report(column_does_not_fit(draft.span(f"data.fields.{lazy.name}.type"), lazy.name, words, hint))
                return found
            except BadSampleError as error:
                left = {name: reader for name, reader in left.items() if base_of(name) != base_of(error.reader.name)}
                _report_bad(draft, each.table, error)
            except SourceError as error:
                place = "data.source.path" if each.source is None else f"data.split.{name}.source.path"
                draft.report(source_problem(draft.span(place), error))
                break
    return found


def _report_skipped(draft: DataDraft, tables: Mapping[str | None, Table], prepared: Mapping[str, PreparedSet]) -> None:
    """Report the rows that were skipped because they are bad. Also store them in the training set, from which the run
    logs them. `tables`: table of each source."""
    for table in tables.values():
        draft.skipped += [Skipped("", place, why) for place, why in table.skipped]
    for each in prepared.values():
        if each.skips is not None:
            draft.skipped += each.skips.left_out
    first = prepared[TRAINING].skips
    if draft.skipped and first is not None:
        first.left_out = draft.skipped
        draft.report(rows_skipped(draft.span("data.on_bad_row"), in_words(draft.skipped)))


def _report_unread(
    draft: DataDraft, main: Table, readers: Mapping[str, FieldReader], tables: Mapping[str | None, Table]
) -> None:
    """Report each field that ignores data which it should probably read: keys of chat messages, or a whole column.

    `main`: the table of `data.source`, as it was opened. `readers`: {field: its reader}. `tables`: for `data.source`
    (key None) and each set's own source, the table with the columns that packs add, such as tokens."""
    for table in tables.values():
        for name, message, hint in table.unread():
            draft.report(unread_messages(draft.span(f"data.fields.{name}.column"), name, message, hint))
    for name, reader in readers.items():
        if name == base_of(name) and (found := reader.field.unread(reader.columns, main.columns)) is not None:
            draft.report(unread_messages(draft.span(f"data.fields.{name}.column"), name, *found))


def _fields_of_set(
    source: str | None,
    readers: Mapping[str, FieldReader],
    columns: Mapping[tuple[str | None, str], tuple[Column, ...]],
) -> tuple[FieldReader, ...]:
    """Return the readers of all fields for the table of one source. A field without an entry in `columns` is left out:
    the columns of this table do not fit it, which was reported earlier.

    `source`: name of the set that has its own source; None: the main source. `readers`: the readers for the main
    source. `columns`: {(source, field): columns of the field in the table}."""
    if source is None:
        return tuple(readers.values())
    own = {reader: columns[source, reader.name] for reader in readers.values() if (source, reader.name) in columns}
    return tuple(
        FieldReader(reader.name, reader.field, found, reader.statistics, reader.row, reader.sample)
        for reader, found in own.items()
    )


def _report_bad(draft: DataDraft, table: Table, error: BadSampleError) -> None:
    """Report a value that a field cannot convert. The diagnostic points to the key of the field that forbids the value
    or, if no key does, to the key that names the column."""
    name, field, key = base_of(error.reader.name), error.reader.field, error.cause.key
    column = draft.column_span(name, field, error.cause.column)
    unknown = unknown_value(error, table, draft.inherited.get(name), column)
    if unknown is not None:
        draft.report(unknown)
        return
    if key is None or key not in field.model_fields_set:
        draft.report(bad_sample(column, error, table.place(error.row)))
        return
    made = (Related(column, "the column is set here"),)
    draft.report(bad_sample(draft.span(f"data.fields.{name}.{key}"), error, table.place(error.row), made))


def _make_spec(
    draft: DataDraft,
    tables: Mapping[str | None, Table],
    readers: Mapping[str, FieldReader],
    prepared: Mapping[str, PreparedSet],
) -> DataSpec:
    section = draft.section
    sets = []
    for name, each in prepared.items():
        split = section.split.get(name)
        own = None if split is None else split.own_source
        sets.append(
            SetSpec(
                name,
                each.num_samples,
                source=None if own is None else own.as_data(),
                split=None if split is None or own is not None else split.as_data(),
                held_bytes=each.held_bytes,
                buckets=count_buckets(each.bucket_ids, draft.fields.values()),
            )
        )
    mix = _mix(draft, prepared[TRAINING])
    paths = dict.fromkeys(path for table in tables.values() for path in (*table.files, *table.read_with))
    paths |= dict.fromkeys(path for reader in readers.values() for path in reader.field.files)
    return DataSpec(
        source=section.source.as_data(),
        fields=tuple(
            FieldSpec(
                name,
                reader.field.as_data(),
                reader.sample,
                dict(reader.statistics),
                tuple(column.name for column in reader.columns),
                origin_of(draft.inherited.get(name)),
            )
            for name, reader in readers.items()
        ),
        sets=tuple(sets),
        seed=draft.seed,
        shuffle=section.shuffle,
        roll=choose_block_shuffle(prepared[TRAINING], section.shuffle_window, section.shuffle_streams)
        if section.shuffle and not mix
        else None,
        mix=mix,
        workers=section.workers,
        last_batch=section.last_batch,
        on_bad_row=section.on_bad_row,
        window=draft.window,
        transforms=tuple(each.as_data() for each in section.transforms),
        files=() if draft.offline else tuple(record_files(paths)),  # lint keeps no plan
    )


def _mix(draft: DataDraft, training: PreparedSet) -> tuple[MixtureSourceSpec, ...]:
    source, section = draft.section.source, draft.section
    if not isinstance(source, MixDataset):
        return ()
    weights = [member.weight for member in source.of.values()]
    return specify_sources(training, weights, section.shuffle_window, section.shuffle_streams, shuffle=section.shuffle)
