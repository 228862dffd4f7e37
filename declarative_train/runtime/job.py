"""What the parent hands to every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.logs.sink import Sink
from declarative_train.logs.sinks import open_sinks

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.runtime.storage.run_dir import Place

SinkFactory = Callable[[Path], Sequence[Sink]]


@dataclass(frozen=True, slots=True)
class Job:
    """`sinks` is called on the main rank with the run directory; it and all else can be pickled, for ranks that are
    spawned. `device_index`: this rank's GPU, where it is not the plan's. `is_hosted`: the process belongs to somebody
    else (a notebook, a script), and is never ended."""

    plan: Plan
    device_kind: str
    place: Place
    max_steps: int | None
    sinks: SinkFactory
    notices: tuple[str, ...] = ()  # beside those of the place
    is_quiet: bool = False
    device_index: int | None = None
    is_hosted: bool = False

    @property
    def run_dir(self) -> Path:
        return self.place.run_dir

    @property
    def failures_dir(self) -> Path:
        return self.run_dir / "failures"


def default_sinks(quiet: bool) -> SinkFactory:
    """Every sink of the table."""
    return partial(open_sinks, quiet)
