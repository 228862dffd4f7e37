"""Interfaces of sources and fields. Those of transforms and splits are in `transform.py` and `split.py`.

As in `components/component.py`, no module imports torch or NumPy at its top.
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
    """A column of a table.

    `dtype` is numpy's name of what `Table.read` returns: a number, `bool`, `datetime64[ns]`, or one of
      object     text (str, None where missing)
      bytes      whole files (bytes, or pictures of Pillow; None where missing)
      MESSAGES   lists of objects (str, the JSON of each; None where missing)
      LISTS      lists of lists, of texts, or of different lengths (str, the JSON of each; None where missing)
    `shape` is the shape of one row's value. `num_values` is n when the source itself promises integers in 0..n-1 (token
    ids).
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    num_values: int | None = None


class Table(ABC):
    """Opened source: rows that can be read by number, in any order, at any time, also in a forked process.

    columns             in the order of the file
    left_out            why a column of the file cannot be read
    files               the files that it reads
    blocks              (blocks + 1,) the first row of each block that is read as a whole (a row group, a record batch),
                        then `num_rows`; None where a row costs no more than its own bytes
    blocks_may_be_cut   blocks only group neighbouring rows: a part of one costs a part of its bytes
    fingerprint         differs for other files, sizes and dates; None: statistics of the rows are not cached
    members             the sources of a mixture in order, each with its first row
    tables              these sources, opened
    skipped             rows of the files that cannot be parsed and were left out: position and reason
    """

    columns: Mapping[str, Column]
    num_rows: int
    files: tuple[str, ...] = ()
    read_with: tuple[str, ...] = ()  # files without rows that decide what is read: a tokenizer
    left_out: Mapping[str, str] = {}
    blocks: "np.ndarray | None" = None
    blocks_may_be_cut: bool = False
    fingerprint: str | None = None
    members: tuple[tuple[str, int], ...] = ()
    tables: "tuple[Table, ...]" = ()
    skipped: tuple[tuple[str, str], ...] = ()

    @abstractmethod
    def read(self, columns: Sequence[str], rows: "slice | np.ndarray") -> "dict[str, np.ndarray]":
        """Return the values (N, ...) by column, for a slice (step 1) or an int64 array of row numbers, repeats allowed.

        Missing numbers are nan (an integer or bool column with missing values in these rows becomes float64), missing
        text is None, missing dates NaT. The result may share memory with the table: do not write to it. Raises
        SourceError.
        """

    def read_once(self, columns: Sequence[str], rows: slice) -> "dict[str, np.ndarray]":
        """Return the values as `read` does, but do not cache blocks: these rows will not be needed again soon."""
        return self.read(columns, rows)

    @property
    def original(self) -> "Table":
        """Table of the rows as they are in the files, if a pack made this table from it."""
        return self

    def unread(self) -> "Iterator[tuple[str, str, str]]":
        """Yield (field, message, hint) for each field that reads only part of its values."""
        yield from ()

    def take_lists(self, names: "Sequence[str]") -> None:  # noqa: B027  most sources have no such lists
        """Read these columns as lists (LISTS) from now on, which may have other lengths than the first one."""

    def size_bytes(self, columns: Sequence[str]) -> int | None:
        """Return the uncompressed size of the columns in the files; None if the source does not know it."""
        return None

    def read_runs(self, columns: Sequence[str], starts: "np.ndarray", length: int) -> "dict[str, np.ndarray]":
        """Return (N, length, ...) by column: `length` rows from each of `starts` (int64) on. Otherwise as `read`."""
        import numpy as np

        read = self.read(columns, (starts[:, None] + np.arange(length)).ravel())
        return {name: values.reshape(len(starts), length, *values.shape[1:]) for name, values in read.items()}

    def place(self, row: int) -> str:
        """Return where a row is (row and file), for messages."""
        return f"row {row + 1}"


class Dataset(Component, ABC):
    """A source: rows with named columns.

    A leaf that reads files calls them `path` (one or a list; any fsspec URL, globs allowed); the recipe makes them
    absolute. `open` raises SourceError.
    """

    files_column: ClassVar[str | None] = None
    """The column that holds whole files, for a source that reads a folder of them."""

    path_keys: ClassVar[tuple[str, ...]] = ()
    """Keys whose values are paths, in addition to `path`."""

    @classmethod
    def is_path(cls, value: str) -> bool:
        """Return whether the value of one of `path_keys` is a path, not a word such as `bytes`."""
        return True

    @property
    def needs_window(self) -> bool:
        """True if its rows are steps of a sequence (tokens), so that a sample of one row is probably not intended."""
        return False

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths as written in the recipe; () for a source without files."""
        return ()

    @abstractmethod
    def open(self) -> Table: ...

    @classmethod
    def open_files(cls, paths: Sequence[str], source: "Mapping[str, object]") -> Table:
        """Return the table of new files of this type, or of one folder of them. `source`: the keys of the run's source.
        Raises SourceError."""
        return cls.from_data({"type": cls.model_fields["type"].default, "path": list(paths)}).open()


class FilesDataset(Dataset, ABC):
    """Rows of files that the recipe names."""

    path: Paths
    """A file, a glob, or a list of them: any fsspec URL, relative to the recipe's file."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path

    def files(self) -> list[str]:
        """Return every file, in the order written; the files of a glob are sorted by name. Raises SourceError."""
        return expand(self.paths)


class BadValueError(Exception):
    """Error: a field cannot convert a value.

    `problem`: missing, outside, fraction, unreadable. `column`: its name. `row`: its index within the values given.
    `key`: the key of the field that defines which values are allowed.
    """

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
    """A package that reads these values is not installed."""


