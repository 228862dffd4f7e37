"""Sink that writes `metrics.csv`: one row per logging step and per evaluation. The columns have the names of
TensorBoard's tags.

The header begins with the columns of training. The first evaluation of a set adds the columns of this set, for which
the file is rewritten. When a run resumes, rows of later steps are removed."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self, TextIO

from declarative_train.run.event import EvaluationDone, Event, RunStarted, StepDone
from declarative_train.run.sink import Sink
from declarative_train.run.sinks.tensorboard import step_scalars

FILE = "metrics.csv"
FLUSH_S = 0.5
_FIRST = ("step", "epoch", "time_unix_s")

Row = Mapping[str, object]


class CsvSink(Sink):
    """Sink that writes the table at `path`. A value that is not defined is written as `nan`; a value that was not
    measured is left empty."""

    is_record: ClassVar[bool] = False

    @classmethod
    def of_run(cls, run_dir: Path, quiet: bool) -> Self:
        return cls(run_dir / FILE)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: tuple[str, ...] = _header(path)
        self._stream: TextIO = path.open("a", encoding="utf-8", newline="")
        self._flushed_s = 0.0

    def write(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._rewrite(self._columns or _FIRST, last_step=event.first_step)
            case StepDone():
                self._row(event, step_scalars(event))
                if time.monotonic() - self._flushed_s > FLUSH_S:
                    self.flush()
            case EvaluationDone():
                self._row(event, event.values)
                self.flush()

    def flush(self) -> None:
        self._stream.flush()
        self._flushed_s = time.monotonic()

    def close(self) -> None:
        self._stream.close()

    def _row(self, event: StepDone | EvaluationDone, values: Mapping[str, float]) -> None:
        row: Row = {"step": event.step, "epoch": event.epoch, "time_unix_s": event.time_unix_s, **values}
        new = [name for name in row if name not in self._columns]
        if new:
            self._rewrite((*self._columns, *new))
        csv.DictWriter(self._stream, self._columns).writerow(row)

    def _rewrite(self, columns: Sequence[str], *, last_step: int | None = None) -> None:
        """Write the file again, with the given columns. Rows after step `last_step` are left out; None: all rows are
        kept. A complete new file replaces the old one."""
        self._stream.close()
        new_path = self._path.with_suffix(".csv.new")
        with new_path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, columns)
            writer.writeheader()
            writer.writerows(
                row for row in _rows(self._path) if last_step is None or int(str(row["step"])) <= last_step
            )
        os.replace(new_path, self._path)
        self._columns = tuple(columns)
        self._stream = self._path.open("a", encoding="utf-8", newline="")


def _header(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as stream:
        return tuple(next(csv.reader(stream), ()))


def _rows(path: Path) -> Iterator[Row]:
    """Yield the rows of the file. A last row that is incomplete after a crash is left out."""
    with path.open(encoding="utf-8", newline="") as stream:
        lines = csv.reader(stream)
        columns = next(lines, [])
        for line in lines:
            if len(line) == len(columns) and line[0].isdecimal():
                yield dict(zip(columns, line, strict=True))
