"""What the parent hands to every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.components.plugin_file import import_plugin
from declarative_train.engine.failures import RunFailure
from declarative_train.run.sink import Sink
from declarative_train.run.sinks import DEFAULT, Chosen, open_sinks, unusable

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan, PluginSinkPlan
    from declarative_train.run.storage.run_dir import Place

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


def default_sinks(
    quiet: bool, chosen: Chosen = DEFAULT, plugins: Mapping[str, PluginSinkPlan] | None = None
) -> SinkFactory:
    """Those of every run, and those that were chosen; `plugins` has the code of those that are not ours."""
    return partial(_opened, quiet, chosen, plugins or {})


def _opened(quiet: bool, chosen: Chosen, plugins: Mapping[str, PluginSinkPlan], run_dir: Path) -> Sequence[Sink]:
    found = list(open_sinks(quiet, chosen, run_dir))
    try:
        found += [_of_plugin(name, plugin, run_dir, chosen[name]) for name, plugin in plugins.items()]
    except RunFailure:
        for sink in found:
            sink.close()
        raise
    return found


def _of_plugin(name: str, plugin: PluginSinkPlan, run_dir: Path, settings: Mapping[str, object]) -> Sink:
    """A run never rests on it: one that fails is left out. Raises RunFailure where it cannot even be made."""
    try:
        sink: Sink = getattr(import_plugin(plugin.path), plugin.class_name)(run_dir, **settings)
    except Exception as error:
        raise RunFailure(f"logging.sinks.{name}: {type(error).__name__}: {error}") from error
    sink.is_record = False  # type: ignore[misc]
    return sink


def check_sinks(plan: Plan) -> None:
    """Raises RunFailure where a sink of the plan cannot be opened at all: a package that is not installed."""
    for sentence in unusable(plan.logging.sinks):
        raise RunFailure(sentence)
