"""The families of things that make samples, as interfaces: sources, fields, transforms and splits.

As in `components/component.py`, nothing here imports torch at the top of a module; NumPy neither.

Over 400 lines because much of each interface is what it promises to the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from declarative_train.components.component import Component, Misfit
from declarative_train.core.tensor_spec import DType, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from declarative_train.components.counter_rng import Drawn


MESSAGES = "messages"
LISTS = "lists"


class Column(NamedTuple):
    """A column of a table. `dtype` is numpy's name of what `Table.read` gives: a number, `bool`, `datetime64[ns]`, or
    `object` for text (str, None where missing), `bytes` for whole files (bytes, or pictures of Pillow; None where
    missing), MESSAGES for lists of objects (str, the JSON of each; None where missing), LISTS for lists of lists or of
    texts, or of different lengths (the same); `shape` is that of one row's value; `num_values` is n when the source
    itself promises integers in 0..n-1 (token ids)."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    num_values: int | None = None


class Table(ABC):
    """An opened source: rows that can be read by number, in any order, any time. Safe to use after a fork.

    `columns` in the order of the file; `left_out` says why a column of the file cannot be read; `files` are those it
    rests on. `blocks`: (blocks + 1,) the row that each run of rows begins with that is read as a whole (a row group, a
    record batch), and `num_rows`; None where a row costs no more than its own bytes. `blocks_may_be_cut`: they are but
    neighbours, and a part of one costs a part of its bytes. `fingerprint`: other for other files, sizes and dates;
    None: what is found out about the rows is not kept for the next time. `members`: of a mixture, its sources in
    order, each with its first row; `tables`: those, opened. `skipped`: rows of the files that do not parse and were
    left out, where they stand and why.
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
        """Values (N, ...) by column, for a slice (step 1) or an int64 array of row numbers, repeats allowed.

        Missing numbers are nan (an integer or bool column that misses some in what is read comes as float64), missing
        text is None, missing dates NaT. The result may share memory with the table: it is not to be written to.
        Raises SourceError.
        """

    def read_once(self, columns: Sequence[str], rows: slice) -> "dict[str, np.ndarray]":
        """The same, of rows that will not be asked for again soon: nothing of them is kept."""
        return self.read(columns, rows)

    def take_lists(self, names: "Sequence[str]") -> None:  # noqa: B027  most sources have no such lists
        """Columns of lists that may have other lengths than the first: from now on they are read as LISTS."""

    def size_bytes(self, columns: Sequence[str]) -> int | None:
        """What the columns take in the files, unpacked; None: the source does not know."""
        return None

    def read_runs(self, columns: Sequence[str], starts: "np.ndarray", length: int) -> "dict[str, np.ndarray]":
        """(N, length, ...) by column: the `length` rows from each of `starts` (int64) on. As `read`."""
        import numpy as np

        read = self.read(columns, (starts[:, None] + np.arange(length)).ravel())
        return {name: values.reshape(len(starts), length, *values.shape[1:]) for name, values in read.items()}

    def place(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"row {row + 1}"


class Dataset(Component, ABC):
    """A source: rows with named columns.

    A leaf that reads files calls them `path` (one or a list; any fsspec URL, globs allowed); the recipe makes them
    absolute. `open` raises SourceError.
    """

    @property
    def paths(self) -> tuple[str, ...]:
        """The files as written in the recipe; none for a source without files."""
        return ()

    @abstractmethod
    def open(self) -> Table: ...


class BadValueError(Exception):
    """A value that a field cannot take.

    `problem`: missing, outside, fraction, unreadable; `column` is its name, `row` counts within what was given; `key`
    is the one of the field that says what the value should be.
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


class NoStatisticsError(ValueError):
    """Statistics that the training rows do not give. `help`: one fix; `value`: one of those in `column` for which they
    do not, so that its row can be named."""

    def __init__(self, column: str, message: str, *, help: str, value: float | None = None) -> None:
        super().__init__(f"`{column}` {message}")
        self.column = column
        self.help = help
        self.value = value


class Tally(ABC):
    """Gathers a field's statistics over chunks of the training rows. `needs_rows` False: it knows them already."""

    needs_rows: ClassVar[bool] = True

    @abstractmethod
    def add(self, values: "Sequence[np.ndarray]") -> None:
        """One array (N, ...) per column of the field."""

    @abstractmethod
    def result(self) -> dict[str, object]:
        """JSON-able. Raises ValueError, in the recipe's words, when there is nothing to compute them from."""


