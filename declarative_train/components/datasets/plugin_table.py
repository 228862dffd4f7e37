"""Table of a plugin's source. It calls the user's code for rows by index, and compares each row with the declared
columns.

Every process creates the same object of the user's class, because the class's arguments seed the random generators. A
forked process uses the object of its parent. If this object holds open files, the process creates its own object:
otherwise the two processes would share the position in a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from declarative_train.components.data import Table
from declarative_train.components.datasets.plugin_values import as_array, keys_of, same
from declarative_train.components.plugin_components import line_in_plugin, make_seeded
from declarative_train.components.plugin_layer import read_random_states, seed_generators
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    from declarative_train.components.datasets.plugin_columns import ColumnKeys, Described

_WITH_POSITION = ("h5py", "lmdb", "netCDF4", "rasterio", "sqlite3", "tables")  # packages whose objects are open files
_LOOKED_AT = 1000  # number of objects inside the user's object that are searched
_REPEATED = "rows are read by number, in any order, and may be cached"


class PluginTable(Table):
    """Table of a plugin's source. Raises SourceError if the user's code fails, draws random numbers, or returns rows
    that do not match the declared columns."""

    def __init__(self, dataset: Described) -> None:
        self._dataset = dataset
        self._process, self._lock = os.getpid(), threading.Lock()
        with self._as_source_error("creating the object"):
            self._made, draws = make_seeded(dataset)
        self._is_shared = not _holds_files(self._made)
        if draws and not self._is_shared:
            message = f"`{dataset.type}` draws random numbers and opens files when it is made"
            raise SourceError("plugin", message, help="open the files when a row is read")
        with self._as_source_error("`__len__`"):
            self.num_rows = len(self._made)
        self._keys: Mapping[str, ColumnKeys] | None = None  # not known yet
        self._keys = keys = self._columns(dataset.keys)
        self.columns = {name: each.column(name) for name, each in keys.items()}
        self._small: set[str] = set()
        self._kept: dict[str, np.ndarray] = {}
        self._is_kept = np.zeros(self.num_rows, bool)
        self._check_again()
        if dataset.method != "read":
            self._small = {name for name, each in keys.items() if each.is_number}

    def __reduce__(self) -> tuple[Any, tuple[dict[str, object]]]:
        """Pickle the settings of the source, not the user's object. A process that unpickles the table creates an
        object of its own."""
        return _reopen, (self._dataset.as_data(),)

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        numbers = np.arange(self.num_rows)[rows] if isinstance(rows, slice) else np.asarray(rows, np.int64)
        with self._lock_code():
            if self._dataset.method == "read":
                return self._read(columns, numbers)
            if all(name in self._kept for name in columns) and self._is_kept[numbers].all():
                return {name: self._kept[name][numbers] for name in columns}
            names = list(dict.fromkeys([*columns, *self._small]))
            found: dict[str, list[Any]] = {name: [] for name in names}
            for row in numbers.tolist():
                values = self._row(row)
                for name in names:
                    found[name].append(values[name])
            arrays = {name: self._array(name, values, numbers) for name, values in found.items()}
            self._keep(arrays, numbers)
        return {name: arrays[name] for name in columns}

    def _keep(self, arrays: Mapping[str, np.ndarray], numbers: np.ndarray) -> None:
        """Store in memory the columns of `arrays` that have one number per row, such as labels. They are then read
        without running the user's code again. `numbers`: row index of each entry of the arrays."""
        for name in sorted(self._small):
            if name not in self._kept:
                self._kept[name] = np.zeros(self.num_rows, self.columns[name].dtype)
            if self._kept[name].dtype == arrays[name].dtype:
                self._kept[name][numbers] = arrays[name]
            else:  # values are missing in some rows
                del self._kept[name]
                self._small = self._small - {name}
        self._is_kept[numbers] = True

    def place(self, row: int) -> str:
        return f"row {row + 1} (index {row}) of `{self._dataset.type}`"

    @contextmanager
    def _lock_code(self) -> Iterator[None]:
        """Hold a lock during the `with` block, so that only one thread at a time runs the user's code. A forked process
        first makes a new lock. If the user's object holds open files, the process also makes a new object."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
            if not self._is_shared:
                with self._as_source_error("creating the object"):
                    self._made = self._dataset.make()
        with self._lock:
            yield

    @contextmanager
    def _as_source_error(self, doing: str, row: int | None = None) -> Iterator[None]:
        """Convert any exception of the user's code in the `with` block into SourceError. The message contains `doing`
        (what the code does), the row if there is one, and the line of the code. `row`: index of the row that is read.
        """
        try:
            yield
        except Exception as error:  # any exception of the user's code is reported
            where = "" if row is None else f" for {self.place(row)}"
            of = "" if row is not None else f" of `{self._dataset.type}`"
            said = (str(error).splitlines() or [""])[0]
            line = line_in_plugin(error, self._dataset.plugin_path)
            message = f"{doing}{of} fails{where}: {type(error).__name__}{said and f': {said}'}{line}"
            raise SourceError("plugin", message) from error

    # --- rows

    def _row(self, row: int) -> Mapping[str, Any]:
        with self._as_source_error("`__getitem__`", row):
            found = self._made[row]
        return self._name_values(found, row)

    def _name_values(self, found: Any, row: int) -> Mapping[str, Any]:
        """Return {column: value} for one row. `found`: what the user's code returned for this row: a dict, a tuple or a
        single value. Raises SourceError if it does not fit the declared columns."""
        known = self._keys
        if isinstance(found, Mapping):
            if known is not None and (missing := next((name for name in known if name not in found), None)) is not None:
                has = ", ".join(f"`{name}`" for name in list(found)[:8]) or "nothing"
                raise SourceError(
                    "plugin", f"{self.place(row)} has no `{missing}`: it gives {has}", help=self._dataset.hint
                )
            return {str(name): value for name, value in found.items()}
        values = tuple(found) if isinstance(found, tuple | list) else (found,)
        names: Sequence[str] = getattr(found, "_fields", ())
        if known is None:
            return dict(zip(names or _default_names(found, values), values, strict=True))
        if len(values) != len(known):
            declared = ", ".join(f"`{name}`" for name in known)
            message = f"{self.place(row)} gives {_count_of(len(values))}, and the columns are {declared}"
            raise SourceError("plugin", message, help=self._dataset.hint)
        return dict(zip(known, values, strict=True))

    def _read(self, columns: Sequence[str], numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Call the user's method `read`, and return the rows with the indices `numbers` (N,) as a dict from column to
        array (N, ...). Raises SourceError."""
        given = (numbers.copy(), list(columns))[: self._dataset.num_arguments]
        row = int(numbers[0]) if len(numbers) else None
        with self._as_source_error(f"`read` of {_count_of(len(numbers), 'row')}", row):
            found = self._made.read(*given)
        if not isinstance(found, Mapping):
            raise SourceError("plugin", f"`read` gives a {type(found).__name__}, and not values by column")
        missing = next((name for name in columns if name not in found), None)
        if missing is not None:
            raise SourceError("plugin", f"`read` gives no `{missing}`", help=self._dataset.hint)
        if wrong := next((name for name in columns if len(found[name]) != len(numbers)), None):
            message = f"`read` gives {len(found[wrong]):,} values of `{wrong}` for {_count_of(len(numbers), 'row')}"
            raise SourceError("plugin", message)
        return {name: self._array(name, found[name], numbers) for name in columns}

    def _array(self, name: str, values: Any, rows: np.ndarray) -> np.ndarray:
        assert self._keys is not None
        keys = self._keys[name]

        def wrong(place: int, found: str) -> SourceError:
            message = f"`{name}` is {found} in {self.place(int(rows[place]))}, but {keys} is declared"
            if self._dataset.keys is None:
                message = f"`{name}` is {found} in {self.place(int(rows[place]))}, but {keys} in the first row"
            return SourceError("plugin", message, help=self._dataset.hint)

        return as_array(keys, values, wrong)

    # --- the columns

    def _columns(self, declared: Mapping[str, ColumnKeys] | None) -> Mapping[str, ColumnKeys]:
        if declared is not None:
            return declared
        if not self.num_rows:
            message = f"`{self._dataset.type}` has no row from which its columns can be found"
            raise SourceError("plugin", message, help="declare them: `columns: {x: float32}`")
        if self._dataset.method == "read":
            message = f"`{self._dataset.type}` does not say which columns `read` gives"
            raise SourceError("plugin", message, help=f"`columns` of the class `{self._dataset.plugin_class}` says it")
        found = {}
        for name, value in self._row(0).items():
            keys = keys_of(value)
            if isinstance(keys, str):
                message = f"`{name}` is {keys} in {self.place(0)}, which a column cannot hold"
                raise SourceError(
                    "plugin", message, help="return a number, an array or tensor, a text, bytes, a picture or a date"
                )
            found[name] = keys
        return found

    def _check_again(self) -> None:
        """Read the first and the last row twice. Raises SourceError if the two readings differ, or if reading draws
        random numbers."""
        rows = np.unique([0, self.num_rows - 1]) if self.num_rows else np.empty(0, np.int64)
        names = list(self.columns)
        with seed_generators(0):
            before = read_random_states()
            first = self.read(names, rows)
            draws = read_random_states() != before
            again = self.read(names, rows)
        if draws:
            message = f"`{self._dataset.type}` draws random numbers when a row is read"
            raise SourceError("plugin", message, help=f"{_REPEATED}: draw in `data.transforms`")
        if (name := next((name for name in names if not same(first[name], again[name])), None)) is not None:
            message = f"`{name}` of `{self._dataset.type}` changes when a row is read again"
            raise SourceError("plugin", message, help=_REPEATED)


def _default_names(found: Any, values: Sequence[Any]) -> list[str]:
    return [f"item_{number}" for number in range(len(values))] if isinstance(found, tuple | list) else ["value"]


def _count_of(count: int, what: str = "value") -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _reopen(data: dict[str, object]) -> Table:
    from declarative_train.components.datasets import DATASETS

    return DATASETS.read(data).open()


def _holds_files(made: object) -> bool:
    """Return whether an object holds an open file, directly or at any depth of its attributes and items. The search
    ends after _LOOKED_AT objects."""
    waiting, seen = [made], set[int]()
    while waiting and len(seen) < _LOOKED_AT:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if callable(getattr(each, "fileno", None)) or type(each).__module__.partition(".")[0] in _WITH_POSITION:
            return True
        if isinstance(each, dict):
            waiting += list(each.values())[:_LOOKED_AT]
        elif isinstance(each, list | tuple | set):
            waiting += list(each)[:_LOOKED_AT]
        elif type(each).__module__ not in ("builtins", "numpy", "torch"):
            waiting += list(getattr(each, "__dict__", {}).values())
    return False
