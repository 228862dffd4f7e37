"""Ranks that a launcher started: `torchrun ... -m declarative_train run RECIPE`, srun, mpirun.

Rank 0 compiles the recipe and sends the plan to the others, so that an error is reported once. Before they have the
plan, the ranks communicate through the launcher's key-value store or, without one, through that of rank 0, which exits
last. The plan must have as many ranks as the launcher started."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from declarative_train.core.amounts import format_count
from declarative_train.core.secrets import list_variables, record_variable
from declarative_train.engine.checkpoints.store import CheckpointEntry, CheckpointStore, damage
from declarative_train.engine.devices import assign_devices, device_of, find_visible_devices, threads_per_rank
from declarative_train.engine.failures import (
    VICTIM_WAIT_S,
    NonFiniteLoss,
    RunFailure,
    describe_failure,
    describe_silent_ranks,
    explain,
    format_headline,
    read_failures,
    write_failure,
)
from declarative_train.engine.launchers import OF_TORCH, find_launcher
from declarative_train.plan.checkpoint_files import checkpoints_root
from declarative_train.run.launcher_rendezvous import has_agent_store, open_stores, put, take, take_all, take_once
from declarative_train.run.network import allow_connections, choose_interface
from declarative_train.run.processes import join_process_group, say, unsaved_message
from declarative_train.run.rank_job import RankJob, SinkFactory, check_disk, check_sinks, default_sinks
from declarative_train.run.signals import EXIT_FAILED, StopRequest, code_without_save, exit_process, late_reason
from declarative_train.run.storage.run_dir import RunPlace, open_place
from declarative_train.run.storage.run_lock import RunLock

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from declarative_train.data.spec import DataSpec
    from declarative_train.plan.plan import Plan
    from declarative_train.run.rank import FailureContext

Compile = Callable[[], "tuple[Plan | None, int]"]

JOB = "job"  # key of rank 0's job in the store
PARTING_S = 10.0  # longest wait for the other ranks to finish; one of them may have been killed


@dataclass(frozen=True, slots=True)
class BroadcastJob:
    """Message that rank 0 sends to all ranks before a run: the plan as JSON, and the run's folder (`place`). If
    `plan_json` is None, all ranks exit with `code`. `device_kind`: kind of device of all ranks. `indices`, `hosts`: for
    each rank, the index of its GPU and its machine. `notices`: lines to print."""

    plan_json: str | None
    code: int
    place: RunPlace | None = None
    device_kind: str = "cpu"
    indices: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    taken: tuple[tuple[str, str], ...] = ()  # environment variables that recipes used, with values


def run_as_rank(
    compile_plan: Compile,
    *,
    resume: str | None = None,
    max_steps: int | None = None,
    quiet: bool = False,
    sinks: SinkFactory | None = None,
    folder: Path | None = None,
    on_end: Callable[[Path], None] = lambda run_dir: None,
) -> NoReturn:
    """Run this process as one rank and exit. `compile_plan`: called by rank 0, returns (plan, exit code); without a
    plan, all ranks exit with this code. `folder`: the run's folder; None: a new one. `on_end`: called by rank 0 at the
    end, with the run's folder. The others are as for `launch` (`run/launch.py`)."""
    from declarative_train.run.rank import FailureContext, run_rank

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    context, job, lock, broadcaster = FailureContext(rank), None, RunLock(), None
    watch = StopRequest(on_late=lambda: _exit_late(context, watch))
    watch.install()
    try:
        visible = find_visible_devices()
        store, lasting = open_stores(rank, world, visible)
        if rank == 0:
            broadcaster = _Broadcaster(store, world)
            broadcaster.send(_prepare(compile_plan, resume, broadcaster, lock, folder, lasting))
        broadcast = _receive(store, rank, visible.host)
        if broadcast.plan_json is None:
            wait_for_others(store, rank, world)
            exit_process(broadcast.code)
        job = _job(broadcast, rank, max_steps, sinks, quiet)
        if broadcast.hosts.index(visible.host) == rank:
            check_disk(job, visible.host, broadcast.hosts)
        join(job, rank, visible.host, broadcast.hosts, store)
        share_sets(job.plan.data, rank, visible.host, broadcast.hosts, store)
        code = run_rank(job, context, lambda: watch.is_asked)
        wait_for_others(store, rank, world)
    except BaseException as error:
        failure = describe_failure(error, rank, context.stage, context.step, None if job is None else job.run_dir)
        if job is not None:
            write_failure(job.failures_dir, failure)
        if failure.is_peer_loss:
            time.sleep(VICTIM_WAIT_S)
            if job is not None:
                _report_silent(job, rank, broadcast.hosts)
        elif rank == 0 or not isinstance(error, NonFiniteLoss):  # all ranks raise it at the same step
            print(f"dtrain: the run failed: {format_headline(failure, world)}", file=sys.stderr)
            if failure.is_ours:
                print(failure.trace, file=sys.stderr)
        if broadcaster is not None and not broadcaster.is_done:
            broadcaster.send(BroadcastJob(None, EXIT_FAILED))
            wait_for_others(store, rank, world)
        code = EXIT_FAILED
    lock.release()
    try:
        if rank == 0 and job is not None:
            on_end(job.run_dir)
    finally:
        exit_process(code)


