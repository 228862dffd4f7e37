"""Job of a rank: the plan and the settings that the parent process sends to every rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declarative_train.components.plugin_file import import_plugin
from declarative_train.engine.failures import RunFailure
from declarative_train.files.open_files import local_path
from declarative_train.run.sink import Sink
from declarative_train.run.sinks import DEFAULT, Chosen, open_sinks, sink_problems

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan, PluginSinkPlan
    from declarative_train.run.storage.run_dir import RunPlace

SHARED_DISK_S = 20.0  # longest wait until another machine sees a new folder on a shared disk
SinkFactory = Callable[[Path], Sequence[Sink]]
Work = Callable[["RankJob", Any, Callable[[], bool]], int]  # as `run_rank` of run/rank.py


@dataclass(frozen=True, slots=True)
class RankJob:
    """Plan and settings for one rank. It can be pickled, because ranks may be spawned.

    `max_steps`     number of steps after which this session ends, or None
    `sinks`         function that rank 0 calls with the run's folder to open the sinks
    `device_index`  index of this rank's GPU; None: the index in the plan
    `is_hosted`     the run is in a process that must not be ended (a notebook)
    `work`          function called instead of `run_rank`, with the same arguments and result
    """

    plan: Plan
    device_kind: str
    place: RunPlace
    max_steps: int | None
    sinks: SinkFactory
    notices: tuple[str, ...] = ()  # in addition to `place.notices`
    is_quiet: bool = False
    device_index: int | None = None
    is_hosted: bool = False
    work: Work | None = None

    @property
    def run_dir(self) -> Path:
        return self.place.run_dir

    @property
    def failures_dir(self) -> Path:
        return self.run_dir / "failures"


def default_sinks(
    quiet: bool, chosen: Chosen = DEFAULT, plugins: Mapping[str, PluginSinkPlan] | None = None
) -> SinkFactory:
    """Return a function that takes the run's folder and opens the sinks. These are the sinks of every run, those that
    the recipe chooses (`chosen`), and those of plugins. `quiet`: show no progress in the terminal."""
    return partial(_open_all, quiet, chosen, plugins or {})


def _open_all(quiet: bool, chosen: Chosen, plugins: Mapping[str, PluginSinkPlan], run_dir: Path) -> Sequence[Sink]:
    found = list(open_sinks(quiet, chosen, run_dir))
    try:
        found += [_open_plugin_sink(name, plugin, run_dir, chosen[name]) for name, plugin in plugins.items()]
    except RunFailure:
        for sink in found:
            sink.close()
        raise
    return found


def _open_plugin_sink(name: str, plugin: PluginSinkPlan, run_dir: Path, settings: Mapping[str, object]) -> Sink:
    """Open a sink of a plugin with its settings, and return it. A sink that fails later is removed, and the run
    continues. Raises RunFailure if the sink cannot be opened."""
    try:
        sink: Sink = getattr(import_plugin(plugin.path), plugin.class_name)(run_dir, **settings)
    except Exception as error:
        raise RunFailure(f"logging.sinks.{name}: {type(error).__name__}: {error}") from error
    sink.is_record = False  # type: ignore[misc]
    return sink


def check_sinks(plan: Plan) -> None:
    """Raise RunFailure if a sink of the plan needs a package or a key that is missing."""
    for sentence in sink_problems(plan.logging.sinks):
        raise RunFailure(sentence)


def check_disk(job: RankJob, host: str, hosts: tuple[str, ...], wait_s: float = SHARED_DISK_S) -> None:
    """Raise RunFailure if this machine (`host`) does not see the folder for checkpoints within `wait_s` seconds after
    rank 0 created it. Otherwise the first save would fail, hours later. `hosts`: all machines, that of rank 0 first."""
    folder = local_path(job.place.checkpoints)
    if job.plan.checkpoint is None or host == hosts[0] or folder is None:
        return
    made = Path(folder).parent
    deadline = time.monotonic() + wait_s
    while not made.is_dir():
        if time.monotonic() > deadline:
            raise RunFailure(
                f"{host} does not see {made}, which rank 0 created on {hosts[0]}, and where every rank saves its "
                "part; help: "
                "set logging.dir or checkpoint.dir to a disk that all machines share, or checkpoint.dir to a URL"
            )
        time.sleep(0.2)
