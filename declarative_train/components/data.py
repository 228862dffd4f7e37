"""Interfaces of data sources (`Dataset`, `Table`) and of fields. Those of transforms and splits are in `transform.py`
and `split.py`.

Like `components/component.py`, this module imports neither torch nor NumPy at its top.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import pydantic

from declarative_train.components.component import Component, ShapeError
from declarative_train.core.tensor_spec import DType, TensorSpec
from declarative_train.files.paths import expand

if TYPE_CHECKING:
    import numpy as np


Paths = (
    Annotated[str, pydantic.Field(min_length=1)]
    | Annotated[tuple[Annotated[str, pydantic.Field(min_length=1)], ...], pydantic.Field(min_length=1)]
)
MESSAGES = "messages"
LISTS = "lists"


class Column(NamedTuple):
    """Column of a table. `shape`: shape of the value in one row, () for a number or text. `num_values`: n if the source
    guarantees that every value is an integer in 0..n-1 (token ids); else None. `dtype`: numpy's name for a type of
    numbers, `bool`, `datetime64[ns]`, or

      object     text (str, None where missing)
      bytes      whole files (bytes, or Pillow images; None where missing)
      MESSAGES   lists of objects, each list as a JSON text (str, None where missing)
      LISTS      lists of lists, of texts, or of different lengths, each as a JSON text (str, None where missing)"""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    num_values: int | None = None


class Table(ABC):
    """Opened data source. Rows can be read by index, in any order, at any time, also in a forked process.

    columns             the columns by name, in the order of the file
    left_out            dict from each column that cannot be read to the reason
    files               the files that are read
    blocks              (blocks + 1,) first row of each block that is read whole, then `num_rows`; None: single rows
    blocks_may_be_cut   reading a part of a block costs only a part of the time
    fingerprint         text that changes with the files, their sizes and dates; None: row statistics are not cached
    members             for a mixture: (name, first row) of each of its sources
    tables              for a mixture: the tables of its sources
    skipped             (position, reason) of each row that could not be parsed"""

    columns: Mapping[str, Column]
    num_rows: int
    files: tuple[str, ...] = ()
    read_with: tuple[str, ...] = ()  # other files on which the values depend, such as a tokenizer's
    left_out: Mapping[str, str] = {}
    blocks: "np.ndarray | None" = None
    blocks_may_be_cut: bool = False
    fingerprint: str | None = None
    members: tuple[tuple[str, int], ...] = ()
    tables: "tuple[Table, ...]" = ()
    skipped: tuple[tuple[str, str], ...] = ()

    @abstractmethod
    def read(self, columns: Sequence[str], rows: "slice | np.ndarray") -> "dict[str, np.ndarray]":
        """Return a dict from column to values (N, ...). `rows`: a slice (step 1), or an int64 array of row indices,
        which may repeat.

        Missing numbers are nan (an integer or bool column with missing values in these rows becomes float64), missing
        text is None, missing dates NaT. The result may share memory with the table: do not write to it. Raises
        SourceError."""

    def read_once(self, columns: Sequence[str], rows: slice) -> "dict[str, np.ndarray]":
        """Return what `read` returns, but keep no blocks in memory: the caller will not read these rows again soon."""
        return self.read(columns, rows)

    @property
    def original(self) -> "Table":
        """Table of the rows as they are in the files. For a table that was computed from another one, such as tokens
        from texts, it is that other table; otherwise it is this table itself."""
        return self

    def unread(self) -> "Iterator[tuple[str, str, str]]":
        """Yield (name of a field, message, hint) for each field that ignores a part of the values in its columns, such
        as keys of chat messages. By default there is none."""
        yield from ()

    def take_lists(self, names: "Sequence[str]") -> None:  # noqa: B027  most sources have no such lists
        """Make `read` return the columns `names` as arrays of lists (dtype LISTS), whose lengths may differ."""

    def size_bytes(self, columns: Sequence[str]) -> int | None:
        """Return the uncompressed size of the columns in the files, in bytes, or None if it is unknown."""
        return None

    def read_runs(self, columns: Sequence[str], starts: "np.ndarray", length: int) -> "dict[str, np.ndarray]":
        """Return a dict from column to the values (N, length, ...) of N runs of `length` consecutive rows. `starts`:
        the first row of each run (N,), int64. Values are as in the result of `read`."""
        import numpy as np

        read = self.read(columns, (starts[:, None] + np.arange(length)).ravel())
        return {name: values.reshape(len(starts), length, *values.shape[1:]) for name, values in read.items()}

    def lengths(self, column: str, rows: "np.ndarray") -> "np.ndarray":
        """Return the length, without padding, of the value in each of the rows `rows`, (N,) int64. Call it only for
        columns of fields with length buckets (key `buckets`)."""
        raise NotImplementedError(column)

    def place(self, row: int) -> str:
        """Return the position of a row for messages: `row 12 of data/b.csv`."""
        return f"row {row + 1}"


class Dataset(Component, ABC):
    """Data source, the component under `data.source`: rows with named columns.

    A class that reads files has a key `path`: one path or a list, each a local path or fsspec URL, with globs allowed.
    Relative paths are made absolute when the recipe is read. `open` returns the Table and raises SourceError."""

    files_column: ClassVar[str | None] = None
    """The column that holds whole files, for a source that reads a folder of them."""

    path_keys: ClassVar[tuple[str, ...]] = ()
    """Keys whose values are paths, in addition to `path`."""

    @classmethod
    def is_path(cls, value: str) -> bool:
        """Return whether `value`, the value of a key in `path_keys`, is a path. Some of these keys also accept a word
        such as `bytes`."""
        return True

    @property
    def needs_window(self) -> bool:
        """True if a row is a single step of a sequence (such as a token), so that a sample should have several rows
        (`data.window`)."""
        return False

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the source's files as written in the recipe, or () for a source without files."""
        return ()

    @abstractmethod
    def open(self) -> Table: ...

    @classmethod
    def open_files(cls, paths: Sequence[str], source: "Mapping[str, object]") -> Table:
        """Open files with new rows for predictions, and return their table. `paths`: files of this type, or one
        folder with such files. `source`: the keys under `data.source` in the recipe of the training run. Raises
        SourceError."""
        return cls.from_data({"type": cls.model_fields["type"].default, "path": list(paths)}).open()


