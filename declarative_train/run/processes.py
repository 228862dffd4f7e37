"""Ranks as processes on this machine: torch's elastic launcher starts them; this module watches them and reports
failures.

Ranks are forked after the imports, which is fast. Where a fork is not safe they are spawned and import everything
again: on macOS, whose system libraries do not survive a fork, and if this process has used CUDA, which cannot be
initialised again in a child, or autograd with its threads for devices.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from declarative_train.core.amounts import format_count
from declarative_train.core.names import EVENTS
from declarative_train.core.secrets import masked
from declarative_train.core.untrusted import in_lines
from declarative_train.engine.devices import bind_to_gpu, device_of, safe_threads, start_autograd, threads_per_rank
from declarative_train.engine.failures import (
    VICTIM_WAIT_S,
    Failure,
    RunFailure,
    describe_failure,
    headline,
    limit_s,
    read_failures,
    without_answer,
    write_failure,
)
from declarative_train.files.open_files import format_path
from declarative_train.run.rank_job import RankJob
from declarative_train.run.signals import (
    EXIT_FAILED,
    SIGNALLED,
    STOP_SIGNALS,
    StopRequest,
    code_without_save,
    exit_process,
    flush,
    late_reason,
)
from declarative_train.run.standard_streams import replace_streams
from declarative_train.run.storage.run_lock import is_alive

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

    from declarative_train.data.shared_sets import Offer

OUTCOME, LATE = "outcome.json", "late"
FORKS_TIMEOUT_S = 60.0
DEAF_S = 5.0  # after the grace period: a rank that has not confirmed the request by then no longer runs Python
QUIET_P2P = "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"  # torch-facts, section 9
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def launch_ranks(job: RankJob) -> tuple[int, list[str]]:
    """Start the plan's ranks and wait for all. Returns their exit code, and the lines of a failure message."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a parent with an OpenMP pool must not fork (torch-facts, section 4)
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from declarative_train.data.shared_sets import offer_sets

    # what every rank imports, torch's compiler above all, is imported once, before they are forked
    from declarative_train.engine.axes import shard  # noqa: F401
    from declarative_train.run import rank  # noqa: F401
    from declarative_train.run.local_rendezvous import launch_config

    silence_loggers()
    num_ranks = len(job.plan.layout.ranks)
    method = start_method(job.device_kind)
    scratch = job.run_dir / "launch"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(job.failures_dir, ignore_errors=True)
    scratch.mkdir(parents=True)
    threads = threads_per_rank(num_ranks)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)  # one machine: the name of the host need not be resolved
    watch = StopRequest(on_first=lambda: stop_ranks(job, scratch), on_second=lambda: kill_ranks(job, scratch))
    handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGQUIT)}
    watch.install()
    code: int | None = None
    deaths: dict[int, int] = {}
    try:
        launch = elastic_launch(launch_config(num_ranks, scratch, method), rank_main)
        with nullcontext() if method == "fork" else offer_sets(job.plan.data) as made:
            codes = launch(job, safe_threads(threads) if method == "fork" else threads, method, made)
        code = max(codes.values())
    except ChildFailedError as error:
        deaths = {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException:
        pass
    finally:
        watch.restore()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_num_threads(num_threads)
    if code is None:
        code = read_outcome(scratch)
    lines: list[str] = []
    if code is None:
        code, lines = explain_failure(job, scratch, deaths, asked_by=watch.number)
    shutil.rmtree(scratch, ignore_errors=True)
    return code, lines


def start_method(device_kind: str) -> Literal["fork", "spawn"]:
    return "spawn" if sys.platform == "darwin" or cannot_fork(device_kind) else "fork"


def cannot_fork(device_kind: str) -> bool:
    """Return whether a forked child of this process could not train: because CUDA was used here (by a run, or to count
    GPUs without NVML or with MIG), or because autograd has started a thread for a device. A forked child tests it, as
    torch's own record in the parent differs between versions."""
    child = os.fork()
    if child == 0:
        answer = 1
        try:
            import torch

            start_autograd()  # raises if threads were started
            if device_kind == "cuda":
                torch.cuda.init()  # type: ignore[no-untyped-call]  # raises if CUDA was used before the fork
            answer = 0
        finally:
            os._exit(answer)
    return os.waitpid(child, 0)[1] != 0


def rank_main(job: RankJob, num_threads: int, method: str, shared: Offer | None = None) -> int:
    """Run one rank in its own process, and return the exit code. A forked child exits by `os._exit` (torch-facts,
    section 4)."""
    import torch

    from declarative_train.run.rank import FailureContext, run_rank

    rank, parent = int(os.environ["RANK"]), os.getppid()
    scratch = job.run_dir / "launch"
    if method == "spawn":
        atexit.register(os._exit, 0)  # before torch's own threads can abort the end of the interpreter
        replace_streams()
        silence_loggers()
    context = FailureContext(rank)
    watch = StopRequest(
        is_closing=lambda: is_sibling_gone(scratch, job.failures_dir),
        on_first=lambda: confirm_request(scratch, rank),
        on_late=lambda: exit_late(scratch, context.has_stepped),
    )
    watch.install()
    announce(scratch, rank)
    try:
        torch.set_num_threads(num_threads)
        if shared is not None:
            from declarative_train.data.shared_sets import accept

            accept(job.plan.data, shared)
        wait_for_forks(scratch, len(job.plan.layout.ranks))
        join_process_group(device_of(job.plan.layout.ranks[rank], job.device_kind))
        code = run_rank(job, context, lambda: watch.is_asked)
    except BaseException as error:
        failure = describe_failure(error, rank, context.stage, context.step, job.run_dir)
        if not write_failure(job.failures_dir, failure) and not failure.is_peer_loss:
            say([f"dtrain: {headline(failure, len(job.plan.layout.ranks))}"])
        flush()
        if failure.is_peer_loss:
            time.sleep(VICTIM_WAIT_S)
        exit_process(EXIT_FAILED)
    if rank == 0:
        (scratch / OUTCOME).write_text(json.dumps({"code": code}))
    watch.finish()
    flush()
    threading.Thread(target=exit_with_parent, args=(parent, code), name="parent", daemon=True).start()
    return code


def exit_with_parent(parent: int, code: int) -> None:
    """Exit when the parent process has ended. torch's wrapper around a rank waits until the parent has read the result,
    which never happens if the parent was killed."""
    while os.getppid() == parent:
        time.sleep(0.2)
    exit_process(code)


def announce(scratch: Path, rank: int) -> None:
    """Write this rank's process id to a file that siblings and the parent read. The file is renamed when complete."""
    path = scratch / f"pid_{rank}"
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


def wait_for_forks(scratch: Path, num_ranks: int) -> None:
    """Wait until every sibling has been forked. Raises RunFailure if one does not start.

    When a rank connects to the parent's store, a thread of the parent looks up the peer's name under a lock of glibc,
    which a fork does not reset: a sibling forked at that moment would wait for the lock for ever. So no rank connects
    before the last fork.
    """
    deadline = time.monotonic() + FORKS_TIMEOUT_S
    while not all((scratch / f"pid_{rank}").exists() for rank in range(num_ranks)):
        if time.monotonic() > deadline:
            raise RunFailure(
                f"not all of {format_count(num_ranks, 'rank')} could be started within {FORKS_TIMEOUT_S:.0f} s"
            )
        time.sleep(0.001)


def join_process_group(device: torch.device, store: Store | None = None) -> None:
    """Initialise torch's process group: gloo for CPU tensors, NCCL for CUDA tensors. `store`: None takes it from the
    launcher's environment. NCCL gets its GPU here, so that it connects now and its errors appear here. The time limit
    is short: with torch's default, ranks would wait half an hour for a lost rank of another machine."""
    from torch import distributed

    settings: dict[str, Any] = {"timeout": timedelta(seconds=limit_s("DTRAIN_TIMEOUT_S"))}
    if store is not None:
        settings |= {"store": store, "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    if device.type == "cuda":
        bind_to_gpu(device)
        os.environ.setdefault(QUIET_P2P, "false")
        distributed.init_process_group("cpu:gloo,cuda:nccl", device_id=device, **settings)
    else:
        distributed.init_process_group("gloo", **settings)
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)


def is_sibling_gone(scratch: Path, failures: Path) -> bool:
    """Return whether another rank has failed or exited: a SIGTERM then comes from the launcher, not from the user."""
    return any(failures.glob("rank_*.json")) or not all(map(is_alive, rank_pids(scratch).values()))


def rank_pids(scratch: Path) -> dict[Path, int]:
    return {path: int(path.read_text()) for path in scratch.glob("pid_*[0-9]")}


def print_stopping(job: RankJob) -> None:
    """Print that the run will stop after this step."""
    if not job.is_quiet:
        text = "dtrain: stopping after this step, with a checkpoint; repeat the signal (Ctrl-C) to stop at once"
        print(f"\n{text}" if sys.stderr.isatty() else text, file=sys.stderr)  # below the progress bar


def stop_ranks(job: RankJob, scratch: Path) -> None:
    """Ask the ranks to stop, after the first signal."""
    print_stopping(job)
    threading.Thread(target=ask_ranks, args=(scratch, len(job.plan.layout.ranks)), daemon=True).start()


def ask_ranks(scratch: Path, num_ranks: int) -> None:
    """Send SIGTERM to all ranks, also to those that are still being started. A rank that does not confirm it is killed,
    as its interpreter hangs."""
    asked: dict[Path, int] = {}
    deadline = time.monotonic() + FORKS_TIMEOUT_S
    while len(asked) < num_ranks and time.monotonic() < deadline:
        for path, pid in rank_pids(scratch).items():
            if path not in asked:
                asked[path] = pid
                send(pid, signal.SIGTERM)
        time.sleep(0.01)
    deadline = time.monotonic() + limit_s("DTRAIN_GRACE_S") + DEAF_S
    while time.monotonic() < deadline:
        if len(list(scratch.glob("heard_*"))) == num_ranks:
            return
        time.sleep(0.1)
    for path, pid in asked.items():
        if not path.with_name(path.name.replace("pid", "heard")).exists():
            send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def kill_ranks(job: RankJob, scratch: Path) -> None:
    """Kill all ranks, after the second signal."""
    for pid in rank_pids(scratch).values():
        send(pid, signal.SIGKILL)
    if not job.is_hosted:
        exit_unsaved(job, "at once")


def exit_unsaved(job: RankJob, how: str, *, loses: bool = True, number: int | None = None) -> NoReturn:
    say([unsaved_message(how, loses=loses), *resume_hint(job)])
    exit_process(code_without_save(loses, number))


def say(lines: Iterable[str]) -> None:
    """Print lines on standard error, without secrets and control characters."""
    for line in lines:
        print(in_lines(masked(line)), file=sys.stderr)


def unsaved_message(how: str, *, loses: bool = True) -> str:
    """Return the message of a run that was asked to stop and ends in the middle of a step. `loses`: it has made steps
    since it was started."""
    lost = ": the last steps are in no checkpoint" if loses else ", before the first step: nothing is lost"
    return f"dtrain: stopped {how}{lost}"


def confirm_request(scratch: Path, rank: int) -> None:
    """Write a file that tells the parent that this rank received the request to stop."""
    with suppress(OSError):
        (scratch / f"heard_{rank}").touch()


def exit_late(scratch: Path, loses: bool) -> None:
    """Write, for the parent to print, why this rank exits in the middle of a step, and exit."""
    with suppress(OSError):  # the disk may be full
        (scratch / LATE).write_text(late_reason())
    exit_process(code_without_save(loses, signal.SIGTERM))


def read_outcome(scratch: Path) -> int | None:
    """Return the exit code that rank 0 wrote when it was done, else None. It is valid even if the launcher was stopped
    afterwards."""
    try:
        return int(json.loads((scratch / OUTCOME).read_text())["code"])
    except (OSError, ValueError, KeyError):
        return None


def explain_failure(
    job: RankJob, scratch: Path, deaths: dict[int, int], *, asked_by: int | None
) -> tuple[int, list[str]]:
    """Return the exit code, and the lines of one message: which rank caused the failure, where, and how to resume.
    `asked_by`: the signal that asked the run to stop, if any."""
    num_ranks = len(job.plan.layout.ranks)
    failures = read_failures(job.failures_dir)
    culprits = [failure for failure in failures if not failure.is_peer_loss]
    if culprits:
        return EXIT_FAILED, report(job, culprits[0], num_ranks)
    killed = {rank: -code for rank, code in deaths.items() if code < 0}
    if asked_by is not None and job.is_hosted and set(killed.values()) <= {signal.SIGKILL}:
        return EXIT_FAILED, [unsaved_message("at once"), *resume_hint(job)]
    if killed:
        rank, number = next(iter(killed.items()))
        step = next((failure.step for failure in failures if failure.step), None)
        at = f", step {step}" if step else ""
        lines = [f"dtrain: the run failed: rank {rank}{at}: {_describe_signal(number)}", *resume_hint(job)]
    elif asked_by is not None:
        loses = SIGNALLED + signal.SIGTERM not in deaths.values()
        why = (scratch / LATE).read_text() if (scratch / LATE).exists() else late_reason()
        return code_without_save(loses, asked_by), [unsaved_message(why, loses=loses), *resume_hint(job)]
    elif silent := without_answer(failures, num_ranks):
        lines = [f"dtrain: the run failed: {silent}", *resume_hint(job)]
    elif failures:
        lines = report(job, failures[0], num_ranks)
    else:
        why = f"a rank exited without a report in {job.failures_dir} (exit codes {deaths})"
        lines = [f"dtrain: the run failed: {why}", *resume_hint(job)]
    return EXIT_FAILED, lines


def report(job: RankJob, failure: Failure, num_ranks: int) -> list[str]:
    lines = [f"dtrain: the run failed: {headline(failure, num_ranks)}"]
    if failure.is_ours:
        lines.append(f"  traceback: {job.failures_dir / f'rank_{failure.rank}.txt'}")
    return [*lines, *resume_hint(job)]


def resume_hint(job: RankJob) -> list[str]:
    """Return the line that names the last complete checkpoint and the command that resumes from it. If the store cannot
    be reached, it is the last one that the run saved there."""
    from declarative_train.engine.checkpoints.store import CheckpointStore, hasty_damage
    from declarative_train.run.event import CheckpointSaved
    from declarative_train.run.sinks.jsonl import read_events

    store, how = job.place.checkpoints, f"the same command with --resume {job.run_dir}"
    try:
        entry, _ = CheckpointStore(store).newest(hasty_damage)
        return [] if entry is None else [f"  continue from step {entry.step}: {how}"]
    except Exception:  # the client of a remote store has its own exceptions
        saved = [event.step for event in read_events(job.run_dir / EVENTS) if isinstance(event, CheckpointSaved)]
    return [
        f"  continue from step {step}, as soon as {format_path(store)} can be reached: {how}" for step in saved[-1:]
    ]


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = "; the system kills a process when memory runs out" if number == signal.SIGKILL else ""
    return f"the process was killed by {name}{hint}"


def silence_loggers() -> None:
    """Silence the launcher's loggers, which would print every failure a second time, and its warning that stderr is not
    a file (as in notebooks and under pytest). If warnings are errors, that one would prevent ranks from starting."""
    warnings.filterwarnings("ignore", message="Unable to enable fault handler")
    names = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.distributed.pipelining")
    for name in (*names, "torch.distributed.elastic.agent.server.api", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
