"""Interface of sinks. A sink writes the events of a run in one format (terminal, JSON lines, TensorBoard). All sinks of
a run get every event."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from declarative_train.core.secrets import in_texts, masked
from declarative_train.run.event import Event, Notice, Progress, StepDone


class Sink(ABC):
    """Base class of sinks, which write the events of a run. Only rank 0 has sinks. The training loop calls `write`,
    which must not wait for a device or a network. Sinks with `is_record` are closed last; they get a notice if closing
    another sink fails."""

    is_record: ClassVar[bool] = True
    """True: other parts of dtrain read the output of this sink, so its failure ends the run. False: the run goes on."""

    @classmethod
    def of_run(cls, run_dir: Path, quiet: bool) -> Self:
        """Open the sink, which writes to the folder `run_dir`. `quiet`: show no progress in the terminal. Raises
        OSError. Only the sinks that every run has (table `SINKS`) define this method."""
        raise NotImplementedError

    @classmethod
    def from_settings(cls, run_dir: Path, settings: Mapping[str, Any]) -> Self:
        """Open the sink. `settings`: its keys under `logging.sinks`. Raises OSError. Only the sinks that a recipe can
        choose (table `CHOICES`) define this method."""
        return cls.of_run(run_dir, True)

    @abstractmethod
    def write(self, event: Event) -> None:
        """Write one event, or put it into a queue. Raises OSError when the destination cannot be written."""

    @abstractmethod
    def flush(self) -> None:
        """Make sure that the events so far are not lost if this process crashes. It is called before each checkpoint,
        because a run that resumes from the checkpoint does not repeat them."""

    @abstractmethod
    def close(self) -> None:
        """Write all queued events and close the destination. It is called once, also after a failure."""


def mask_secrets(event: Event) -> Event:
    """Return the event with passwords and keys in its texts masked. Its path `run_dir` is not changed."""
    texts = {each.name: getattr(event, each.name) for each in fields(event) if each.name != "run_dir"}
    changed = {name: new for name, value in texts.items() if (new := in_texts(masked, value)) != value}
    return replace(event, **changed) if changed else event


class FanOut:
    """Object that passes each event to all sinks of a run. It has the methods of a sink."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def write(self, event: Event) -> None:
        """Send an event to all sinks, with secrets masked."""
        safe = event if isinstance(event, Progress | StepDone) else mask_secrets(event)
        self._each(lambda sink: sink.write(safe))

    def flush(self) -> None:
        self._each(lambda sink: sink.flush())

    def close(self) -> None:
        """Close all sinks, even if some fail. Sinks with `is_record` are closed last, after they received notices about
        failures of the others."""
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
                with suppress(Exception):  # the notice already names the failure
                    sink.close()

    def _leave_out(self, sink: Sink, error: Exception) -> None:
        """Remove a sink that failed, and send a warning to the others."""
        self._sinks.remove(sink)
        name = type(sink).__name__.removesuffix("Sink")
        why = " ".join(str(error).split()) or type(error).__name__
        self.write(Notice(f"{name} is disabled for the rest of this run: {why}", time.time(), is_warning=True))