def _exit_late(context: FailureContext, watch: StopRequest) -> None:
    """Exit, because no step ended in time after a request to stop. Rank 0 prints the reason."""
    if context.rank == 0:
        say([unsaved_message(late_reason(), loses=context.has_stepped)])
    exit_process(code_without_save(context.has_stepped, watch.number))


def _report_silent(job: RankJob, rank: int, hosts: tuple[str, ...]) -> None:
    """Print which ranks do not answer, according to the failure reports of the others. All ranks call this, but only
    the lowest rank with a report prints. Nothing is printed if the machines do not share the folder of the reports.
    `hosts`: the machine of each rank."""
    failures = read_failures(job.failures_dir)
    is_shared = len(set(hosts)) == 1 or (job.plan.checkpoint is not None and job.place.elsewhere is None)
    if is_shared and failures and rank == min(failure.rank for failure in failures):
        silent = describe_silent_ranks(failures, len(hosts))
        if silent is not None:
            print(f"dtrain: the run failed: {silent}", file=sys.stderr)


def wait_for_others(store: Store, rank: int, world: int) -> None:
    """On rank 0, wait until all `world` ranks are done; on any other rank, report to the store that it is done. Rank 0
    serves the store, so a rank that used the store after rank 0 exited would fail. Do nothing if the launcher serves
    the store."""
    if has_agent_store():
        return
    if rank != 0:
        put(store, f"left/{rank}", True)
        return
    with suppress(RuntimeError):  # torch.distributed.DistStoreError, if not all are done within this time
        store.wait([f"left/{other}" for other in range(1, world)], timedelta(seconds=PARTING_S))


def join(job: RankJob, rank: int, host: str, hosts: tuple[str, ...], store: Store) -> None:
    """Set the number of threads and gloo's network interface of this rank, and join the process group. `hosts`: the
    machine of each rank."""
    import torch

    layout = job.plan.layout
    torch.set_num_threads(threads_per_rank(hosts.count(host)))
    allow_connections()
    choose_interface(None if layout.num_nodes == 1 and len(set(hosts)) == 1 else os.environ["MASTER_ADDR"])
    join_process_group(device_of(layout.ranks[rank], job.device_kind, job.device_index), store)


def share_sets(data: DataSpec, rank: int, host: str, hosts: tuple[str, ...], store: Store) -> None:
    """Share in-memory samples between the ranks of one machine: the first of these ranks prepares them, and the others
    map its memory. `host`: this machine. `hosts`: the machine of each rank. The first rank raises DataError if the
    preparation fails; the others raise it when they prepare the samples later."""
    from declarative_train.data.shared_sets import accept, offer

    first = hosts.index(host)
    if hosts.count(host) == 1:
        return
    if rank == first:
        made = None
        try:
            made = offer(data)
        finally:
            put(store, f"held/{first}", made)
    elif (made := take(store, f"held/{first}")) is not None:
        accept(data, made)


