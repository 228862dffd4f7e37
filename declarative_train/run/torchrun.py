"""Ranks that somebody else started: `torchrun ... -m declarative_train run RECIPE`, srun, mpirun.

Rank 0 compiles and sends the plan to the others, so that a mistake is reported once; the world must be the plan's.
They meet in the launcher's store: which device and which network a rank uses is only known with the plan. Where the
launcher has none, rank 0 holds it, and leaves last.
Every rank leaves by `os._exit`: torchrun's own code and report stand.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from declarative_train.core.amounts import counted
from declarative_train.core.secrets import list_variables, record_variable
from declarative_train.engine.checkpoints.store import CheckpointEntry, CheckpointStore, damage
from declarative_train.engine.devices import assign_devices, device_of, find_visible_devices, threads_per_rank
from declarative_train.engine.failures import (
    VICTIM_WAIT_S,
    NonFiniteLoss,
    RunFailure,
    describe_failure,
    explain,
    headline,
    read_failures,
    without_answer,
    write_failure,
)
from declarative_train.engine.launchers import OF_TORCH, find_launcher
from declarative_train.files.open_files import local_path
from declarative_train.plan.run_folder import checkpoints_root
from declarative_train.run.job import Job, SinkFactory, check_sinks, default_sinks
from declarative_train.run.meeting import has_agent_store, meet, put, take
from declarative_train.run.processes import LOOPBACK, join_process_group
from declarative_train.run.signals import EXIT_FAILED, StopRequest, leave
from declarative_train.run.storage.run_dir import Place, open_place
from declarative_train.run.storage.run_lock import RunLock

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from declarative_train.data.spec import DataSpec
    from declarative_train.plan.plan import Plan

Compile = Callable[[], "tuple[Plan | None, int]"]

PARTING_S = 10.0  # until the others have gone; one of them may have been killed
SHARED_DISK_S = 20.0  # until another machine sees a folder that was made on a shared disk


@dataclass(frozen=True, slots=True)
class BroadcastJob:
    """What rank 0 sends: a plan as JSON and where to write, or None and the code that all leave with."""

    plan_json: str | None
    code: int
    place: Place | None = None
    device_kind: str = "cpu"
    indices: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    taken: tuple[tuple[str, str], ...] = ()  # variables of the environment and their values, for what a rank writes


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
    """This process is one rank; it does not return. `folder` and `on_end` as in `launch.run`, on rank 0."""
    from declarative_train.run.rank import FailureContext, run_rank

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    watch, context, job, lock, words = StopRequest(), FailureContext(rank), None, RunLock(), None
    watch.install()
    try:
        seat = find_visible_devices()
        store, lasting = meet(rank, world, seat)
        if rank == 0:
            words = _Words(store, world)
            words.send(_prepared(compile_plan, resume, words, lock, folder, lasting))
        broadcast = _received(store, rank, world)
        if broadcast.plan_json is None:
            part(store, rank, world)
            leave(broadcast.code)
        job = _job(broadcast, rank, max_steps, sinks, quiet)
        check_disk(job, seat.host, broadcast.hosts)
        join(job, rank, seat.host, broadcast.hosts, store)
        share_sets(job.plan.data, rank, seat.host, broadcast.hosts, store)
        code = run_rank(job, context, lambda: watch.is_asked)
        part(store, rank, world)
    except BaseException as error:
        failure = describe_failure(error, rank, context.stage, context.step, None if job is None else job.run_dir)
        if job is not None:
            write_failure(job.failures_dir, failure)
        if failure.is_peer_loss:
            time.sleep(VICTIM_WAIT_S)
            if job is not None:
                _report_silent(job, rank, broadcast.hosts)
        elif rank == 0 or not isinstance(error, NonFiniteLoss):  # which all ranks raise alike
            print(f"dtrain: the run failed: {headline(failure, world)}", file=sys.stderr)
            if failure.is_ours:
                print(failure.trace, file=sys.stderr)
        if words is not None and not words.is_last_said:
            words.send(BroadcastJob(None, EXIT_FAILED))
            part(store, rank, world)
        code = EXIT_FAILED
    lock.release()
    try:
        if rank == 0 and job is not None:
            on_end(job.run_dir)
    finally:
        leave(code)


def _report_silent(job: Job, rank: int, hosts: tuple[str, ...]) -> None:
    """Report the ranks that have not answered, on the first of those that wait for them. A culprit reports itself."""
    failures = read_failures(job.failures_dir)
    is_shared = len(set(hosts)) == 1 or (job.plan.checkpoint is not None and job.place.elsewhere is None)
    if is_shared and failures and rank == min(failure.rank for failure in failures):
        silent = without_answer(failures, len(hosts))
        if silent is not None:
            print(f"dtrain: the run failed: {silent}", file=sys.stderr)


def part(store: Store, rank: int, world: int) -> None:
    """Before a rank leaves in order. Where rank 0 holds the store it waits for the others: one that still reads there
    would take its end for a failure, of which torch prints the C++ frames."""
    if has_agent_store():
        return
    if rank != 0:
        put(store, f"left/{rank}", True)
        return
    with suppress(RuntimeError):  # torch.distributed.DistStoreError: not all within this time
        store.wait([f"left/{other}" for other in range(1, world)], timedelta(seconds=PARTING_S))


def join(job: Job, rank: int, host: str, hosts: tuple[str, ...], store: Store) -> None:
    """Threads, network and process group of this rank."""
    import torch

    layout = job.plan.layout
    torch.set_num_threads(threads_per_rank(hosts.count(host)))
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        is_one_machine = layout.num_nodes == 1 and len(set(hosts)) == 1
        name = LOOPBACK if is_one_machine else interface_to(os.environ["MASTER_ADDR"])
        if name is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name
    join_process_group(device_of(layout.ranks[rank], job.device_kind, job.device_index), store)


def share_sets(data: DataSpec, rank: int, host: str, hosts: tuple[str, ...], store: Store) -> None:
    """Sets that are held in memory are prepared by the first rank of each machine, and mapped by the others there.
    Raises DataError on that rank; the others then find the same by themselves."""
    from declarative_train.data.shared import accept, offer

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


def check_disk(job: Job, host: str, hosts: tuple[str, ...], wait_s: float = SHARED_DISK_S) -> None:
    """Raises RunFailure where this machine does not see the folder that rank 0 has made on its own for checkpoints, now
    and not at the first save, hours later."""
    folder = local_path(job.place.checkpoints)
    if job.plan.checkpoint is None or host == hosts[0] or folder is None:
        return
    made = Path(folder).parent
    deadline = time.monotonic() + wait_s
    while not made.is_dir():
        if time.monotonic() > deadline:
            raise RunFailure(
                f"{host} does not see {made}, which rank 0 made on {hosts[0]} and every rank saves its part to; help: "
                "set logging.dir or checkpoint.dir to a disk that all machines share, or checkpoint.dir to a URL"
            )
        time.sleep(0.2)


def interface_to(address: str) -> str | None:
    """Return the network interface over which this machine reaches rank 0's, None where that is not known. gloo would
    take the one of this machine's name, and that is 127.0.1.1 on Debian and its like, where no other machine connects.

    Raises RunFailure on rank 0's own machine, where the address is such a one as well and several interfaces remain.
    """
    wanted = os.environ.get("NCCL_SOCKET_IFNAME", "")
    if wanted and wanted[0].isalnum() and "," not in wanted:
        return wanted
    own, found = _own_address_to(address), _addresses()
    if own is None or not found:
        return None
    if not own.is_loopback:
        return next((name for name, addresses in found.items() if own in addresses), None)
    others = [
        name
        for name, addresses in found.items()
        if any(not (each.is_loopback or each.is_link_local) for each in addresses)
    ]
    if len(others) > 1:
        raise RunFailure(
            f"{address} stands for {own} here, an address that no other machine reaches; help: give torchrun the "
            f"address of a network, or set GLOO_SOCKET_IFNAME on each machine, here one of {', '.join(others)}"
        )
    return others[0] if others else LOOPBACK


def _own_address_to(address: str) -> IPv4Address | IPv6Address | None:
    """Return the address that this machine sends from, None where no way leads there."""
    try:
        targets = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, target in targets:
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(target)  # nothing is sent
            return ip_address(probe.getsockname()[0].partition("%")[0])
    return None


def _addresses() -> dict[str, list[IPv4Address | IPv6Address]]:
    """Return the addresses of each interface, none of any where this system does not report them."""
    if sys.platform != "linux":
        return {}
    import fcntl

    found: dict[str, list[IPv4Address | IPv6Address]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, addresses in found.items():
            with suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(probe.fileno(), 0x8915, name.encode().ljust(40, b"\0"))  # SIOCGIFADDR
                addresses.append(IPv4Address(answer[20:24]))
    with suppress(OSError):  # the system has no IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            found[name].append(IPv6Address(bytes.fromhex(digits)))
    return found


class _Words:
    """What rank 0 says to all, in turn: checkpoints to look at, and at last what it sends."""

    def __init__(self, store: Store, world: int) -> None:
        self.store = store
        self.world = world
        self._number = -1
        self.is_last_said = False

    def send(self, word: BroadcastJob | CheckpointEntry) -> None:
        self._number += 1
        self.is_last_said = isinstance(word, BroadcastJob)
        put(self.store, f"word/{self._number}", word)

    def damage(self, entry: CheckpointEntry) -> str | None:
        """As `checkpoint_store.damage`, by all ranks: each reads its share of the files."""
        self.send(entry)
        mine = damage(entry, num_parts=self.world)
        keys = [f"damage/{self._number}/{rank}" for rank in range(1, self.world)]
        return next(filter(None, [mine, *(take(self.store, key) for key in keys)]), None)


def _received(store: Store, rank: int, world: int) -> BroadcastJob:
    """Rank 0's last word, on every rank."""
    for number in count():
        word = take(store, f"word/{number}")
        if isinstance(word, BroadcastJob):
            return word
        if rank != 0:
            put(store, f"damage/{number}/{rank}", damage(word, part=rank, num_parts=world))
    raise AssertionError


