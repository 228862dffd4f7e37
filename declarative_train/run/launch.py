"""Start of a plan on this machine: in this process, in one process for each rank, or as node 0 of several nodes.
`run/session.py` chooses device, folder and checkpoint.

Exit codes: 0 success; 3 the run failed; 75 stopped early, with a checkpoint to resume from.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from declarative_train.engine.devices import num_gpus
from declarative_train.engine.failures import RunFailure, describe_failure, explain, write_failure
from declarative_train.run.messages import NodeStatus
from declarative_train.run.processes import exit_unsaved, print_stopping, report, resume_hint, say
from declarative_train.run.rank_job import RankJob, SinkFactory, Work
from declarative_train.run.session import Recompile, Session
from declarative_train.run.signals import EXIT_FAILED, StopRequest, late_reason
from declarative_train.run.storage.run_lock import RunLock

if TYPE_CHECKING:
    from declarative_train.engine.launchers import Seat
    from declarative_train.plan.plan import Plan
    from declarative_train.run.agent import Head
    from declarative_train.run.rank import FailureContext


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run: its exit code, its folder (None if it could not be created), and the lines of a failure message,
    which the caller prints."""

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
    """Run a plan with `launch`, which explains the arguments. Print the message of a failure on standard error, and
    return the exit code."""
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
    seat: Seat | None = None,
    head: Head | None = None,
    recompile: Recompile | None = None,
    work: Work | None = None,
) -> Outcome:
    """Run a plan and return how it ended.

    `resume`      None for a new run, `auto`, or the path of a run or checkpoint
    `max_steps`   number of steps after which this session ends
    `sinks`       function that opens the sinks; None: those of the terminal and of the plan
    `hosted`      the run must not end this process (a notebook): a second interrupt raises KeyboardInterrupt
    `folder`      the run's folder; None: a new one among the runs of the recipe
    `seat`        on several nodes: index and address of this node, which is node 0; None: one node
    `head`        the key-value store that this node serves to the others
    `recompile`   function from a number of nodes to the plan for it; None: the number is fixed
    `work`        function that the ranks call instead of training
    """
    lock = RunLock()
    session: Session | None = None
    try:
        check_seat(plan, seat)
        session = Session(
            plan,
            lock,
            resume=resume,
            max_steps=max_steps,
            quiet=quiet,
            sinks=sinks,
            hosted=hosted,
            folder=folder,
            recompile=recompile,
            work=work,
        )
        if plan.layout.is_one_process and seat is None:
            here = NodeStatus("0", 0, socket.gethostname(), 0 if session.needs_no_gpu else num_gpus())
            code, why = run_here(session.make_job([here]))
        else:
            from declarative_train.run.agent import lead

            code, why = lead(session, seat, head)
        return Outcome(code, session.run_dir, tuple(why))
    except (RunFailure, OSError) as error:
        run_dir = None if session is None else session.run_dir
        return Outcome(EXIT_FAILED, run_dir, (f"dtrain: {explain(error, Path(plan.logging.dir))}",))
    finally:
        lock.release()


def check_seat(plan: Plan, seat: Seat | None) -> None:
    """Raise RunFailure if the plan is for several machines and this process does not know its index among them."""
    if plan.layout.num_nodes > 1 and seat is None:
        raise RunFailure(
            f"the plan is for {plan.layout.num_nodes} machines; help: start it on each, with the machine's number "
            "(from 0) as NODE and the address of machine 0 as HEAD: dtrain run RECIPE --node $NODE --head $HEAD"
        )


def exit_late(job: RankJob, context: FailureContext, watch: StopRequest) -> NoReturn:
    """Exit this process without a checkpoint, because a step or a save did not end in time after a request to stop."""
    exit_unsaved(job, late_reason(), loses=context.has_stepped, number=watch.number)


def run_here(job: RankJob) -> tuple[int, list[str]]:
    """Run the plan in this process, as the only rank and without a process group (modes `single` and `dp`). Return the
    exit code and the lines of a failure message."""
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
        return (job.work or run_rank)(job, context, lambda: watch.is_asked), []
    except BaseException as error:  # DCP's CheckpointException does not derive from Exception
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise
        failure = describe_failure(error, 0, context.stage, context.step, job.run_dir)
        write_failure(job.failures_dir, failure)
        return EXIT_FAILED, [*report(job, failure, 1), *resume_hint(job)]
    finally:
        watch.restore()
