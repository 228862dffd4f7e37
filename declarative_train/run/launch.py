"""Start of a plan on this machine: the parent chooses the device, makes the run's folder, starts the ranks, and reports
how they ended.

Exit codes: 0 success; 3 the run failed; 75 stopped early, with a checkpoint to resume from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from declarative_train.engine.devices import choose_device, num_gpus
from declarative_train.engine.failures import RunFailure, describe_failure, explain, write_failure
from declarative_train.run.processes import exit_unsaved, launch_ranks, print_stopping, report, say
from declarative_train.run.rank_job import RankJob, SinkFactory, check_sinks, default_sinks
from declarative_train.run.signals import EXIT_FAILED, StopRequest, late_reason
from declarative_train.run.storage.run_dir import open_place
from declarative_train.run.storage.run_lock import RunLock

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.run.rank import FailureContext


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a run: its exit code, its folder (None if it could not be made), and the lines of a failure message, which
    the caller must print."""

    code: int
    run_dir: Path | None = None
    why: tuple[str, ...] = ()


def run(
    plan: Plan,
    *,
    resume: str | None = None,
    max_steps: int | None = None,
    quiet: bool = False,
    sinks: SinkFactory | None = None,
) -> int:
    """Run a plan as `launch` does, print a failure on standard error, and return the exit code."""
    outcome = launch(plan, resume=resume, max_steps=max_steps, quiet=quiet, sinks=sinks)
    say(outcome.why)
    return outcome.code


def launch(
    plan: Plan,
    *,
    resume: str | None = None,
    max_steps: int | None = None,
    quiet: bool = False,
    sinks: SinkFactory | None = None,
    hosted: bool = False,
    folder: Path | None = None,
) -> Outcome:
    """Run a plan and return how it ended. `resume`: None, `auto`, or a path. `max_steps`: stop after so many steps.
    `sinks`: replaces the terminal and the plan's sinks. `folder`: the run's folder; None: a new one among the runs of
    its recipe. `hosted`: the caller is the user's process (a notebook), which must not be ended, so a second interrupt
    raises KeyboardInterrupt."""
    lock = RunLock()
    run_dir: Path | None = None
    try:
        device_kind, notices = choose_here(plan)
        if sinks is None:
            check_sinks(plan)
            sinks = default_sinks(quiet, plan.logging.sinks, plan.logging.plugins)
        place = open_place(plan, resume, lock, folder=folder)
        run_dir = place.run_dir
        job = RankJob(plan, device_kind, place, max_steps, sinks, notices, quiet, is_hosted=hosted)
        code, why = run_here(job) if plan.layout.is_one_process else launch_ranks(job)
        return Outcome(code, run_dir, tuple(why))
    except (RunFailure, OSError) as error:
        return Outcome(EXIT_FAILED, run_dir, (f"dtrain: {explain(error, Path(plan.logging.dir))}",))
    finally:
        lock.release()


def choose_here(plan: Plan) -> tuple[str, tuple[str, ...]]:
    """Return the kind of device, and notices about the choice. Raises RunFailure."""
    if plan.layout.num_nodes > 1:
        raise RunFailure(
            f"the plan is for {plan.layout.num_nodes} machines; help: start it on each, with its number from 0 as NODE "
            f"and the address of number 0 as HEAD: torchrun --nnodes {plan.layout.num_nodes} --node-rank $NODE "
            f"--nproc-per-node {plan.layout.gpus_per_node} --master-addr $HEAD --master-port 29500 "
            "-m declarative_train run ..."
        )
    choice = choose_device(plan.layout, 0 if plan.layout.device in ("cpu", "mps") else num_gpus())
    return choice.kind, () if choice.notice is None else (choice.notice,)


def exit_late(job: RankJob, context: FailureContext, watch: StopRequest) -> NoReturn:
    """Exit, since no step ended in time after a request to stop."""
    exit_unsaved(job, late_reason(), loses=context.has_stepped, number=watch.number)


def run_here(job: RankJob) -> tuple[int, list[str]]:
    """Run the plan in this process, as the only rank and without a process group (modes `single` and `dp`). Returns the
    exit code, and the lines of a failure message."""
    from declarative_train.run.rank import FailureContext, run_rank

    context = FailureContext(0)
    watch = StopRequest(
        on_first=lambda: print_stopping(job),
        on_second=None if job.is_hosted else lambda: exit_unsaved(job, "at once"),
        on_late=None if job.is_hosted else lambda: exit_late(job, context, watch),
        raises=job.is_hosted,
    )
    watch.install()
    try:
        return run_rank(job, context, lambda: watch.is_asked), []
    except BaseException as error:  # DCP's CheckpointException does not derive from Exception
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise
        failure = describe_failure(error, 0, context.stage, context.step, job.run_dir)
        write_failure(job.failures_dir, failure)
        return EXIT_FAILED, report(job, failure, 1)
    finally:
        watch.restore()