def _prepared(
    compile_plan: Compile, resume: str | None, words: _Words, lock: RunLock, folder: Path | None, lasting: Store
) -> BroadcastJob:
    """On rank 0, where alone anything is printed or written. An attempt after the first continues the run of the one
    before it, whatever the command says."""
    from declarative_train.plan.codec import to_json

    plan, code = compile_plan()
    if plan is None:
        return BroadcastJob(None, code)
    try:
        check_world(plan, words.world)
        seats = [take(words.store, f"seat/{rank}") for rank in range(words.world)]
        choice = assign_devices(plan.layout, seats)
        check_sinks(plan)
        if lasting.check(["run"]):
            folder, origin = take(lasting, "run")
            resume = "auto"
            if origin is not None and not CheckpointStore(checkpoints_root(str(folder))).entries()[0]:
                folder, resume = None, origin
        place = open_place(plan, resume, lock, words.damage, folder)
        put(lasting, "run", (place.run_dir, None if place.entry is None else place.entry.path))
    except (RunFailure, OSError) as error:
        lock.release()
        print(f"dtrain: {explain(error)}", file=sys.stderr)
        return BroadcastJob(None, EXIT_FAILED)
    notices = () if choice.notice is None else (choice.notice,)
    hosts = tuple(seat.host for seat in seats)
    return BroadcastJob(to_json(plan), 0, place, choice.kind, choice.indices, hosts, notices, list_variables())


