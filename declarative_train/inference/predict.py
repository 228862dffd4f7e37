"""Predictions of a trained model for new rows, in the order of the rows: one for each row, or for each window of rows.

The input is divided into pieces (ranges of rows). With `ranks`, several processes each take the next free piece. Only a
few pieces per rank are under way, so that neither a long input nor a slow rank fills the memory."""

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
from declarative_train.inference.answers import PredictedOutputs, choose_outputs, columns, to_arrow
from declarative_train.inference.fields import columns_of_folder
from declarative_train.inference.forward import Forward, batch_rows, device_for, find_random_nodes
from declarative_train.inference.input import Input, Piece, Pieces
from declarative_train.inference.reading import STDIN, STDIN_TITLE, of_table, open_input, spool_stdin
from declarative_train.inference.sample_batches import RowSamples, SampleBatch, Samples
from declarative_train.inference.trained import Trained
from declarative_train.inference.windows import WindowSamples, table_of, table_of_frame, text_of

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from declarative_train.data.spec import DataSpec

_UNDER_WAY = 2  # pieces under way per rank


class Prediction:
    """Prediction of selected outputs of a model, on a device and by one or several processes. `drawing`: paths of the
    graph nodes that draw random numbers, so that predictions depend on them. The constructor raises UsageError for
    outputs that the model does not have."""

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
        self.asked: PredictedOutputs = choose_outputs(trained, outputs)
        graph = trained.graph(self.asked.outputs)
        self.inputs = tuple(graph.inputs)
        self.drawing = tuple(find_random_nodes(graph))
        self._batch_rows = batch_rows(trained, self.inputs, batch_size)

    def open_files(self, paths: str | Sequence[str], keep: Sequence[str] = ()) -> Samples:
        """Return the samples in files. `paths`: paths, globs or URLs, or `-` for standard input. `keep`: columns of the
        input that are copied to the result, before the predictions; `*` means all. Raises InputError and UsageError."""
        given = [paths] if isinstance(paths, str) else list(paths)
        title = STDIN_TITLE if given == [STDIN] else None
        files = tuple(given) if title is None else (spool_stdin(),)
        return FileSamples(self._trained.plan.data, self.inputs, files, self._batch_rows, tuple(keep), title)

    def of_frame(self, frame: pa.Table, keep: Sequence[str] = ()) -> Samples:
        """Return the samples in a table in memory. `keep`: columns of the input that are copied to the result; `*`
        means all."""
        data = self._trained.plan.data
        if data.window is None:
            return self.of_rows(of_table(frame), keep)
        table, title = table_of_frame(frame)
        return WindowSamples(data, self.inputs, table, title, self._batch_rows, _all(keep, frame.column_names))

    def of_rows(self, rows: Input, keep: Sequence[str] = ()) -> Samples:
        """Return the samples in `rows`, for a run in which each row is one sample. `keep`: columns of the input that
        are copied to the result; `*` means all."""
        return RowSamples(self._trained.plan.data, self.inputs, rows, self._batch_rows, _all(keep, rows.names))

    def tables(self, samples: Samples) -> Iterator[pa.Table]:
        """Compute the predictions and yield them as tables. If the input has no rows, yield one table with the columns
        and without rows. Raises InputError, UsageError and RunFailure."""
        is_empty = True
        for table in self._predict_here(samples) if self._ranks == 1 else self._by_ranks(samples):
            is_empty = False
            yield table
        if is_empty:
            yield self._empty_table()

    def _predict_here(self, samples: Samples) -> Iterator[pa.Table]:
        predictor = Predictor(self._trained, self.asked, device_for(self._trained, self._device), samples)
        for piece in samples.pieces():
            yield from predictor(piece)

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
                    "a rank was lost, possibly out of memory; help: a smaller --batch-size, or fewer --ranks"
                ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after a failure the others stop, too

    def _empty_table(self) -> pa.Table:
        forward = Forward(self._trained, self.asked.outputs, device_for(self._trained, "cpu"))
        specs = [self._trained.fields[name] for name in self.inputs]
        one = {spec.name: np.zeros((1, *spec.tensor.shape)) for spec in specs}
        return to_arrow(columns(self.asked, forward(one, 0))).slice(0, 0)


def in_order(
    submit: Callable[..., Future[list[pa.Table]]], pieces: Iterator[Piece], most: int
) -> Iterator[list[pa.Table]]:
    """Compute predictions in other processes, and yield the tables of each piece (range of rows of the input) in the
    order of `pieces`. `submit`: `Executor.submit`. `most`: maximum number of pieces that are submitted and not yet
    yielded."""
    waiting: deque[Future[list[pa.Table]]] = deque()
    for piece in pieces:
        waiting.append(submit(_answer, piece))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class FileSamples:
    """Samples in files. If the object is pickled, only the names of the files are sent; the process that unpickles it
    opens them."""

    def __init__(
        self,
        data: DataSpec,
        names: Sequence[str],
        files: Sequence[str],
        batch_rows: int,
        keep: Sequence[str],
        title: str | None,
    ) -> None:
        self._arguments = (data, names, files, batch_rows, keep, title)
        self._samples: Samples
        if data.window is None:
            rows = open_input(files, data.source, title, columns_of_folder(data))
            self._samples = RowSamples(data, names, rows, batch_rows, _all(keep, rows.names))
        else:
            table, named = table_of(files, data.source, title)
            kept = _all(keep, list(table.columns))
            self._samples = WindowSamples(data, names, table, named, batch_rows, kept, text_of(files, data.source))

    def pieces(self) -> Pieces:
        return self._samples.pieces()

    def batches(self, piece: Piece) -> Iterator[SampleBatch]:
        return self._samples.batches(piece)

    def __reduce__(self) -> Any:
        return FileSamples, self._arguments


def _all(keep: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names) if "*" in keep else tuple(dict.fromkeys(keep))


class Predictor:
    """Predictor of one rank. A call yields the predictions for one piece of the input as tables, batch by batch."""

    def __init__(self, trained: Trained, asked: PredictedOutputs, device: torch.device, samples: Samples) -> None:
        self._forward, self._asked, self._samples = Forward(trained, asked.outputs, device), asked, samples

    def __call__(self, piece: Piece) -> Iterator[pa.Table]:
        for batch in self._samples.batches(piece):
            table = to_arrow(columns(self._asked, self._forward(batch.values, batch.start)))
            yield table if batch.kept is None else _append(batch.kept, table)


def _append(kept: pa.Table, table: pa.Table) -> pa.Table:
    """Return a table with the columns of `kept` (from the input), followed by those of `table` (predictions). If a
    prediction has the name of a kept column, such as the target `price`, it is renamed to `price_predicted`."""
    taken = set(kept.column_names)
    for name in table.column_names:
        kept = kept.append_column(f"{name}_predicted" if name in taken else name, table.column(name))
    return kept


_rank: Predictor | None = None  # of this process, if it is a rank


def _begin_rank(
    trained: Trained, asked: PredictedOutputs, device: str, threads: int, numbers: Any, samples: Samples
) -> None:
    global _rank
    import torch

    torch.set_num_threads(threads)
    _rank = Predictor(trained, asked, device_for(trained, device, numbers.get()), samples)


def _answer(piece: Piece) -> list[pa.Table]:
    assert _rank is not None
    return list(_rank(piece))
