"""One event to all sinks of a run. One that the run can do without, and that fails, is reported once and left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from declarative_train.logs.event import Event, Notice
from declarative_train.logs.sink import Sink


class FanOut:
    """The sinks of a run as one."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def write(self, event: Event) -> None:
        self._each(lambda sink: sink.write(event))

    def flush(self) -> None:
        self._each(lambda sink: sink.flush())

    def close(self) -> None:
        """All of them, whichever fails; the record last, so that it holds what the others miss."""
        for sink in [each for each in self._sinks if not each.is_record]:
            try:
                sink.close()
            except Exception as error:
                self._leave_out(sink, error)
            else:
                self._sinks.remove(sink)
        sinks, self._sinks = self._sinks, []
        failure: Exception | None = None
        for sink in sinks:
            try:
                sink.close()
            except Exception as error:
                failure = error if sink.is_record else failure
        if failure is not None:
            raise failure

    def _each(self, call: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                call(sink)
            except Exception as error:
                if sink.is_record:
                    raise
                self._leave_out(sink, error)
                with suppress(Exception):  # which has said what is wrong
                    sink.close()

    def _leave_out(self, sink: Sink, error: Exception) -> None:
        """Whoever is left hears of it."""
        self._sinks.remove(sink)
        name = type(sink).__name__.removesuffix("Sink")
        why = " ".join(str(error).split()) or type(error).__name__
        self.write(Notice(f"{name} gets nothing more of this run, which goes on: {why}", time.time(), is_warning=True))