def check_world(plan: Plan, num_started: int) -> None:
    """Raises RunFailure when another number of ranks was started than the plan has."""
    wanted, launcher = len(plan.layout.ranks), find_launcher()
    if wanted == num_started:
        return
    if launcher is OF_TORCH:
        fix = f"--nnodes {plan.layout.num_nodes} --nproc-per-node {wanted // plan.layout.num_nodes}, or "
    elif wanted > 1:
        fix = f"start {wanted}, or "
    else:  # perhaps many runs were meant, each of one process
        fix = f"`env -u {launcher.rank} dtrain run ...` for as many runs, each by itself, or "
    raise RunFailure(
        f"the plan is for {counted(wanted, 'rank')} ({plan.layout.mode}), {launcher.name} started {num_started}; "
        f"help: {fix}another layout.gpus"
    )


def _job(broadcast: BroadcastJob, rank: int, max_steps: int | None, sinks: SinkFactory | None, quiet: bool) -> Job:
    from declarative_train.plan.codec import from_json

    assert broadcast.plan_json is not None
    assert broadcast.place is not None
    for name, value in broadcast.taken:
        record_variable(name, value)
    plan = from_json(broadcast.plan_json)
    return Job(
        plan,
        broadcast.device_kind,
        broadcast.place,
        max_steps,
        sinks or default_sinks(quiet, plan.logging.sinks, plan.logging.plugins),
        broadcast.notices,
        device_index=broadcast.indices[rank] if broadcast.indices else None,
    )
