"""Ranks that somebody else started: `torchrun ... -m declarative_train run RECIPE`.

Rank 0 compiles and sends the plan to the others, so that a mistake is reported once; the world must be the plan's.
Every rank leaves by `os._exit`: torchrun's own code and report stand.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from declarative_train.runtime.devices import choose_device, num_gpus, threads_per_rank
from declarative_train.runtime.failures import (
    VICTIM_WAIT_S,
    NonFiniteLoss,
    RunFailure,
    describe_failure,
    explain,
    headline,
    write_failure,
)
from declarative_train.runtime.job import Job, SinkFactory, default_sinks
from declarative_train.runtime.processes import join_process_group
from declarative_train.runtime.run_dir import Place, find_place, make_run_dir
from declarative_train.runtime.signals import EXIT_FAILED, StopRequest, leave
from declarative_train.terms.amounts import counted

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

Compile = Callable[[], "tuple[Plan | None, int]"]


@dataclass(frozen=True, slots=True)
class Sent:
    """What rank 0 sends: a plan as JSON and where to write, or None and the code that all leave with."""

    plan_json: str | None
    code: int
    place: Place | None = None
    device_kind: str = "cpu"
    notices: tuple[str, ...] = ()


def run_as_rank(
    compile_plan: Compile,
    *,
    resume: str | None = None,
    max_steps: int | None = None,
    quiet: bool = False,
    sinks: SinkFactory | None = None,
) -> NoReturn:
    """This process is one rank; it does not return."""
    import torch

    from declarative_train.runtime.rank import Where, run_rank

    rank, local_ranks = int(os.environ["RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    watch, where, job = StopRequest(), Where(rank), None
    watch.install()
    try:
        torch.set_num_threads(threads_per_rank(local_ranks))
        available = num_gpus()
        join_process_group("cuda" if available >= local_ranks else "cpu")
        sent = _received(rank, compile_plan, resume, available)
        if sent.plan_json is None:
            leave(sent.code)
        job = _job(sent, max_steps, sinks or default_sinks(quiet))
        code = run_rank(job, where, lambda: watch.is_asked)
    except BaseException as error:
        failure = describe_failure(error, rank, where.stage, where.step, None if job is None else job.run_dir)
        if job is not None:
            write_failure(job.failures_dir, failure)
        if failure.is_peer_loss:
            time.sleep(VICTIM_WAIT_S)
        elif rank == 0 or not isinstance(error, NonFiniteLoss):  # which all ranks raise alike
            world = int(os.environ["WORLD_SIZE"])
            print(f"dtrain: the run failed: {headline(failure, world)}", file=sys.stderr)
            if failure.is_ours:
                print(failure.trace, file=sys.stderr)
        leave(EXIT_FAILED)
    leave(code)


def _received(rank: int, compile_plan: Compile, resume: str | None, available: int) -> Sent:
    """Rank 0's word, on every rank."""
    from torch import distributed

    words: list[Sent | None] = [_prepared(compile_plan, resume, available) if rank == 0 else None]
    distributed.broadcast_object_list(words, src=0)
    (sent,) = words
    assert sent is not None
    return sent


def _prepared(compile_plan: Compile, resume: str | None, available: int) -> Sent:
    """On rank 0, where alone anything is printed or written."""
    from declarative_train.plan.codec import to_json

    plan, code = compile_plan()
    if plan is None:
        return Sent(None, code)
    try:
        check_world(plan, int(os.environ["WORLD_SIZE"]))
        choice = choose_device(plan.layout, available)
        place = find_place(plan, resume)
        make_run_dir(place.run_dir, plan)
    except (RunFailure, OSError) as error:
        print(f"dtrain: {explain(error)}", file=sys.stderr)
        return Sent(None, EXIT_FAILED)
    notices = place.notices if choice.notice is None else (choice.notice, *place.notices)
    return Sent(to_json(plan), 0, place, choice.kind, notices)


def check_world(plan: Plan, num_started: int) -> None:
    """Raises RunFailure when torchrun started another number of ranks than the plan has."""
    wanted = len(plan.layout.ranks)
    if wanted != num_started:
        raise RunFailure(
            f"the plan is for {counted(wanted, 'rank')} ({plan.layout.mode}), torchrun started "
            f"{num_started}; help: --nnodes {plan.layout.num_nodes} --nproc-per-node "
            f"{wanted // plan.layout.num_nodes}, or another layout.gpus"
        )


def _job(sent: Sent, max_steps: int | None, sinks: SinkFactory) -> Job:
    from declarative_train.plan.codec import from_json

    assert sent.plan_json is not None
    assert sent.place is not None
    place = sent.place
    return Job(
        from_json(sent.plan_json), sent.device_kind, Path(place.run_dir), place.entry, max_steps, sinks, sent.notices
    )