class NoStatisticsError(ValueError):
    """Error: statistics cannot be computed from the training rows. `help`: one fix. `value`: a value of `column` that
    is the reason, so that its row can be named."""

    def __init__(self, column: str, message: str, *, help: str, value: float | None = None) -> None:
        super().__init__(f"`{column}` {message}")
        self.column = column
        self.help = help
        self.value = value


class Tally(ABC):
    """Accumulator of a field's statistics over chunks of the training rows. `needs_rows` False: it knows them
    already."""

    needs_rows: ClassVar[bool] = True

    @abstractmethod
    def add(self, values: "Sequence[np.ndarray]") -> None:
        """Add one array (N, ...) per column of the field."""

    @abstractmethod
    def result(self) -> dict[str, object]:
        """Return the statistics as JSON values. Raises ValueError, in the recipe's words, when there are no values to
        compute them from."""


class Unit(NamedTuple):
    """Conversion to the unit of the columns: value * multiply + add. One number of each for a whole row, or one for
    each of its elements, flattened."""

    multiply: tuple[float, ...]
    add: tuple[float, ...]


class Preparation(NamedTuple):
    """Steps that turn the numbers of the columns into a field's floating-point values, in float64: fill missing ones
    with `fill`, multiply by `scale`, subtract `subtract`, divide by `divide`. One number of each for a whole row, or
    one for each of its elements, flattened; None skips the step."""

    fill: tuple[float, ...] | None = None
    scale: float | None = None
    subtract: tuple[float, ...] | None = None
    divide: tuple[float, ...] | None = None


class Field(Component, ABC):
    """A named tensor of a sample, made from columns.

    `outputs`: names of its tensors, if it makes several. The field's own name is the first, the others are
    `NAME.OUTPUT`.

    `meaning`: the keys that decide what its numbers mean. A model that starts from the weights of a run must read them
    the same way.

    `lazy`: set if its values (images) are read again for each batch and not checked before the run: the address of the
    `LazyReader` that reads them (data/lazy_fields.py), as `package.module:name`.

    `takes_text`: its column holds texts, even if they look like numbers. `takes_lists`: its columns hold lists, of any
    length. `takes_dates`: it reads dates from texts and numbers too, so new rows keep the type that they have in their
    file.

    `keys_tell_all`: its values depend on its keys and columns alone, not on code of the user or on further files, so
    results about them may be cached.
    """

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
        """Return whether the value of one of `path_keys` is a path, and not a word."""
        return True

    @property
    def joined_by(self) -> str | None:
        """Key of the field by which a sample holds the values of several rows; None for one row."""
        return None

    @property
    def pads(self) -> bool:
        """True if shorter values are filled up with `padding()`."""
        return False

    def padding(self) -> int:
        """Return the number that fills up shorter values, if it `pads`."""
        raise NotImplementedError(self.type)

    def unread(self, columns: Sequence[Column], others: "Collection[str]") -> tuple[str, str] | None:
        """Return (message, hint) if the field reads only part of its values, or leaves out another column of the table
        that belongs to them; else None."""
        return None

    @property
    def is_lazy(self) -> bool:
        return bool(self.lazy)

    @property
    def follows(self) -> str | None:
        """Name of the image field whose transforms the field follows (boxes); None for others."""
        return None

    def needs_value(self, column: Column) -> bool:
        """Return whether a row without a value of the column cannot be used."""
        return False

    def with_floats(self, dtype: DType, columns: Sequence[Column]) -> "Field":
        """Return the field with floating-point values in the precision of the run, `dtype`."""
        return self

    def output_of(self, name: str) -> "Field":
        """Return the field for one of its outputs alone."""
        raise LookupError(f"`{self.type}` has no output {name}")

    @property
    @abstractmethod
    def wanted(self) -> tuple[str, ...]:
        """Names and globs of its columns, as written under `column` or `columns`."""

    @property
    def unwanted(self) -> tuple[str, ...]:
        """Names and globs of columns to leave out, as written under `exclude`."""
        return ()

    @property
    def files(self) -> tuple[str, ...]:
        """Files, other than the source's, that the values depend on. They exist if `check` found nothing."""
        return ()

    @property
    @abstractmethod
    def cut(self) -> slice | int | None:
        """Rows of a window that it takes; None: all of them."""

    @abstractmethod
    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        """Return why the field cannot be made of these columns, or None."""

    @abstractmethod
    def tally(self, columns: Sequence[Column]) -> Tally | None:
        """Return an accumulator for the statistics of the training rows that the field needs, None if it needs none."""

    def misreads(self, statistics: Mapping[str, object]) -> str | None:
        """Return why another run's statistics would mean something else here, beyond the keys in `meaning`; or None."""
        return None

    @abstractmethod
    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        """Return shape, dtype and range of one row's value. (For windows, a dimension for the rows is put before.)"""

    def unit(self, statistics: Mapping[str, object]) -> "Unit | None":
        """Return the conversion from the field's values to the unit of its columns; None if they are the same."""
        return None

    def preparation(self, statistics: Mapping[str, object]) -> "Preparation":
        """Return what `convert` does to numbers, for an exported model that has to do it itself."""
        return Preparation()

    @abstractmethod
    def convert(
        self, values: "Sequence[np.ndarray]", columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> "np.ndarray":
        """Return the values (N, *row shape) in the dtype of the row spec (bfloat16: as float32), from one array per
        column. Raises BadValueError."""

    def convert_into(
        self,
        out: "np.ndarray",
        values: "Sequence[np.ndarray]",
        columns: Sequence[Column],
        statistics: Mapping[str, object],
    ) -> None:
        """Write what `convert` returns into `out`, which is contiguous."""
        out[...] = self.convert(values, columns, statistics)
