"""A sink turns events into something to read. One leaf per place: terminal, JSON lines, TensorBoard, and others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from declarative_train.logs.event import Event


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