class _Broadcaster:
    """Sender of messages from rank 0 to all other ranks. `damage` asks all ranks to check a checkpoint together, and
    may be called several times. `send` sends the job to all ranks; it is called once, at the end."""

    def __init__(self, store: Store, world: int) -> None:
        self.store = store
        self.world = world
        self._number = -1
        self.is_done = False

    def send(self, job: BroadcastJob) -> None:
        self.is_done = True
        put(self.store, JOB, job)
        put(self.store, f"message/{self._number + 1}", JOB)

    def damage(self, entry: CheckpointEntry) -> str | None:
        """Check a checkpoint for damage, with the help of all ranks: each one reads some of the files. Return a
        description of the first damage, in the order of the ranks, or None."""
        self._number += 1
        for rank in range(1, self.world):
            put(self.store, f"share/{self._number}/{rank}", entry.share(rank, self.world))
        put(self.store, f"message/{self._number}", "share")
        mine = damage(entry.share(0, self.world))
        keys = [f"damage/{self._number}/{rank}" for rank in range(1, self.world)]
        return next(filter(None, [mine, *take_all(self.store, keys)]), None)


def _receive(store: Store, rank: int, host: str) -> BroadcastJob:
    """Wait for the job from rank 0 and return it. Until it arrives, check the checkpoint files that rank 0 assigns to
    this rank, and answer with a description of their damage, or with None."""
    for number in count():
        if take(store, f"message/{number}") == JOB:
            job: BroadcastJob = take_once(store, JOB, host)
            return job
        if rank != 0:
            put(store, f"damage/{number}/{rank}", damage(take(store, f"share/{number}/{rank}")))
    raise AssertionError


def _prepare(
    compile_plan: Compile,
    resume: str | None,
    broadcaster: _Broadcaster,
    lock: RunLock,
    folder: Path | None,
    lasting: Store,
) -> BroadcastJob:
    """Return the job for all ranks: the compiled plan, the devices, the run's folder and the checkpoint. Only rank 0
    calls this.

    `resume`: the checkpoint or run that the user chose. `lasting`: store that is kept when the launcher restarts the
    ranks. If an earlier start wrote its run to this store, that run is continued, whatever `resume` is."""
    from declarative_train.plan.codec import to_json

    plan, code = compile_plan()
    if plan is None:
        return BroadcastJob(None, code)
    try:
        check_world(plan, broadcaster.world)
        all_visible = take_all(broadcaster.store, [f"devices/{rank}" for rank in range(broadcaster.world)])
        choice = assign_devices(plan.layout, all_visible)
        check_sinks(plan)
        if lasting.check(["run"]):
            folder, origin = take(lasting, "run")
            resume = "auto"
            if origin is not None and not CheckpointStore(checkpoints_root(str(folder))).entries()[0]:
                folder, resume = None, origin
        place = open_place(plan, resume, lock, broadcaster.damage, folder)
        put(lasting, "run", (place.run_dir, None if place.entry is None else place.entry.path))
    except (RunFailure, OSError) as error:
        lock.release()
        print(f"dtrain: {explain(error)}", file=sys.stderr)
        return BroadcastJob(None, EXIT_FAILED)
    notices = () if choice.notice is None else (choice.notice,)
    hosts = tuple(visible.host for visible in all_visible)
    return BroadcastJob(to_json(plan), 0, place, choice.kind, choice.indices, hosts, notices, list_variables())


def check_world(plan: Plan, num_started: int) -> None:
    """Raise RunFailure if `num_started`, the number of started ranks, differs from the number of ranks in the plan."""
    wanted, launcher = len(plan.layout.ranks), find_launcher()
    if wanted == num_started:
        return
    if launcher is OF_TORCH:
        fix = f"--nnodes {plan.layout.num_nodes} --nproc-per-node {wanted // plan.layout.num_nodes}, or "
    elif wanted > 1:
        fix = f"start {wanted}, or "
    else:  # the user may have wanted many runs of one process each
        fix = f"`env -u {launcher.rank} dtrain run ...` for separate runs, or "
    raise RunFailure(
        f"the plan is for {format_count(wanted, 'rank')} ({plan.layout.mode}), {launcher.name} started {num_started}; "
        f"help: {fix}change layout.gpus"
    )


def _job(broadcast: BroadcastJob, rank: int, max_steps: int | None, sinks: SinkFactory | None, quiet: bool) -> RankJob:
    from declarative_train.plan.codec import from_json

    assert broadcast.plan_json is not None
    assert broadcast.place is not None
    for name, value in broadcast.taken:
        record_variable(name, value)
    plan = from_json(broadcast.plan_json)
    return RankJob(
        plan,
        broadcast.device_kind,
        broadcast.place,
        max_steps,
        sinks or default_sinks(quiet, plan.logging.sinks, plan.logging.plugins),
        broadcast.notices,
        device_index=broadcast.indices[rank] if broadcast.indices else None,
    )
