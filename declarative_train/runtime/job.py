"""What the parent hands to every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.logs.sink import Sink

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.runtime.storage.run_dir import Place

SinkFactory = Callable[[Path], Sequence[Sink]]


@dataclass(frozen=True, slots=True)
class Job:
    """`sinks` is called on the main rank with the run directory; it and all else can be pickled, for ranks that are
    spawned. `device_index`: this rank's GPU, where it is not the plan's."""

    plan: Plan
    device_kind: str
    place: Place
    max_steps: int | None
    sinks: SinkFactory
    notices: tuple[str, ...] = ()  # beside those of the place
    is_quiet: bool = False
    device_index: int | None = None

    @property
    def run_dir(self) -> Path:
        return self.place.run_dir

    @property
    def failures_dir(self) -> Path:
        return self.run_dir / "failures"


def default_sinks(quiet: bool) -> SinkFactory:
    return partial(_default_sinks, quiet)


def _default_sinks(quiet: bool, run_dir: Path) -> Sequence[Sink]:
    """Terminal, TensorBoard and JSON lines."""
    from declarative_train.logs.sinks.console import ConsoleSink
    from declarative_train.logs.sinks.jsonl import JsonlSink
    from declarative_train.logs.sinks.tensorboard import TensorBoardSink

    return (ConsoleSink(quiet=quiet), TensorBoardSink(run_dir), JsonlSink(run_dir / "events.jsonl"))
