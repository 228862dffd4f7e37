"""Compiler of the data section: a recipe's section -> DataSpec with what ranks need, and diagnostics on the data.

It opens the sources, divides the rows into sets, computes the statistics of the training rows and converts every value
once, which checks it. Prepared sets are remembered, so that a run does not read them again. It does not import torch.
Over 440 lines because each step reports problems and continues, with the same few values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from declarative_train.components.component import ShapeError
from declarative_train.components.data import Column, Field, MissingPackageError, NoStatisticsError, Table
from declarative_train.components.datasets.mix import MixDataset
from declarative_train.components.fields.columns import format_shape
from declarative_train.components.fields.tokens import TokensField
from declarative_train.core.amounts import counted
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.span import Span
from declarative_train.core.tensor_spec import DType
from declarative_train.data import problems as static_checks
from declarative_train.data.checks import group_in_two_sets
from declarative_train.data.checks.files import remote_source, unknown_column
from declarative_train.data.checks.pictures import pictures_without_size, transform_does_not_fit
from declarative_train.data.checks.samples import (
    empty_set,
    interleaved_windows,
    rows_skipped,
    rows_without_order,
    sorted_as_text,
    split_does_not_fit,
)
from declarative_train.data.checks.values import column_does_not_fit, no_statistics, unread_messages
from declarative_train.data.fields import BadSampleError, FieldReader, base_of, columns_of, each_output, make_part
from declarative_train.data.late import TransformChain, TransformError
from declarative_train.data.materialize import PreparedSet, prepare
from declarative_train.data.mixture import list_members
from declarative_train.data.pairs import check_transforms
from declarative_train.data.prepared_sets import remember
from declarative_train.data.problems import Place, bad_sample, row_with, source_problem, with_the_odd_value
from declarative_train.data.rows import RowChain, RowOrder, RowRange, SetRows, Windows, row_order
from declarative_train.data.set_overlap import overlaps
from declarative_train.data.shuffle import choose_roll, most_held, most_held_beside
from declarative_train.data.skipping import Skipped, Skips, in_words
from declarative_train.data.source import arrange_rows, open_table, outlines, records, sources, unrun, usable
from declarative_train.data.spec import DataSpec, FieldSpec, MemberSpec, SetSpec, WindowSpec
from declarative_train.data.splitting import TRAINING, SplitError, split_rows
from declarative_train.data.statistics import (
    Inherited,
    StatisticsCache,
    measure_missing,
    misread,
    origin_of,
    unknown_value,
)
from declarative_train.data.texts import list_unread
from declarative_train.files.open_files import is_known, is_remote
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
    """Build the DataSpec; None if there is an error or, with `offline`, if a source is on another machine.

    `floats`: dtype of numbers in fields without `dtype`. `inherited`: fields of an earlier run whose statistics and
    class numbers are used. `read`: the wires that the model and the objective read; other outputs of fields
    (`NAME.mask`) are not made. None: all are made.
    """
    return _Description(section, seed, span, floats, offline, inherited or {}, read).describe()


class _Description:
    def __init__(
        self,
        section: DataSection,
        seed: int,
        span: Place,
        floats: DType,
        offline: bool,
        inherited: Mapping[str, Inherited],
        read: Collection[str] | None,
    ) -> None:
        self.inherited = inherited
        self.section = section
        self.fields = dict(each_output(section.fields, read))
        self.seed = seed
        self.span = span
        self.floats = floats
        self.offline = offline
        self.diagnostics: list[Diagnostic] = []
        self.skips = section.on_bad_row == "skip"
        self.skipped: list[Skipped] = []
        self.window_fits = True
        self.chain = TransformChain(section.transforms, seed)
        self.window: WindowSpec | None = None
        if (window := section.window) is not None:
            self.window = WindowSpec(window.length, window.stride or window.length, window.by, window.sort)

    @property
    def cut(self) -> tuple[object, ...]:
        """Everything that decides which rows of a source a set has."""
        splits = {name: split.as_data() for name, split in self.section.split.items()}
        return splits, self.seed, None if self.window is None else asdict(self.window), self.section.on_bad_row

    def report(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    def describe(self) -> tuple[DataSpec | None, list[Diagnostic]]:
        try:
            return self._describe()
        except SourceError as error:  # a file went away after its source was opened
            self.report(source_problem(self.span("data.source.path"), error))
            return None, self.diagnostics

    def _describe(self) -> tuple[DataSpec | None, list[Diagnostic]]:
        self._check_words()
        if waiting := unrun(self.section, self.span):
            self._check_outlines()
            return None, [*self.diagnostics, *waiting]
        tables = self._open_all()
        main = tables.get(None)
        if main is None:
            return None, self.diagnostics
        self.diagnostics += overlaps(self.section.source, self.section.split, tables, self.span)
        columns = self._columns(tables)
        sets = None if self._unknown_in_sets(main) or not self.window_fits else self._sets(tables)
        if sets is None:
            return None, self.diagnostics
        parts = self._parts(main, sets[TRAINING].rows, columns)
        self._check_pairs(parts)
        prepared = self._prepare(sets, parts, columns)
        if any(item.is_error for item in self.diagnostics) or len(tables) <= self._num_own():
            return None, self.diagnostics
        self._report_skipped(tables, prepared)
        self._report_unread(main, parts, {sets[name].source: each.table for name, each in prepared.items()})
        spec = self._spec(tables, parts, prepared)
        remember(spec, prepared)
        return spec, self.diagnostics

    def _check_outlines(self) -> None:
        """Check fields and sets against the columns that plugins declare."""
        tables = outlines(self.section)
        self._columns(tables)
        if None in tables:
            self._unknown_in_sets(tables[None])

    def _num_own(self) -> int:
        return sum(split.own_source is not None for split in self.section.split.values())

    def _check_words(self) -> None:
        """Report errors that do not depend on the content of the source."""
        if self.window is None:
            self.diagnostics += static_checks.of_rows(self.section, self.span)
        self.diagnostics += static_checks.of_transforms(self.section, self.span)
        of_window = list(static_checks.of_window(self.section, self.window, self.span))
        self.diagnostics += of_window
        self.window_fits = not of_window

    def _report_transform(self, name: str, error: TransformError) -> None:
        shape_error = error.shape_error
        if error.place is None:
            self.report(
                pictures_without_size(self.span(f"data.fields.{name}"), name, shape_error.message, shape_error.help)
            )
            return
        span = self.span(("data", "transforms", error.place, shape_error.field or "type"))
        self.report(transform_does_not_fit(span, f"field `{name}`: {shape_error.message}", shape_error.help))

    def _open_all(self) -> dict[str | None, Table]:
        """Open the main source, under None, and the own sources of sets, under their names; omit those that fail."""
        tables: dict[str | None, Table] = {}
        for name, dataset in sources(self.section).items():
            place = "data.source" if name is None else f"data.split.{name}.source"
            remote = next((path for path in dataset.paths if is_remote(path)), None)
            if remote is not None and self.offline and is_known(remote):
                self.report(remote_source(self.span(f"{place}.path"), remote))
                continue
            try:
                tables[name] = open_table(dataset, self.section.fields, skips=self.skips)
            except SourceError as error:
                self.report(source_problem(self.span(f"{place}{error.below}.path"), error))
        return tables

    def _columns(self, tables: Mapping[str | None, Table]) -> dict[tuple[str | None, str], tuple[Column, ...]]:
        """Return the columns by source and field; omit fields that do not fit."""
        found: dict[tuple[str | None, str], tuple[Column, ...]] = {}
        for source, table in tables.items():
            for name, field in self.section.fields.items():
                columns, missed = columns_of(field, table)
                for missing in missed:
                    self.report(self._missing_column(source, table, name, field, missing))
                if missed:
                    continue
                if not columns:
                    at = self.span(f"data.fields.{name}.exclude")
                    self.report(column_does_not_fit(at, name, "`exclude` leaves none of its columns", None))
                    continue
                shape_error = field.check(columns) if table.num_rows else None  # types are those of the values
                if shape_error is None and source is not None and (None, name) in found:
                    shape_error = _other_shape(field, found[None, name], columns)
                if shape_error is not None:
                    shape_error = with_the_odd_value(shape_error, table, columns)
                    place = f"data.fields.{name}.{shape_error.field or 'column'}"
                    span = self.span(place if source is None else f"data.split.{source}.source")
                    self.report(column_does_not_fit(span, name, shape_error.message, shape_error.help))
                    continue
                found |= {(source, each): columns for each in self.fields if base_of(each) == name}
        return found

    def _missing_column(self, source: str | None, table: Table, name: str, field: Field, column: str) -> Diagnostic:
        if source is not None:
            place = self.span(f"data.split.{source}.source")
            return unknown_column(place, column, table.columns, table.left_out, f"the source of `{source}`")
        return unknown_column(self._column_span(name, field, column), column, table.columns, table.left_out)

    def _column_span(self, name: str, field: Field, column: str) -> Span:
        for position, unwanted in enumerate(field.unwanted):
            if unwanted == column:
                single = isinstance(getattr(field, "exclude", None), str)
                return self.span(("data", "fields", name, "exclude", *(() if single else (position,))))
        if field.takes_lists and column == getattr(field, "labels", None):
            return self.span(f"data.fields.{name}.labels")
        if getattr(field, "column", None) is not None:
            return self.span(f"data.fields.{name}.column")
        if isinstance(getattr(field, "columns", None), tuple) and column in field.wanted:
            return self.span(("data", "fields", name, "columns", field.wanted.index(column)))
        return self.span(f"data.fields.{name}.columns")

    def _unknown_in_sets(self, main: Table) -> bool:
        """Report columns that the splits and the window name and the source lacks; return whether there are any."""
        asked = [
            (f"data.split.{name}.{'sort' if split.type == 'last' else 'column'}", column)
            for name, split in self.section.split.items()
            for column in split.columns
        ]
        if self.window is not None:
            asked += [(f"data.window.{key}", getattr(self.window, key)) for key in ("by", "sort")]
        unknown = [(place, column) for place, column in asked if column is not None and column not in main.columns]
        for place, column in unknown:
            self.report(unknown_column(self.span(place), column, main.columns, main.left_out))
        return bool(unknown)

    def _sets(self, tables: Mapping[str | None, Table]) -> dict[str, _SetRows] | None:
        """Return the rows of every set, in the order of the recipe; None if they cannot be divided."""
        by, sort = (None, None) if self.window is None else (self.window.by, self.window.sort)
        found: dict[str, _SetRows] = {}
        try:
            order = row_order(tables[None], self.window)  # first: sets cut by `last` follow it too
            cuts = split_rows(tables[None], self.section.split, self.seed, by, sort)
            self._check_cuts(tables[None], cuts)
            cuts = self._usable(tables[None], cuts)
            found |= _set_rows(None, tables[None], cuts, self.window, order)
            for name, table in tables.items():
                if name is not None:
                    whole = self._usable(table, {name: RowRange(0, table.num_rows)})
                    found |= _set_rows(name, table, whole, self.window, row_order(table, self.window))
        except SplitError as error:
            self.report(split_does_not_fit(self.span(f"data.split.{error.name}"), error.name, str(error)))
            return None
        except ValueError as error:
            self.report(rows_without_order(self.span("data.window.sort"), sort or "", str(error)))
            return None
        ordered = {name: found[name] for name in (TRAINING, *self.section.split) if name in found}
        empty = [problem for name, each in ordered.items() if (problem := self._if_empty(name, each)) is not None]
        empty += self._empty_sources(ordered[TRAINING])
        self.diagnostics += empty
        return None if empty else ordered

    def _usable(self, table: Table, rows: Mapping[str, SetRows]) -> dict[str, SetRows]:
        kept, skipped = usable(table, rows, self.section.fields, skips=self.skips)
        self.skipped += [each for found in skipped.values() for each in found]
        return kept

    def _empty_sources(self, training: _SetRows) -> list[Diagnostic]:
        if not isinstance(training.rows, RowChain):
            return []
        names = [name for name, _ in training.table.members]
        lacking = [name for name, piece in zip(names, training.rows.pieces, strict=True) if not len(piece)]
        message = "it has no row left to train on"
        return [empty_set(self.span(f"data.source.of.{name}"), name, message, "leave it out") for name in lacking]

    def _check_cuts(self, main: Table, cuts: Mapping[str, SetRows]) -> None:
        """Report splits that are possible and probably not intended."""
        for diagnostic in group_in_two_sets.check(main, cuts, self.section.split, self.span):
            self.report(diagnostic)
        sorts = {f"data.split.{name}.sort": getattr(split, "sort", None) for name, split in self.section.split.items()}
        sorts["data.window.sort"] = None if self.window is None else self.window.sort
        for place, column in sorts.items():
            if column is not None and (found := sorted_as_text(self.span(place), main, column)) is not None:
                self.report(found)
        order = None if self.window is None or self.window.by is not None else self.window.sort
        if order is not None:
            found_in = (
                interleaved_windows(self.span("data.window.sort"), each, order) for each in main.tables or (main,)
            )
            if (found := next(filter(None, found_in), None)) is not None:
                self.report(found)

    def _if_empty(self, name: str, each: _SetRows) -> Diagnostic | None:
        place = self.span("data.split" if name == TRAINING else f"data.split.{name}")
        if not len(each.rows) and not each.table.num_rows:
            message, at = "the source has columns and no row", self.span("data.source.path")
            return empty_set(at, name, message, None) if name == TRAINING else None
        if not len(each.rows):
            message = "the sets take all rows" if name == TRAINING else "no row is left for it, or none is as it asks"
            return empty_set(place, name, message, "give the other sets less" if name == TRAINING else None)
        if each.windows is None or len(each.windows):
            return None
        of = "" if self.window is None or self.window.by is None else f" of one `{self.window.by}`"
        message = f"nowhere among its {counted(len(each.rows), 'row')} do {each.windows.length}{of} follow each other"
        return empty_set(self.span("data.window.length"), name, message, "make the window shorter")

    def _parts(
        self, main: Table, training: SetRows, columns: Mapping[tuple[str | None, str], tuple[Column, ...]]
    ) -> dict[str, FieldReader]:
        """Return the fields, with the statistics of the training rows."""
        draft = []
        for name, field in self.fields.items():
            if (None, name) not in columns:
                continue
            try:
                read = field.with_floats(self.floats, columns[None, name])
                draft.append(make_part(name, read, columns[None, name], {}, None, self.chain))
            except TransformError as error:
                self._report_transform(name, error)
        known = StatisticsCache(main, (TRAINING, *self.cut))
        statistics, problems = known.statistics(
            draft, lambda: measure_missing(main, training, draft, self.inherited), may_keep=not self.inherited
        )
        for name, problem in {id(problem): (name, problem) for name, problem in problems.items()}.values():
            if isinstance(problem, BadSampleError):
                self._report_bad(main, problem)
            elif isinstance(problem, SourceError):
                self.report(source_problem(self.span("data.source.path"), problem))
            else:
                where = hint = None
                if isinstance(problem, NoStatisticsError):
                    where, hint = row_with(main, training, problem), problem.help
                self.report(no_statistics(self.span(f"data.fields.{name}"), name, str(problem), where, hint))
        found = {
            part.name: make_part(part.name, part.field, part.columns, statistics[part.name], self.window, self.chain)
            for part in draft
            if part.name not in problems
        }
        for name in found.keys() & self.inherited.keys():
            part = found[name]
            place = self._column_span(base_of(name), part.field, part.columns[0].name)
            if said := misread(part, self.inherited[name], place):
                self.diagnostics += said
                del found[name]
        return found

    def _check_pairs(self, parts: Mapping[str, FieldReader]) -> None:
        specs = {name: part.sample for name, part in parts.items()}
        pictures = [name for name, part in parts.items() if part.field.reads_late and not part.field.takes_lists]
        for place, shape_error in check_transforms(self.section.transforms, specs, pictures):
            span = self.span(("data", "transforms", *place))
            self.report(transform_does_not_fit(span, shape_error.message, shape_error.help))

    def _prepare(
        self,
        sets: Mapping[str, _SetRows],
        parts: Mapping[str, FieldReader],
        columns: Mapping[tuple[str | None, str], tuple[Column, ...]],
    ) -> dict[str, PreparedSet]:
        """Convert the rows of each set; a field with a bad value is reported once, and the others are still checked."""
        left = dict(parts)
        found: dict[str, PreparedSet] = {}
        for name, each in sets.items():
            while left:
                used = self._of_set(each.source, left, columns)
                try:
                    if each.source is None and name != TRAINING and TRAINING in found:
                        most = most_held_beside(found[TRAINING])
                    else:
                        window = self.section.shuffle_window if name == TRAINING and self.section.shuffle else None
                        most = most_held(each.table, each.rows, each.windows, window)
                    known = StatisticsCache(each.table, (name, *self.cut))
                    skips = Skips() if self.skips else None
                    found[name] = prepare(
                        name, each.table, each.rows, each.windows, used, most, self.chain, known, skips=skips
                    )
                    break
                except MissingPackageError as error:
                    late = next(part for part in left.values() if part.field.reads_late)
                    words, _, hint = str(error).partition("; help: ")
                    self.report(column_does_not_fit(self.span(f"data.fields.{late.name}.type"), late.name, words, hint))
                    return found
                except BadSampleError as error:
                    left = {name: part for name, part in left.items() if base_of(name) != base_of(error.part.name)}
                    self._report_bad(each.table, error)
                except SourceError as error:
                    place = "data.source.path" if each.source is None else f"data.split.{name}.source.path"
                    self.report(source_problem(self.span(place), error))
                    break
        return found

    def _report_skipped(self, tables: Mapping[str | None, Table], prepared: Mapping[str, PreparedSet]) -> None:
        """Report the rows that were left out, and store them with the training set for the run's log."""
        for table in tables.values():
            self.skipped += [Skipped("", place, why) for place, why in table.skipped]
        for each in prepared.values():
            if each.skips is not None:
                self.skipped += each.skips.left_out
        first = prepared[TRAINING].skips
        if self.skipped and first is not None:
            first.left_out = self.skipped
            self.report(rows_skipped(self.span("data.on_bad_row"), in_words(self.skipped)))

    def _report_unread(self, main: Table, parts: Mapping[str, FieldReader], tables: Mapping[str | None, Table]) -> None:
        """Report data of dialogues that no token represents. `tables`: tables with tokens, by source."""
        for table in tables.values():
            for name, keys in list_unread(table):
                message = f"its chat template does not read these keys of messages: {keys}"
                hint = "leave them out of the data, or name a template that reads them: `template: chat.jinja`"
                self.report(unread_messages(self.span(f"data.fields.{name}.column"), name, message, hint))
        for name, part in parts.items():
            if not isinstance(part.field, TokensField) or name != base_of(name) or "tools" not in main.columns:
                continue
            if part.field.lacks_tools(part.columns):
                message = "its chat template writes tools, and does not get those of the column `tools`"
                span = self.span(f"data.fields.{name}.column")
                self.report(unread_messages(span, name, message, "give them to it: `tools: tools`"))

    def _of_set(
        self,
        source: str | None,
        parts: Mapping[str, FieldReader],
        columns: Mapping[tuple[str | None, str], tuple[Column, ...]],
    ) -> tuple[FieldReader, ...]:
        """Return the fields on the columns of the set's source; fields that do not fit were reported earlier."""
        if source is None:
            return tuple(parts.values())
        own = {part: columns[source, part.name] for part in parts.values() if (source, part.name) in columns}
        return tuple(
            FieldReader(part.name, part.field, found, part.statistics, part.row, part.sample)
            for part, found in own.items()
        )

    def _report_bad(self, table: Table, error: BadSampleError) -> None:
        """Report a bad value at the key that defines the expected value if the recipe has it, else at the column."""
        name, field, key = base_of(error.part.name), error.part.field, error.cause.key
        column = self._column_span(name, field, error.cause.column)
        unknown = unknown_value(error, table, self.inherited.get(name), column)
        if unknown is not None:
            self.report(unknown)
            return
        if key is None or key not in field.model_fields_set:
            self.report(bad_sample(column, error, table.place(error.row)))
            return
        made = (Related(column, "the column is here"),)
        self.report(bad_sample(self.span(f"data.fields.{name}.{key}"), error, table.place(error.row), made))

    def _spec(
        self, tables: Mapping[str | None, Table], parts: Mapping[str, FieldReader], prepared: Mapping[str, PreparedSet]
    ) -> DataSpec:
        section = self.section
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
                )
            )
        mix = self._mix(prepared[TRAINING])
        paths = dict.fromkeys(path for table in tables.values() for path in (*table.files, *table.read_with))
        paths |= dict.fromkeys(path for part in parts.values() for path in part.field.files)
        return DataSpec(
            source=section.source.as_data(),
            fields=tuple(
                FieldSpec(
                    name,
                    part.field.as_data(),
                    part.sample,
                    dict(part.statistics),
                    tuple(column.name for column in part.columns),
                    origin_of(self.inherited.get(name)),
                )
                for name, part in parts.items()
            ),
            sets=tuple(sets),
            seed=self.seed,
            shuffle=section.shuffle,
            roll=choose_roll(prepared[TRAINING], section.shuffle_window, section.shuffle_streams)
            if section.shuffle and not mix
            else None,
            mix=mix,
            workers=section.workers,
            last_batch=section.last_batch,
            on_bad_row=section.on_bad_row,
            window=self.window,
            transforms=tuple(each.as_data() for each in section.transforms),
            files=() if self.offline else tuple(records(paths)),  # lint keeps no plan
        )

    def _mix(self, training: PreparedSet) -> tuple[MemberSpec, ...]:
        source, section = self.section.source, self.section
        if not isinstance(source, MixDataset):
            return ()
        weights = [member.weight for member in source.of.values()]
        return list_members(training, weights, section.shuffle_window, section.shuffle_streams, shuffle=section.shuffle)


@dataclass(frozen=True, slots=True)
class _SetRows:
    """Rows of a set in the order of their samples. `source` is the set's name if it has its own."""

    source: str | None
    table: Table
    rows: SetRows
    windows: Windows | None


def _set_rows(
    source: str | None, table: Table, rows: Mapping[str, SetRows], window: WindowSpec | None, order: RowOrder
) -> dict[str, _SetRows]:
    return {name: _SetRows(source, table, *found) for name, found in arrange_rows(rows, window, order).items()}


def _other_shape(field: Field, main: Sequence[Column], own: Sequence[Column]) -> ShapeError | None:
    here, there = field.row_spec(own, {}).shape, field.row_spec(main, {}).shape
    message = f"it is {format_shape(here)} in this source, and {format_shape(there)} in the main one"
    return None if here == there else ShapeError(message)
