"""A sink turns events into something to read; one event goes to all sinks of a run."""

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
    """Only the main rank has sinks. `write` is called from the loop: it must not wait for a device or a network."""

    is_record: ClassVar[bool] = True
    """Without it the run would lose what other parts rest on, so its failure ends the run. False: the run goes on."""

    @classmethod
    def of_run(cls, run_dir: Path, quiet: bool) -> Self:
        """Of those in `SINKS`: the one of a run, which writes below `run_dir`; `quiet` asks for no progress in the
        terminal. Raises OSError."""
        raise NotImplementedError

    @classmethod
    def chosen(cls, run_dir: Path, settings: Mapping[str, Any]) -> Self:
        """Of those in `CHOICES`: the one of a run, with its settings under `logging.sinks`. Raises OSError."""
        return cls.of_run(run_dir, True)

    @abstractmethod
    def write(self, event: Event) -> None:
        """Take one event. Raises OSError when the place cannot be written."""

    @abstractmethod
    def flush(self) -> None:
        """What was written so far outlives this process, however it ends. Called before a checkpoint exists: a run that
        goes on from it does not tell again what came before."""

    @abstractmethod
    def close(self) -> None:
        """Everything that was written can be read. Called once, also after a failure."""


def without_secrets(event: Event) -> Event:
    """Return an event with its texts masked; the folder of a run keeps its name."""
    texts = {each.name: getattr(event, each.name) for each in fields(event) if each.name != "run_dir"}
    changed = {name: new for name, value in texts.items() if (new := in_texts(masked, value)) != value}
    return replace(event, **changed) if changed else event


class FanOut:
    """The sinks of a run as one."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def write(self, event: Event) -> None:
        """Send an event to all sinks, its texts without secrets."""
        shown = event if isinstance(event, Progress | StepDone) else without_secrets(event)
        self._each(lambda sink: sink.write(shown))

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
