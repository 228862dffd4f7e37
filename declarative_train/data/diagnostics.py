"""Diagnostics of the section `data`, and the state that the steps of its compilation share (`DataDraft`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from declarative_train.components.component import ShapeError
from declarative_train.components.data import Column, Field, NoStatisticsError, Table
from declarative_train.components.transforms.plugin import PluginTransform
from declarative_train.core.amounts import is_numeric
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.core.span import Span
from declarative_train.core.tensor_spec import DType
from declarative_train.data.checks.files import (
    different_columns,
    empty_glob,
    missing_file,
    plugin_field_fails,
    plugin_source_fails,
    source_without_file_system,
    unreadable_source,
)
from declarative_train.data.checks.pictures import broken_picture, transform_does_not_fit
from declarative_train.data.checks.samples import (
    bucket_without_texts,
    lengths_do_not_fit,
    rows_outside_window,
    rows_without_window,
    token_by_token,
    window_cut_to_pieces,
)
from declarative_train.data.checks.values import (
    column_does_not_fit,
    missing_value,
    not_a_whole_number,
    value_out_of_range,
)
from declarative_train.data.field_reader import BadSampleError, each_output
from declarative_train.data.lazy_fields import TransformChain
from declarative_train.data.rows import SetRows
from declarative_train.data.skipping import Skipped
from declarative_train.data.spec import WindowSpec
from declarative_train.data.statistics import Inherited
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    from declarative_train.data.prepared_set import PreparedSet
    from declarative_train.recipe.sections.data import DataSection

Place = Callable[[str | tuple[str | int, ...]], Span]
"""Function from a dotted path (or a tuple of its parts) to the place of its value, else of its nearest ancestor."""
_LOOKED_AT = 100_000  # rows, for the value that makes a column text
_OF_SOURCES: dict[str, Callable[[Span, SourceError], Diagnostic]] = {
    "different_columns": different_columns,
    "no_file_system": source_without_file_system,
    "no_match": empty_glob,
    "not_found": missing_file,
    "plugin": plugin_source_fails,
    "unreadable": unreadable_source,
}


def source_problem(span: Span, error: SourceError) -> Diagnostic:
    return _OF_SOURCES[error.problem](span, error)


def bad_sample(span: Span, error: BadSampleError, place: str, made: tuple[Related, ...] = ()) -> Diagnostic:
    """Return the diagnostic for a value that a field cannot convert. `place`: row and file of the value. `made`:
    additional places of the recipe to show, such as the key that names the column."""
    name, message, hint = error.reader.name, str(error.cause), error.cause.help
    if error.cause.problem == "plugin":
        return plugin_field_fails(span, name, message, place, hint)
    if error.cause.problem == "unreadable":
        return broken_picture(span, name, message, place, hint)
    if error.cause.problem == "missing":
        return missing_value(span, name, message, place, hint)
    if error.cause.problem == "outside":
        return value_out_of_range(span, name, message, place, hint, made)
    return not_a_whole_number(span, name, message, place, made)


def name_odd_value(shape_error: ShapeError, table: Table, columns: Sequence[Column]) -> ShapeError:
    """Return `shape_error` with a better message if its probable cause is a text in a column of numbers: the message
    names the first such text. Otherwise return it unchanged. `columns`: the columns to search."""
    for column in columns:
        if column.dtype != "object" or column.shape:
            continue
        values = table.read([column.name], slice(0, _LOOKED_AT))[column.name]
        odd = [row for row, value in enumerate(values) if value is not None and not is_numeric(value)]
        if odd and 5 * len(odd) < len(values):
            where = f"`{values[odd[0]]:.40}` in {table.place(odd[0])}"
            message = f"`{column.name}` contains numbers, but also text: {where}"
            return shape_error._replace(message=message, help="write a number there, or nothing and `missing: mean`")
    return shape_error


def find_row_with(table: Table, training: SetRows, problem: NoStatisticsError) -> str | None:
    """Return the position (row and file) of the first training row with the value that makes statistics impossible,
    such as an infinite number. Return None if no such value is known."""
    import numpy as np

    if problem.value is None:
        return None
    for start, numbers in training.chunks(_LOOKED_AT):
        values = np.asarray(table.read([problem.column], numbers)[problem.column], dtype=np.float64)
        found = np.flatnonzero((values.reshape(len(values), -1) == problem.value).any(axis=1))
        if len(found):
            return table.place(int(training.at(np.asarray([start + found[0]]))[0]))
    return None


def check_window(section: DataSection, window: WindowSpec | None, span: Place) -> Iterator[Diagnostic]:
    """Yield an error for each mistake at the key `window`, which makes a sample of several consecutive rows. `window`:
    None if the section has no such key."""
    yield from _check_joined(section, window, span)
    if window is None:
        return
    for name, field in section.fields.items():
        if field.cut is not None and not _takes_rows(field.cut, window.length):
            place = span(f"data.fields.{name}.rows")
            yield rows_outside_window(place, name, getattr(field, "rows", ""), window.length)
    for name, split in section.split.items():
        if split.cuts_singly:
            yield window_cut_to_pieces(span(f"data.split.{name}.type"), name, split.type, window.length)


def _check_joined(section: DataSection, window: WindowSpec | None, span: Place) -> Iterator[Diagnostic]:
    """Yield an error if a field joins the texts of several rows to one sample, and the key `window` or another field
    does not fit such samples."""
    name = next((name for name, field in section.fields.items() if field.joined_by is not None), None)
    if name is None:
        return
    key = section.fields[name].joined_by
    alike = section.fields[name].joined_alike
    for other, field in section.fields.items():
        if other == name or (alike is not None and alike == field.joined_alike):
            continue
        message = f"its samples contain texts of several rows, but `{other}` is a value of one row"
        hint = f"leave `{key}` or the field `{other}` out"
        if field.joined_by is not None:
            message = f"its samples do not contain the same texts as those of `{other}`"
            hint = "give both `pack: best_fit` and the same `texts`"
        yield column_does_not_fit(span(f"data.fields.{name}.{key}"), name, message, hint)
        return
    if window is not None:
        message = f"`{key}` combines texts in any order, but `window` needs consecutive rows"
        yield column_does_not_fit(span(f"data.fields.{name}.{key}"), name, message, "remove one of them")


def check_buckets(section: DataSection, window: WindowSpec | None, span: Place) -> Iterator[Diagnostic]:
    """Yield errors for length buckets that do not fit the other keys of the section: the buckets of another field, or a
    window."""
    found = {name: field.buckets for name, field in section.fields.items() if field.buckets}
    first = next(iter(found), None)
    if first is None:
        return
    place = span(f"data.fields.{first}.length")
    for name, buckets in found.items():
        if len(buckets) != len(found[first]):
            message = (
                f"`{name}` has {len(buckets)} buckets and `{first}` {len(found[first])}; "
                "a step uses the same bucket of all fields"
            )
            yield lengths_do_not_fit(
                span(f"data.fields.{name}.length"), message, "give both the same number of buckets"
            )
    if window is not None:
        yield lengths_do_not_fit(
            place, "a window combines several rows, which must have one length", "remove `buckets`"
        )


def check_bucket_counts(section: DataSection, training: PreparedSet, span: Place) -> Iterator[Diagnostic]:
    """Yield errors if the training set cannot be read in the order that length buckets need, and a warning for each
    bucket without a training sample."""
    import numpy as np

    if training.bucket_ids is None:
        return
    name, field = next((name, field) for name, field in section.fields.items() if field.buckets)
    place = span(f"data.fields.{name}.length")
    if not training.is_held and training.table.blocks is not None:
        message = "the training set is read block after block, and not in the order that buckets need"
        yield lengths_do_not_fit(place, message, "remove `buckets`, or convert the source to another format")
    elif not training.is_held and training.skips is not None:
        message = "with `on_bad_row: skip` a row is replaced by the next one, which may be longer"
        yield lengths_do_not_fit(place, message, "remove `buckets`, or set `on_bad_row: error`")
    counts = np.bincount(training.bucket_ids, minlength=len(field.buckets))
    for bucket in np.flatnonzero(counts == 0).tolist():
        others = [length for at, length in enumerate(field.buckets) if counts[at]]
        yield bucket_without_texts(place, name, field.buckets[bucket], others)


def check_without_window(section: DataSection, span: Place) -> Iterator[Diagnostic]:
    """Yield the errors of a data section without a window: one for each field with the key `rows`, which selects rows
    of a window, and one for a source in which each row is a single token."""
    for name, field in section.fields.items():
        if field.cut is not None:
            yield rows_without_window(span(f"data.fields.{name}.rows"), name)
    if section.source.needs_window:
        yield token_by_token(span("data.source.type"))


def check_transform_keys(section: DataSection, span: Place) -> Iterator[Diagnostic]:
    lazy = [name for name, field in section.fields.items() if field.is_lazy]
    pictures = [name for name in lazy if not section.fields[name].takes_lists]
    for name, field in section.fields.items():
        if field.follows is not None and field.follows not in pictures:
            message = f"its boxes belong to images of `{field.follows}`, but no image field has this name"
            hint = did_you_mean(field.follows, pictures) if pictures else "add a field of `type: image`"
            yield column_does_not_fit(span(f"data.fields.{name}.picture"), name, message, hint)
    if lazy and section.window is not None:
        message = f"`{lazy[0]}` is a field of images, but windows need numbers: a sample is one image"
        yield transform_does_not_fit(span("data.window"), message, "remove `window`")
    for place, transform in enumerate(section.transforms):
        for at, name in enumerate(transform.fields or ()):
            if name not in (section.fields if transform.of_pairs else lazy):
                known = name in section.fields
                message = f"`{name}` is not a field of images" if known else f"there is no field `{name}`"
                among = list(section.fields) if transform.of_pairs else lazy
                hint = "list fields of `type: image` or `mask`" if known else did_you_mean(name, among)
                yield transform_does_not_fit(span(("data", "transforms", place, "fields", at)), message, hint)
        if not pictures and transform.fields is None:
            message = f"`{transform.type}` changes images, but no field is of `type: image`"
            help_ = "list the fields of numbers that it mixes: `fields: [NAME]`" if transform.type == "mixup" else None
            yield transform_does_not_fit(span(("data", "transforms", place)), message, help_)
        for at, name in enumerate(getattr(transform, "labels", ()) if transform.of_pairs else ()):
            if name not in section.fields:
                hint = did_you_mean(name, list(section.fields))
                at_label = span(("data", "transforms", place, "labels", at))
                yield transform_does_not_fit(at_label, f"there is no field `{name}`", hint)
        if section.workers == 0 and isinstance(transform, PluginTransform) and transform.draws_globally:
            message = f"`{transform.type}` draws from generators that the training process uses as well"
            hint = "set `data.workers: 1` or more, or draw from `random`: `def apply(self, picture, random)`"
            yield transform_does_not_fit(span(("data", "transforms", place, "type")), message, hint)
        if transform.of_pairs and not section.shuffle:
            message = (
                f"`{transform.type}` mixes neighbours in the epoch's order, which are always the same without `shuffle`"
            )
            yield transform_does_not_fit(span(("data", "transforms", place, "type")), message, "set `shuffle: true`")
        if transform.is_random and transform.only == "evaluation":
            message = f"`{transform.type}` is random, but evaluations must be repeatable"
            hint = "set it to `training`, or remove it"
            yield transform_does_not_fit(span(("data", "transforms", place, "only")), message, hint)


def _takes_rows(cut: slice | int, length: int) -> bool:
    if isinstance(cut, int):
        return -length <= cut < length
    return len(range(*cut.indices(length))) > 0


class DataDraft:
    """State of the section `data` while it is compiled.

    `fields`: the fields of the recipe, and those of their additional outputs (`NAME.mask`) that the model or the
    objective reads. `skipped`: the bad rows that are left out.
    """

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
        """Settings that decide which rows of a source belong to a set. They are a part of the key of the statistics
        cache."""
        splits = {name: split.as_data() for name, split in self.section.split.items()}
        return splits, self.seed, None if self.window is None else asdict(self.window), self.section.on_bad_row

    def report(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    def column_span(self, name: str, field: Field, column: str) -> Span:
        """Return the span of the key that names a column of a field in the recipe."""
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
