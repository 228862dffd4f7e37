"""A trained model and new rows -> predictions, in the order of the rows, one for each.

Rows are read and made into fields by this process, and computed by it or, with `ranks`, by several: each takes the next
batch that waits, and what they answer is put in order again. A few batches for each are under way at a time, so that
neither a long input nor a slow rank fills the memory.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from declarative_train.inference.answers import Asked, asked, columns, to_arrow
from declarative_train.inference.fields import Fields, kept_columns
from declarative_train.inference.forward import Forward, batch_rows, device_for, drawing
from declarative_train.inference.reading import Input
from declarative_train.inference.trained import Trained, UsageError
from declarative_train.runtime.devices import safe_threads, threads_per_rank
from declarative_train.runtime.failures import RunFailure

if TYPE_CHECKING:
    import pyarrow as pa

_UNDER_WAY = 4  # batches for each rank
Values = Mapping[str, np.ndarray]


class Batch(NamedTuple):
    """`start` is the number of its first row in the input; `kept` are columns that go along as they are."""

    start: int
    values: Values
    kept: pa.Table | None


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
        if trained.plan.data.window is not None:
            raise UsageError(_no_windows(trained))
        self._trained, self._device, self._ranks = trained, device, ranks
        self.asked: Asked = asked(trained, outputs)
        graph = trained.graph(self.asked.outputs)
        self.inputs = tuple(graph.inputs)
        self.drawing = tuple(drawing(graph))
        self._batch_rows = batch_rows(trained, self.inputs, batch_size)

    def tables(self, rows: Input, keep: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Of an input: pieces of the predictions; `keep`: columns of the input that stand before them as they are
        there. Raises InputError, UsageError and RunFailure. An input without rows gives the names alone."""
        fields = Fields(self._trained.plan.data, self.inputs, rows, keep)
        batches = self._batches(fields, keep)
        answered = self._here(batches) if self._ranks == 1 else self._by_ranks(batches)
        is_empty = True
        for kept, table in answered:
            is_empty = False
            yield table if kept is None else _beside(kept, table)
        if is_empty:
            yield self._none()

    def _batches(self, fields: Fields, keep: Sequence[str]) -> Iterator[Batch]:
        for chunk, values in fields.chunks():
            kept = None if not keep else kept_columns(chunk, keep)
            for begin in range(0, chunk.num_rows, self._batch_rows):
                end = min(begin + self._batch_rows, chunk.num_rows)
                cut = {name: array[begin:end] for name, array in values.items()}
                yield Batch(chunk.start + begin, cut, None if kept is None else kept.slice(begin, end - begin))

    def _here(self, batches: Iterator[Batch]) -> Iterator[tuple[pa.Table | None, pa.Table]]:
        forward = Forward(self._trained, self.asked.outputs, device_for(self._trained, self._device))
        for batch in batches:
            yield batch.kept, to_arrow(columns(self.asked, forward(batch.values, batch.start)))

    def _by_ranks(self, batches: Iterator[Batch]) -> Iterator[tuple[pa.Table | None, pa.Table]]:
        from declarative_train.runtime.processes import start_method

        method = start_method(device_for(self._trained, self._device).type)
        context = multiprocessing.get_context(method)
        threads = threads_per_rank(self._ranks)
        numbers = context.Queue()
        for number in range(self._ranks):
            numbers.put(number)
        threads = safe_threads(threads) if method == "fork" else threads
        begin = (self._trained, self.asked, self._device, threads, numbers)
        with ProcessPoolExecutor(self._ranks, context, _begin_rank, begin) as pool:
            try:
                yield from in_order(pool.submit, batches, self._ranks * _UNDER_WAY)
            except BrokenProcessPool:
                raise RunFailure(
                    "a rank was lost, maybe for want of memory; help: a smaller --batch-size, or fewer --ranks"
                ) from None

    def _none(self) -> pa.Table:
        """The columns of no row."""
        forward = Forward(self._trained, self.asked.outputs, device_for(self._trained, "cpu"))
        specs = [self._trained.fields[name] for name in self.inputs]
        one = {spec.name: np.zeros((1, *spec.tensor.shape)) for spec in specs}
        return to_arrow(columns(self.asked, forward(one, 0))).slice(0, 0)


def in_order(
    submit: Callable[..., Future[pa.Table]], batches: Iterator[Batch], most: int
) -> Iterator[tuple[pa.Table | None, pa.Table]]:
    """What the ranks answer, in the order of the batches, with at most so many under way."""
    waiting: deque[tuple[pa.Table | None, Future[pa.Table]]] = deque()
    for batch in batches:
        waiting.append((batch.kept, submit(_answer, batch.start, batch.values)))
        if len(waiting) >= most:
            kept, future = waiting.popleft()
            yield kept, future.result()
    while waiting:
        kept, future = waiting.popleft()
        yield kept, future.result()


def _beside(kept: pa.Table, table: pa.Table) -> pa.Table:
    """A prediction that is called like a column beside it, such as its target, is `price_predicted`."""
    taken = set(kept.column_names)
    for name in table.column_names:
        kept = kept.append_column(f"{name}_predicted" if name in taken else name, table.column(name))
    return kept


_rank: tuple[Forward, Asked] | None = None  # of a process that computes


def _begin_rank(trained: Trained, asked: Asked, device: str, threads: int, numbers: Any) -> None:
    global _rank
    import torch

    torch.set_num_threads(threads)
    _rank = Forward(trained, asked.outputs, device_for(trained, device, numbers.get())), asked


def _answer(start: int, values: Values) -> pa.Table:
    assert _rank is not None
    forward, asked = _rank
    return to_arrow(columns(asked, forward(values, start)))


def _no_windows(trained: Trained) -> str:
    window = trained.plan.data.window
    assert window is not None
    way_out = "`dtrain evaluate RUN --data INPUT` measures it on new rows"
    if trained.plan.data.source.get("type") == "text":
        way_out = "`dtrain generate RUN --prompt TEXT` lets it write, and `dtrain evaluate RUN --data` measures it"
    return f"{trained.name} reads windows of {window.length} rows, and a prediction is for one row; help: {way_out}"
