"""A trained model and new rows -> predictions, in their order: one for each row, or for each window of rows.

This process says where the rows are, a piece at a time. It reads and computes them itself or, with `ranks`, several
processes do: each takes the next piece that waits, and what they answer is put in order again. A few pieces for each
are under way at a time, so that neither a long input nor a slow rank fills the memory.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

import numpy as np

from declarative_train.engine.devices import safe_threads, threads_per_rank
from declarative_train.engine.failures import RunFailure
from declarative_train.inference.answers import Asked, asked, columns, to_arrow
from declarative_train.inference.fields import picture_column
from declarative_train.inference.forward import Forward, batch_rows, device_for, drawing
from declarative_train.inference.input import Input, Piece, Pieces
from declarative_train.inference.reading import STDIN, STDIN_TITLE, of_table, open_input, spooled
from declarative_train.inference.samples import Batch, RowSamples, Samples
from declarative_train.inference.trained import Trained
from declarative_train.inference.windows import WindowSamples, table_of, table_of_frame

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from declarative_train.data.spec import DataSpec

_UNDER_WAY = 2  # pieces for each rank


class Prediction:
    """What is asked of a model, and who computes it. `drawing`: the nodes before it that draw random numbers. Raises
    UsageError for what cannot be had."""

    def __init__(
        self,
        trained: Trained,
        *,
        outputs: Sequence[str] = (),
        batch_size: int | None = None,
        device: str = "auto",
        ranks: int = 1,
    ) -> None:
        self._trained, self._device, self._ranks = trained, device, ranks
        self.asked: Asked = asked(trained, outputs)
        graph = trained.graph(self.asked.outputs)
        self.inputs = tuple(graph.inputs)
        self.drawing = tuple(drawing(graph))
        self._batch_rows = batch_rows(trained, self.inputs, batch_size)

    def opened(self, paths: str | Sequence[str], keep: Sequence[str] = ()) -> Samples:
        """Files, as `open_input` takes them. `keep`: columns that stand before the predictions, `*` all. Raises
        InputError and UsageError."""
        given = [paths] if isinstance(paths, str) else list(paths)
        title = STDIN_TITLE if given == [STDIN] else None
        files = tuple(given) if title is None else (spooled(),)
        return Opened(self._trained.plan.data, self.inputs, files, self._batch_rows, tuple(keep), title)

    def of_frame(self, frame: pa.Table, keep: Sequence[str] = ()) -> Samples:
        """As `opened`, of rows in memory."""
        data = self._trained.plan.data
        if data.window is None:
            return self.of_rows(of_table(frame), keep)
        table, title = table_of_frame(frame)
        return WindowSamples(data, self.inputs, table, title, self._batch_rows, _all(keep, frame.column_names))

    def of_rows(self, rows: Input, keep: Sequence[str] = ()) -> Samples:
        """As `opened`, for a run whose samples are rows."""
        return RowSamples(self._trained.plan.data, self.inputs, rows, self._batch_rows, _all(keep, rows.names))

    def tables(self, samples: Samples) -> Iterator[pa.Table]:
        """Pieces of the predictions. Raises InputError, UsageError and RunFailure. An input without rows gives the
        names alone."""
        is_empty = True
        for table in self._here(samples) if self._ranks == 1 else self._by_ranks(samples):
            is_empty = False
            yield table
        if is_empty:
            yield self._none()

    def _here(self, samples: Samples) -> Iterator[pa.Table]:
        answer = Answer(self._trained, self.asked, device_for(self._trained, self._device), samples)
        for piece in samples.pieces():
            yield from answer(piece)

    def _by_ranks(self, samples: Samples) -> Iterator[pa.Table]:
        from declarative_train.run.processes import start_method

        method = start_method(device_for(self._trained, self._device).type)
        context = multiprocessing.get_context(method)
        threads = threads_per_rank(self._ranks)
        numbers = context.Queue()
        for number in range(self._ranks):
            numbers.put(number)
        threads = safe_threads(threads) if method == "fork" else threads
        begin = (self._trained, self.asked, self._device, threads, numbers, samples)
        with ProcessPoolExecutor(self._ranks, context, _begin_rank, begin) as pool:
            try:
                for tables in in_order(pool.submit, samples.pieces(), self._ranks * _UNDER_WAY):
                    yield from tables
            except BrokenProcessPool:
                raise RunFailure(
                    "a rank was lost, maybe for want of memory; help: a smaller --batch-size, or fewer --ranks"
                ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # of one that failed, the others do not go on

    def _none(self) -> pa.Table:
        """The columns of no row."""
        forward = Forward(self._trained, self.asked.outputs, device_for(self._trained, "cpu"))
        specs = [self._trained.fields[name] for name in self.inputs]
        one = {spec.name: np.zeros((1, *spec.tensor.shape)) for spec in specs}
        return to_arrow(columns(self.asked, forward(one, 0))).slice(0, 0)


def in_order(
    submit: Callable[..., Future[list[pa.Table]]], pieces: Iterator[Piece], most: int
) -> Iterator[list[pa.Table]]:
    """What the ranks answer, in the order of the pieces, with at most so many under way."""
    waiting: deque[Future[list[pa.Table]]] = deque()
    for piece in pieces:
        waiting.append(submit(_answer, piece))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class Opened:
    """Samples in files. A process that is started gets the names of the files, and opens them itself."""

    def __init__(
        self,
        data: DataSpec,
        names: Sequence[str],
        files: Sequence[str],
        batch_rows: int,
        keep: Sequence[str],
        title: str | None,
    ) -> None:
        self._made_of = (data, names, files, batch_rows, keep, title)
        self._samples: Samples
        if data.window is None:
            rows = open_input(files, data.source, title, picture_column(data))
            self._samples = RowSamples(data, names, rows, batch_rows, _all(keep, rows.names))
        else:
            table, told = table_of(files, data.source, title)
            self._samples = WindowSamples(data, names, table, told, batch_rows, _all(keep, list(table.columns)))

    def pieces(self) -> Pieces:
        return self._samples.pieces()

    def batches(self, piece: Piece) -> Iterator[Batch]:
        return self._samples.batches(piece)

    def __reduce__(self) -> Any:
        return Opened, self._made_of


def _all(keep: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names) if "*" in keep else tuple(dict.fromkeys(keep))


class Answer:
    """The predictions for a piece: what the ranks do."""

    def __init__(self, trained: Trained, asked: Asked, device: torch.device, samples: Samples) -> None:
        self._forward, self._asked, self._samples = Forward(trained, asked.outputs, device), asked, samples

    def __call__(self, piece: Piece) -> Iterator[pa.Table]:
        for batch in self._samples.batches(piece):
            table = to_arrow(columns(self._asked, self._forward(batch.values, batch.start)))
            yield table if batch.beside is None else _beside(batch.beside, table)


def _beside(kept: pa.Table, table: pa.Table) -> pa.Table:
    """A prediction that is called like a column beside it, such as its target, is `price_predicted`."""
    taken = set(kept.column_names)
    for name in table.column_names:
        kept = kept.append_column(f"{name}_predicted" if name in taken else name, table.column(name))
    return kept


_rank: Answer | None = None  # of a process that computes


def _begin_rank(trained: Trained, asked: Asked, device: str, threads: int, numbers: Any, samples: Samples) -> None:
    global _rank
    import torch

    torch.set_num_threads(threads)
    _rank = Answer(trained, asked, device_for(trained, device, numbers.get()), samples)


def _answer(piece: Piece) -> list[pa.Table]:
    assert _rank is not None
    return list(_rank(piece))
