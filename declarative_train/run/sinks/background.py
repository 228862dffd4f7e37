"""Base class of sinks that write from a thread, because a server is slow or a library takes long to import.

The training loop only appends to a queue. `flush` and `close` wait for the thread, at most `wait_s`. An error in the
thread is raised at the next call; the run then continues without the sink."""

from __future__ import annotations

import json
import sys
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from declarative_train.run.event import Event, Progress
from declarative_train.run.sink import Sink

SEND_S = 1.0  # longest time until an event is sent
WAIT_S = 30.0
REQUEST_S = 10  # time-out of one request to a server


class BackgroundSink(Sink):
    """Base class of sinks that write in a thread. A subclass defines `_send`, `_poll` and `_finish`, which the thread
    calls; they may raise any exception."""

    is_record: ClassVar[bool] = False
    every_s: ClassVar[float] = SEND_S
    wait_s: ClassVar[float] = WAIT_S

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._num_asked, self._num_done = 0, 0  # calls of `flush`, and those that are done
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=type(self).__name__, daemon=True)
        self._thread.start()

    @abstractmethod
    def _send(self, events: Sequence[Event]) -> None:
        """Send all queued events. The first event of the first call is the RunStarted."""

    def _poll(self) -> None:
        """Do periodic work. After the first `_send` it is called every `every_s` seconds, even without new events."""

    @abstractmethod
    def _finish(self) -> None:
        """Close the connection. It is called at the end, but only if `_send` was called before."""

    def write(self, event: Event) -> None:
        if not isinstance(event, Progress):
            self._raise_failure()
            self._events.append(event)  # without waking the thread, which polls every `every_s`

    def flush(self) -> None:
        """Wait until all queued events are sent, but at most `wait_s` seconds. The thread sends the others later."""
        with self._changed:
            self._num_asked += 1
            number = self._num_asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_done >= number, self.wait_s)
        self._raise_failure()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(self.wait_s)
        self._raise_failure()
        if self._thread.is_alive():
            raise TimeoutError(f"no answer for {self.wait_s:g} s; its last values may be missing")

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _work(self) -> None:
        try:
            self._loop()
        except Exception as error:
            self._failure = error
            with self._changed:
                self._num_done = sys.maxsize
                self._changed.notify_all()

    def _loop(self) -> None:
        has_sent = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._num_asked > self._num_done, self.every_s)
                is_last, number = self._is_closing, self._num_asked
            events = [self._events.popleft() for _ in range(len(self._events))]
            if events:
                self._send(events)
                has_sent = True
            if has_sent:
                self._poll()
            with self._changed:
                self._num_done = number
                self._changed.notify_all()
            if is_last:
                if has_sent:
                    self._finish()
                return


def read_run_id(path: Path) -> dict[str, Any]:
    """Return the values that `write_run_id` wrote, among them the id of the run on a server; {} if there is no such
    file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_run_id(path: Path, **values: str) -> None:
    path.write_text(json.dumps(values) + "\n", "utf-8")
