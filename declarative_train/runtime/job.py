"""What the parent hands to every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.logs.sink import Sink
from declarative_train.logs.sinks import DEFAULT, Chosen, open_sinks, unusable
from declarative_train.runtime.failures import RunFailure

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


def default_sinks(quiet: bool, chosen: Chosen = DEFAULT) -> SinkFactory:
    """Those of every run, and those that were chosen."""
    return partial(open_sinks, quiet, chosen)


def check_sinks(plan: Plan) -> None:
    """Raises RunFailure where a sink of the plan cannot be opened at all: a package that is not installed."""
    for sentence in unusable(plan.logging.sinks):
        raise RunFailure(sentence)
