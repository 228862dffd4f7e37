"""Skipping of bad rows (`on_bad_row: skip`), by the files alone: ranks do not communicate.

left out    before a run: rows that cannot be parsed or lack a needed value, and from sets in memory also rows with a
            value that a field cannot convert
replaced    during a run: bad samples of sets that are read then (images, tables larger than memory), by the next good
            sample. A training batch keeps its size; in an evaluation the replacement has weight 0
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from declarative_train.components.data import Field, Table
from declarative_train.components.datasets.arrow_columns import MemoryTable
from declarative_train.components.fields.columns import match_columns
from declarative_train.data.rows import SetRows

FILE = "skipped_rows.jsonl"  # in the folder of a run
SHOWN = 3
_SCANNED = 1 << 24  # a table with more rows is not searched for missing values before a run
_CHUNK = 1 << 16


class Skipped(NamedTuple):
    """Row that was skipped: its set, its position in a file, and the reason."""

    set: str
    place: str
    why: str


class SkipLog:
    """Log file of skipped rows. This process and the processes that it forks append to it. Each write is a whole line,
    so that lines do not mix."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._written: set[Skipped] = set()

    def to(self, path: str | None) -> None:
        self._path = path
        self._written.clear()

    def write(self, *found: Skipped) -> None:
        new = [each for each in dict.fromkeys(found) if each not in self._written]
        self._written.update(new)
        if self._path is None or not new:
            return
        text = "".join(json.dumps(each._asdict(), ensure_ascii=False) + "\n" for each in new)
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


LOG = SkipLog()


def read_skipped(path: str) -> list[Skipped]:
    """Return the skipped rows in the log file at `path`, to which all processes of a run write. A row that several
    processes wrote is returned once. Return [] if the file cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
    except (OSError, ValueError):
        return []
    found = {each["place"]: Skipped(each["set"], each["place"], each["why"]) for each in reversed(lines)}
    return list(found.values())[::-1]


def in_words(found: Sequence[Skipped]) -> str:
    """Describe the skipped rows for a message: `5 rows skipped: row 3 of a.csv (`x` is missing), ..., and 2 more`."""
    shown = [f"{each.place} ({each.why})" for each in found[:SHOWN]]
    more = [f"and {len(found) - SHOWN:,} more"] if len(found) > SHOWN else []
    return f"{len(found):,} {'row' if len(found) == 1 else 'rows'} skipped: {', '.join([*shown, *more])}"


class Skips:
    """Bad rows of a set that this process has found. `left_out`: rows that were removed from the set before the run."""

    def __init__(self, left_out: Sequence[Skipped] = ()) -> None:
        self.left_out = list(left_out)
        self._rows: set[int] = set()
        self._sorted = np.empty(0, np.int64)

    def add(self, row: int) -> bool:
        """Mark a row (its index in the table) as bad. Return True if it was not marked before."""
        if row in self._rows:
            return False
        self._rows.add(row)
        self._sorted = np.asarray(sorted(self._rows), np.int64)
        return True

    @property
    def num_bad(self) -> int:
        return len(self._rows)

    def bad(self, rows: np.ndarray) -> np.ndarray:
        """Return (N,) bool: True for each of `rows` that is known to be bad."""
        return np.isin(rows, self._sorted)

    def replace_bad(self, samples: np.ndarray, rows: SetRows) -> np.ndarray:
        """Return `samples` (indices in the set), with each known bad sample replaced by the next good sample of the
        set. `rows`: rows of the set; each row is a sample."""
        if not self._rows:
            return samples
        found = np.asarray(samples, np.int64)
        bad = self.bad(rows.at(found))
        if bad.any():
            found = found.copy()
            for _ in range(len(rows)):
                found[bad] = (found[bad] + 1) % len(rows)
                bad[bad] = self.bad(rows.at(found[bad]))
                if not bad.any():
                    break
        return found


def convert_to_numbers(table: Table, fields: Collection[Field]) -> None:
    """Convert text columns of a table in memory to numbers, if fields of type `tensor` read them. A value that is not a
    number becomes a missing value. A column in which one value in five or more is not a number stays text."""
    if not isinstance(table, MemoryTable):
        return
    for field in fields:
        names = match_columns(field.wanted, list(table.columns), field.unwanted)[0] if field.type == "tensor" else ()
        for name in names:
            if table.columns[name].dtype == "object" and not table.columns[name].shape:
                table.read_as_numbers(name)


def is_scanned(table: Table) -> bool:
    """Return whether a table is small enough to search all its rows for missing values before a run."""
    return table.num_rows <= _SCANNED


def find_complete_rows(
    table: Table, rows: Mapping[str, SetRows], fields: Mapping[str, tuple[Field, Collection[str]]]
) -> tuple[dict[str, SetRows], dict[str, list[Skipped]]]:
    """Return two dicts by name of the set: the rows that have every value that the fields need, and the rows that are
    left out because a value is missing.

    If the table is too large to be searched, no row is left out. `fields`: dict from field name to (field, names of its
    columns). Raises SourceError.
    """
    asked = {
        column: name
        for name, (field, columns) in fields.items()
        for column in columns
        if field.needs_value(table.columns[column])
    }
    if not asked or not is_scanned(table):
        return dict(rows), {name: [] for name in rows}
    kept: dict[str, SetRows] = {}
    skipped: dict[str, list[Skipped]] = {}
    for name, each in rows.items():
        lacking: list[np.ndarray] = []
        skipped[name] = []
        for start, numbers in each.chunks(_CHUNK):
            read = table.read(list(asked), numbers)
            missing = {column: _missing(values) for column, values in read.items()}
            indices = np.flatnonzero(np.logical_or.reduce(list(missing.values())))
            lacking.append(indices + start)
            for index in indices.tolist():
                column = next(column for column, lacks in missing.items() if lacks[index])
                row = int(each.at(np.asarray([start + index]))[0])
                odd = getattr(table, "odd", {}).get(column, {}).get(row)
                why = f"`{column}` is missing" if odd is None else f"`{column}` is `{odd:.40}`, not a number"
                skipped[name].append(Skipped(name, table.place(row), why))
        if skipped[name]:
            good = np.ones(len(each), bool)
            good[np.concatenate(lacking)] = False
            kept[name] = each.pick(np.flatnonzero(good))
        else:
            kept[name] = each
    return kept, skipped


def _missing(values: np.ndarray) -> np.ndarray:
    """Return (N,) bool: True for the rows in which the value is missing."""
    if values.dtype == object:
        return np.fromiter((value is None for value in values.tolist()), bool, len(values))
    if values.dtype.kind not in "fM":
        return np.zeros(len(values), bool)
    lacks = np.isnat(values) if values.dtype.kind == "M" else np.isnan(values)
    found: np.ndarray = lacks.reshape(len(values), -1).any(axis=1)
    return found


def bad_places(size: int, fails: Callable[[int, int], Exception | None]) -> list[tuple[int, Exception]]:
    """Find the rows among 0 to size - 1 that fail, by bisection, and return (row, error) for each. `fails(start, stop)`
    returns an error if a row of that range fails, else None."""
    found = []
    waiting = [(0, size)]
    while waiting:
        start, stop = waiting.pop()
        error = fails(start, stop)
        if error is None:
            continue
        if stop - start == 1:
            found.append((start, error))
            continue
        middle = (start + stop) // 2
        waiting += [(middle, stop), (start, middle)]
    return found