class Unit(NamedTuple):
    """value * multiply + add is in the unit of the columns; one number of each for a whole row, or one for each of its
    elements, flattened."""

    multiply: tuple[float, ...]
    add: tuple[float, ...]


class Preparation(NamedTuple):
    """How numbers as they stand in the columns become a field's floating values: missing ones are filled, all are
    multiplied by `scale`, `subtract` is taken off and the rest divided by `divide`, in float64. One number of each for
    a whole row, or one for each of its elements, flattened; None: nothing is done."""

    fill: tuple[float, ...] | None = None
    scale: float | None = None
    subtract: tuple[float, ...] | None = None
    divide: tuple[float, ...] | None = None


class Field(Component, ABC):
    """A named tensor of a sample, made of columns.

    `meaning` names the keys that decide what its numbers stand for: a model that starts from the weights of a run
    must read them alike. `reads_late`: its values are made when a sample is asked for, and neither held nor looked at
    beforehand (pictures). `takes_text`: its column holds texts, whatever they look like; `takes_lists`: its columns
    hold lists, which may be of any length.

    `outputs`: a field that makes several tensors names them; the first is what its own name stands for, the others are
    `NAME.OUTPUT`.
    """

    meaning: ClassVar[tuple[str, ...]] = ()
    reads_late: ClassVar[bool] = False
    takes_text: ClassVar[bool] = False
    takes_lists: ClassVar[bool] = False
    outputs: ClassVar[tuple[str, ...]] = ()

    def with_floats(self, dtype: DType, columns: Sequence[Column]) -> "Field":
        """Return the field as the run reads it, whose precision holds numbers as `dtype`."""
        return self

    def output_of(self, name: str) -> "Field":
        """The field that makes this one of its outputs alone."""
        raise LookupError(f"`{self.type}` has no output {name}")

    @property
    @abstractmethod
    def wanted(self) -> tuple[str, ...]:
        """The names and globs of its columns, as written under `column` or `columns`."""

    @property
    def unwanted(self) -> tuple[str, ...]:
        """The names and globs that are taken out again, as written under `exclude`."""
        return ()

    @property
    def files(self) -> tuple[str, ...]:
        """Those that decide what it makes, beside the source's. They are there once `check` found nothing."""
        return ()

    @property
    @abstractmethod
    def cut(self) -> slice | int | None:
        """Which rows of a window it takes; None: all of them."""

    @abstractmethod
    def check(self, columns: Sequence[Column]) -> Misfit | None:
        """Why it cannot be made of these columns."""

    @abstractmethod
    def tally(self, columns: Sequence[Column]) -> Tally | None:
        """What it must know of the training rows, or None."""

    def misreads(self, statistics: Mapping[str, object]) -> str | None:
        """Why statistics of another run would stand for something else here, beyond the keys of `meaning`."""
        return None

    @abstractmethod
    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        """What one row becomes; windows put their rows in front."""

    def unit(self, statistics: Mapping[str, object]) -> "Unit | None":
        """How its values go back to the unit of its columns; None: they are in it."""
        return None

    def preparation(self, statistics: Mapping[str, object]) -> "Preparation":
        """What `convert` does to numbers: for a model that is to do it itself."""
        return Preparation()

    @abstractmethod
    def convert(
        self, values: "Sequence[np.ndarray]", columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> "np.ndarray":
        """(N, *row shape) in the row spec's dtype (bfloat16: as float32), from one array per column. Raises
        BadValueError."""

    def convert_into(
        self,
        out: "np.ndarray",
        values: "Sequence[np.ndarray]",
        columns: Sequence[Column],
        statistics: Mapping[str, object],
    ) -> None:
        """The same, into the memory of `out`, which lies in one piece."""
        out[...] = self.convert(values, columns, statistics)


Size = tuple[int | None, int | None]
"""Height and width of a picture; None: each has its own."""


class Motion(NamedTuple):
    """Where points of a picture go: (x, y) to (a x + b y + c, d x + e y + f), in pixels from the upper left corner of
    the picture, in a picture of `size` (height, width)."""

    matrix: tuple[float, float, float, float, float, float]
    size: tuple[int, int]


class Transform(Component, ABC):
    """A change of the pictures of a sample, in the order of the list.

    `on_numbers`: it changes float32 arrays (C, H, W), else pictures of Pillow with 8 bits a channel; pictures come
    first. `is_random`: it draws, for the training set only, by (seed, epoch, sample, place in the list). `of_pairs`: it
    mixes a sample of a training batch with another one, behind all that is done to each alone. `moves`: it changes
    where things are, and masks and boxes follow; None: nobody knows.
    """

    is_random: ClassVar[bool] = False
    on_numbers: ClassVar[bool] = False
    changes_colours: ClassVar[bool] = False
    of_pairs: ClassVar[bool] = False
    moves: ClassVar[bool | None] = False

    fields: tuple[str, ...] | None = None
    """The fields of pictures that it changes, all by the same draw, masks among them; left out: every one. Boxes follow
    their picture."""
    only: Literal["training", "evaluation"] | None = None
    """Where it acts: on the samples of a training step, or on those of evaluations and predictions; left out: on both,
    and a random one in training alone."""

    def acts(self, in_training: bool) -> bool:
        if self.is_random and not in_training:
            return False
        return self.only is None or (self.only == "training") == in_training

    def changes(self, field: str) -> bool:
        return self.fields is None or field in self.fields

    def check(self, size: Size, channels: int) -> Misfit | None:
        """Why it cannot change such pictures."""
        return None

    def size_after(self, size: Size) -> Size:
        """The size of what it makes, as far as the recipe tells."""
        return size

    def interval_after(self, interval: tuple[float, float], channels: int) -> tuple[float, float]:
        """Between which values the numbers of what it makes lie, given that of what it gets."""
        return interval

    @abstractmethod
    def apply(self, values: "list[Any]", drawn: "Drawn") -> "list[Any]":
        """New pictures, or arrays, of one sample: one of each field. Raises ValueError, in the recipe's words."""

    def apply_to_masks(self, masks: "list[Any]", drawn: "Drawn") -> "list[Any]":
        """The masks of the sample, moved as `apply` moves the pictures by an equal `drawn`; of what `moves`. Classes
        are not mixed."""
        nearest = {"method": "nearest"} if "method" in type(self).model_fields else {}
        return self.model_copy(update=nearest).apply(masks, drawn)

    def motions(self, size: tuple[int, int], drawn: "Drawn") -> "Sequence[Motion]":
        """How `apply` moves the points of a picture of this size by an equal `drawn`, one after the other; of what
        `moves`."""
        raise NotImplementedError(self.type)


class Candidates(NamedTuple):
    """The rows that a split may choose from, numbered 0..num_rows-1 in the source's order.

    num_total    the number of rows that fractions are of
    read         the values of a column
    shuffled     the numbers 0..n-1 in an order that depends on the seed and the set's name alone
    by, sort     of the window, if there is one
    behind       fraction that the later sets cut by `last` take
    """

    num_rows: int
    num_total: int
    read: "Callable[[str], np.ndarray]"
    shuffled: "Callable[[int], np.ndarray]"
    by: str | None = None
    sort: str | None = None
    behind: float = 0.0


class Draw(NamedTuple):
    """Any `num_rows` of the candidates, by chance: the data room draws them without holding all their numbers."""

    num_rows: int


class Split(Component, ABC):
    """How one set is cut from the source's rows.

    `turn`: cuts by value come first (0), then the last rows (1), then whole groups by chance (2), then single rows by
    chance (3), each kind in the order of the recipe: a single row that went before would part its group.
    """

    turn: ClassVar[int]
    cuts_singly: ClassVar[bool] = False  # neighbours land in different sets, so that no window could stay whole
    of: str | None = None
    """Of a mixture: the source that it is cut from; left out: from each, by itself."""

    def as_data(self, *, defaults: bool = True) -> dict[str, object]:
        found = super().as_data(defaults=defaults)
        return found if self.of is not None else {key: value for key, value in found.items() if key != "of"}

    def anywhere(self) -> "Split":
        """The same, of the table that it is given."""
        return self.model_copy(update={"of": None})

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return ()

    @property
    def own_source(self) -> Dataset | None:
        """The set's own source, when it is not cut from the main one."""
        return None

    @abstractmethod
    def choose(self, rows: Candidates) -> "np.ndarray | range | Draw":
        """The chosen numbers, ascending. Raises ValueError with the reason in the recipe's words."""
