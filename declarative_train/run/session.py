"""Session of a run: it has the plan, and chooses device, folder and checkpoint for each round. A round starts all ranks
together, from the newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.engine.checkpoints.store import CheckpointStore, hasty_damage
from declarative_train.engine.devices import choose_device
from declarative_train.engine.failures import explain
from declarative_train.plan.codec import sign
from declarative_train.run.messages import NodeResult, NodeStatus
from declarative_train.run.rank_job import RankJob, SinkFactory, Work, check_sinks, default_sinks
from declarative_train.run.storage.run_dir import open_place
from declarative_train.run.storage.run_lock import RunLock

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


Recompile = Callable[[int], "Plan | None"]


class Session:
    """Settings of one start of the program, and the state of its run. `run_dir`: the run's folder; None before the
    first call of `make_job`. `recompile`: function that returns the plan for a number of nodes, or None if the recipe
    has no such plan. Without this function, the number of nodes is fixed."""

    def __init__(
        self,
        plan: Plan,
        lock: RunLock,
        *,
        resume: str | None = None,
        max_steps: int | None = None,
        quiet: bool = False,
        sinks: SinkFactory | None = None,
        hosted: bool = False,
        folder: Path | None = None,
        recompile: Recompile | None = None,
        work: Work | None = None,
    ) -> None:
        self.plan, self._lock, self._recompile = plan, lock, recompile
        self._plans: dict[int, Plan | None] = {plan.layout.num_nodes: plan}  # by number of nodes
        self._resume, self._folder, self._work = resume, folder, work
        self._max_steps, self._quiet, self._hosted = max_steps, quiet, hosted
        if sinks is None:
            check_sinks(plan)
            sinks = default_sinks(quiet, plan.logging.sinks, plan.logging.plugins)
        self._sinks = sinks
        self._first_step: int | None = None
        self._last_step = 0
        self._num_futile = 0  # restarts in a row without a new checkpoint
        self.run_dir: Path | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes in the plan; for a range such as `1..4`, its upper end."""
        return self.plan.layout.num_nodes

    @property
    def min_nodes(self) -> int:
        least = self.plan.layout.min_nodes
        return self.num_nodes if least is None or self._recompile is None else least

    def is_misfit(self, num_nodes: int) -> bool:
        """Return whether the recipe was already compiled for this number of nodes, and this gave no plan."""
        return num_nodes in self._plans and self._plans[num_nodes] is None

    def fit(self, num_nodes: int) -> int | None:
        """Return the largest number of nodes, up to `num_nodes`, for which there is a plan; None if there is none."""
        possible = range(min(num_nodes, self.num_nodes), self.min_nodes - 1, -1)
        return next((number for number in possible if self._plan_for(number) is not None), None)

    def _plan_for(self, num_nodes: int) -> Plan | None:
        """Return the plan for this number of nodes, or None if the recipe has none. The recipe is compiled once for
        each number. `min_nodes`, `max_restarts` and settings are those of the plan with which the session began."""
        if num_nodes not in self._plans:
            assert self._recompile is not None
            found, asked = self._recompile(num_nodes), self.plan
            if found is not None:
                layout = replace(found.layout, min_nodes=asked.layout.min_nodes, max_restarts=asked.layout.max_restarts)
                found = sign(replace(found, layout=layout, overrides=asked.overrides, settings=asked.settings))
            self._plans[num_nodes] = found
        return self._plans[num_nodes]

    def make_job(self, nodes: Sequence[NodeStatus]) -> RankJob:
        """Return the job for the next start of all ranks on these nodes. Raises RunFailure or OSError."""
        plan = self._plan_for(len(nodes))
        assert plan is not None
        poorest = min(nodes, key=lambda node: node.num_gpus)
        choice = choose_device(plan.layout, poorest.num_gpus, "here" if len(nodes) == 1 else f"on {poorest.host}")
        self._keep_failures()
        place = open_place(plan, self._resume, self._lock, folder=self._folder)
        step = 0 if place.entry is None else place.entry.step
        if self._first_step is None:
            self._first_step = step
        self._last_step = step
        self.run_dir = place.run_dir
        if place.entry is None or place.entry.path.startswith(place.checkpoints):
            self._resume, self._folder = "auto", place.run_dir  # the next round continues this run
        left = None if self._max_steps is None else max(0, self._first_step + self._max_steps - step)
        notices = () if choice.notice is None else (choice.notice,)
        return RankJob(
            plan, choice.kind, place, left, self._sinks, notices, self._quiet, is_hosted=self._hosted, work=self._work
        )

    def _keep_failures(self) -> None:
        """Rename the folder with the failure reports of a failed round (a start of all ranks), so that those of the
        next round do not replace them."""
        if self.run_dir is not None and (found := self.run_dir / "failures").exists():
            with suppress(OSError):
                found.rename(found.with_name(f"failures.{len(list(self.run_dir.glob('failures.*'))) + 1}"))

    @property
    def needs_no_gpu(self) -> bool:
        return self.plan.layout.device in ("cpu", "mps")

    def adopt(self, run_dir: str) -> None:
        """If this session has not begun a run, make it continue the run in the folder `run_dir`. The agents of other
        nodes report this folder after a restart of node 0's agent."""
        if self.run_dir is None:
            self._resume, self._folder = "auto", Path(run_dir)

    def restarts(self, job: RankJob, results: Iterable[NodeResult]) -> bool:
        """Return whether the run starts again after a failed round, and count the restart. (A round is one start of all
        ranks.) The run may start `max_restarts` times in a row without a new checkpoint. It does not start again after
        a failure that would repeat itself. `results`: how the round ended on each node."""
        most = self.plan.layout.max_restarts
        failures = [failure for result in results for failure in result.failures]
        if not most or any(failure.repeats for failure in failures):
            return False
        try:
            entry, _ = CheckpointStore(job.place.checkpoints).newest(hasty_damage)
        except Exception:  # the client of a remote store has its own exceptions
            entry = None
        if entry is not None and entry.step > self._last_step:
            self._num_futile = 0
            return True
        self._num_futile += 1
        return self._num_futile <= most

    def explain(self, error: BaseException) -> str:
        return explain(error, Path(self.plan.logging.dir))