class FilesDataset(Dataset, ABC):
    """Base class of data sources that read files named in the recipe."""

    path: Paths
    """A file, a glob, or a list of them: any fsspec URL, relative to the recipe's file."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path

    def files(self) -> list[str]:
        """Return the paths of all files, in the order of `path`. The files of a glob are sorted by name. Raises
        SourceError."""
        return expand(self.paths)


class BadValueError(Exception):
    """Error: a field cannot convert a value.

    `problem`: missing, outside, fraction or unreadable. `column`: name of the column. `row`: index of the value in the
    array that the field was given. `key`: the key of the field that defines which values are allowed."""

    def __init__(
        self, problem: str, column: str, message: str, *, row: int, help: str | None = None, key: str | None = None
    ) -> None:
        super().__init__(message)
        self.problem = problem
        self.column = column
        self.row = row
        self.help = help
        self.key = key


class MissingPackageError(Exception):
    """Error: a Python package that is needed to read a value is not installed."""


class NoStatisticsError(ValueError):
    """Error: the statistics of a field cannot be computed from the training rows. `help`: hint for the user. `value`:
    the value in `column` that causes the error, so that the message can name its row; None if unknown."""

    def __init__(self, column: str, message: str, *, help: str, value: float | None = None) -> None:
        super().__init__(f"`{column}` {message}")
        self.column = column
        self.help = help
        self.value = value


class Tally(ABC):
    """Accumulator of a field's statistics over chunks of the training rows. `needs_rows`: False if the statistics do
    not depend on the rows; then `add` is not called."""

    needs_rows: ClassVar[bool] = True

    @abstractmethod
    def add(self, values: "Sequence[np.ndarray]") -> None:
        """Add N rows to the statistics. `values`: one array (N, ...) per column of the field."""

    @abstractmethod
    def result(self) -> dict[str, object]:
        """Return the statistics as JSON data. Raises ValueError, with a message for the user, if they cannot be
        computed from the values that were added."""


class Unit(NamedTuple):
    """Linear map that converts a field's values back to the unit of its columns: value * multiply + add. `multiply` and
    `add` have one number for all elements of a row, or one number for each element of the flattened row."""

    multiply: tuple[float, ...]
    add: tuple[float, ...]


class Preparation(NamedTuple):
    """Steps that turn the numbers of the columns into a field's floating-point values, in float64: replace missing
    numbers by `fill`, multiply by `scale`, subtract `subtract`, divide by `divide`.

    A step that is None is skipped. A tuple has one number for all elements of a row, or one for each element of the
    flattened row."""

    fill: tuple[float, ...] | None = None
    scale: float | None = None
    subtract: tuple[float, ...] | None = None
    divide: tuple[float, ...] | None = None


class Field(Component, ABC):
    """Field, a component under `data.fields`: a named tensor of a sample, made from columns of the table.

    outputs        names of the tensors, if there are several: the first is the field, the others `FIELD.OUTPUT`
    meaning        keys that must be equal to those of a run from whose weights the model starts
    lazy           address `package.module:name` of the `LazyReader` that reads values for each batch; "": read once
    takes_text     the column has texts, even if they look like numbers
    takes_lists    the columns have lists of any length
    takes_dates    dates can be in any form, also texts and numbers
    keys_tell_all  values depend only on keys and columns, so results about them may be cached"""

    meaning: ClassVar[tuple[str, ...]] = ()
    lazy: ClassVar[str] = ""
    takes_text: ClassVar[bool] = False
    takes_lists: ClassVar[bool] = False
    takes_dates: ClassVar[bool] = False
    keys_tell_all: ClassVar[bool] = False
    outputs: ClassVar[tuple[str, ...]] = ()
    path_keys: ClassVar[tuple[str, ...]] = ()
    """Keys whose values are paths, in addition to `folder`."""

    @classmethod
    def is_path(cls, value: str) -> bool:
        """Return whether `value`, the value of a key in `path_keys`, is a path. Some of these keys also accept a word
        such as `bytes`."""
        return True

    @property
    def joined_by(self) -> str | None:
        """Name of the key in the recipe that joins several rows of the table to one sample, such as `pack`. None if
        each sample is one row."""
        return None

    @property
    def joined_alike(self) -> tuple[object, ...] | None:
        """Value that says which rows of the table the field joins to one sample. If a field has `joined_by`, all other
        fields of the recipe must have an equal value. None: there can be no other field."""
        return None

    @property
    def buckets(self) -> tuple[int, ...]:
        """Lengths, ascending, to which the values of a batch can be shortened in their first dimension. A batch is cut
        to the smallest of these lengths that holds all its values, so only padding is removed. (): batches are never
        cut."""
        return ()

    @property
    def pads(self) -> bool:
        """True if the values of rows have different lengths and are padded to one length. `padding()` is the padding
        value."""
        return False

    def padding(self) -> int:
        """Return the number that fills up values that are too short. Call it only if `pads` is true."""
        raise NotImplementedError(self.type)

    def unread(self, columns: Sequence[Column], others: "Collection[str]") -> tuple[str, str] | None:
        """Return a warning (message, hint) about a column that this field does not read but probably should, such as
        the tools of a chat. Return None if there is none. `columns`: the columns that the field reads. `others`: the
        names of all columns of the table."""
        return None

    @property
    def is_lazy(self) -> bool:
        return bool(self.lazy)

    @property
    def follows(self) -> str | None:
        """Name of the image field that this field belongs to, for fields such as boxes: the transforms of the image
        change this field too. None for other fields."""
        return None

    def needs_value(self, column: Column) -> bool:
        """Return whether the field needs the value in this column: if it is missing, the row cannot be used."""
        return False

    def with_floats(self, dtype: DType, columns: Sequence[Column]) -> "Field":
        """Return a copy of the field for a run with floating-point dtype `dtype`: its values have this dtype if they
        are floating-point numbers. Return the field itself if its keys or columns decide the dtype."""
        return self

    def output_of(self, name: str) -> "Field":
        """Return a field that makes only the tensor `name`, one of the `outputs` of this field. Raises LookupError if
        there is no such output."""
        raise LookupError(f"`{self.type}` has no output {name}")

    @property
    @abstractmethod
    def wanted(self) -> tuple[str, ...]:
        """Names and globs of the columns that the field reads, as written under `column` or `columns`."""

    @property
    def unwanted(self) -> tuple[str, ...]:
        """Names and globs of columns to leave out, as written under `exclude`."""
        return ()

    @property
    def files(self) -> tuple[str, ...]:
        """Files, besides those of the source, that the values depend on. `check` returns an error if one is missing."""
        return ()

    @property
    @abstractmethod
    def cut(self) -> slice | int | None:
        """Rows of a window (a sample of several consecutive rows) that the field uses: a slice, the index of one row,
        or None for all rows."""

    @abstractmethod
    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        """Return why the field cannot be made from `columns`, or None if it can."""

    @abstractmethod
    def tally(self, columns: Sequence[Column]) -> Tally | None:
        """Return an accumulator for the statistics of the training rows, or None if the field needs no statistics."""

    def misreads(self, statistics: Mapping[str, object]) -> str | None:
        """Return how the numbers of this field differ in meaning from those in an earlier run or plan, for example
        because the tokenizers differ; None if they mean the same. `statistics`: the field's statistics in the earlier
        one. Call this only if the keys in `meaning` have equal values in both."""
        return None

    @abstractmethod
    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        """Return the shape, dtype and range of one row's value, without the dimension that a window adds. `statistics`:
        the field's statistics over the training rows."""

    def unit(self, statistics: Mapping[str, object]) -> "Unit | None":
        """Return the linear map that converts the field's values back to the unit of its columns; None if their unit is
        the same."""
        return None

    def preparation(self, statistics: Mapping[str, object]) -> "Preparation":
        """Return the steps by which `convert` changes numbers. An exported model contains these steps."""
        return Preparation()

    @abstractmethod
    def convert(
        self, values: "Sequence[np.ndarray]", columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> "np.ndarray":
        """Return the field's values (N, *row shape) in the dtype of `row_spec`; in float32 if it is bfloat16, which
        numpy lacks. `values`: the N values of each column. `statistics`: statistics of the training rows. Raises
        BadValueError."""

    def convert_into(
        self,
        out: "np.ndarray",
        values: "Sequence[np.ndarray]",
        columns: Sequence[Column],
        statistics: Mapping[str, object],
    ) -> None:
        """Write the field's values into the contiguous array `out`. The other arguments are those of `convert`."""
        out[...] = self.convert(values, columns, statistics)
