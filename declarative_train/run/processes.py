"""Ranks as processes on this machine. torch's elastic launcher starts them; this module watches them and reports
failures.

Ranks are forked after the imports, which is fast. They are spawned, and import everything again, where a fork is
unsafe: on macOS, or if this process has used CUDA, or if autograd has started threads for devices."""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from declarative_train.core.names import EVENTS
from declarative_train.core.secrets import masked
from declarative_train.core.untrusted import in_lines
from declarative_train.engine.devices import bind_to_gpu, device_of, safe_threads, start_autograd, threads_per_rank
from declarative_train.engine.failures import (
    VICTIM_WAIT_S,
    Failure,
    describe_failure,
    describe_silent_ranks,
    format_headline,
    limit_s,
    write_failure,
    write_reason,
)
from declarative_train.files.open_files import format_path, local_path
from declarative_train.run.messages import NodeResult
from declarative_train.run.rank_job import RankJob
from declarative_train.run.signals import (
    EXIT_FAILED,
    SIGNALLED,
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
MOST_IN_MESH = 64
START_S = 60.0
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
DEAF_S = 5.0  # after the grace period; a rank that has not confirmed the request by then hangs
ANSWER_S = 10.0  # wait for an object store at the end of a run
QUIET_P2P = "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"  # torch-facts, section 9


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """Ranks that one node starts: `num_local` ranks, from rank `first` on. `round`: number of the start of all ranks of
    the run. `where`: address and port of the store through which all ranks connect. `scratch`: a folder on this machine
    for messages between the ranks and their agent."""

    job: RankJob
    round: int
    first: int
    num_local: int
    where: tuple[str, int]
    scratch: Path

    @property
    def num_ranks(self) -> int:
        return len(self.job.plan.layout.ranks)


class RoundEnded(Exception):  # noqa: N818 (no failure of this process)
    """Exception that ends the ranks of this node because the coordinator has ended the round (a start of all ranks)."""


def launch_ranks(ranks: NodeRanks, look: Callable[[], None]) -> tuple[int | None, dict[int, int]]:
    """Start the ranks of this node and wait for all of them. Return the run's exit code, and a dict from each failed
    rank to the exit code of its process. The run's exit code is None if the ranks failed or were stopped before rank 0
    ended. `look`: function that is called repeatedly while waiting. If it raises RoundEnded, the ranks are killed."""
    import torch
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from declarative_train.data.shared_sets import offer_sets

    # import once, before the ranks are forked, what all of them need (torch's compiler takes longest)
    from declarative_train.engine.axes import shard  # noqa: F401
    from declarative_train.run import rank  # noqa: F401
    from declarative_train.run.rendezvous import launch_config

    job, scratch = ranks.job, ranks.scratch
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a parent with an OpenMP pool must not fork (torch-facts, section 4)
    silence_loggers()
    method = start_method(job.device_kind)
    threads = threads_per_rank(ranks.num_local)
    code: int | None = None
    deaths: dict[int, int] = {}
    try:
        launch = elastic_launch(launch_config(ranks.num_local, scratch, method, ranks.where, look), rank_main)
        with nullcontext() if method == "fork" and ranks.first == 0 else offer_sets(job.plan.data) as made:
            codes = launch(ranks, safe_threads(threads) if method == "fork" else threads, method, made)
        code = max(codes.values())
    except ChildFailedError as error:
        deaths = {ranks.first + local: failure.exitcode for local, failure in error.failures.items()}
    except (SignalException, RoundEnded):
        pass
    finally:
        torch.set_num_threads(num_threads)
    return read_outcome(scratch) if code is None else code, deaths


def start_method(device_kind: str) -> Literal["fork", "spawn"]:
    return "spawn" if sys.platform == "darwin" or cannot_fork(device_kind) else "fork"


def cannot_fork(device_kind: str) -> bool:
    """Return whether a forked child of this process could not train on `device_kind`, because this process has used
    CUDA or its autograd has started threads. To find out, fork a child that tries to use both."""
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


def rank_main(ranks: NodeRanks, num_threads: int, method: str, shared: Offer | None = None) -> int:
    """Run one rank in its own process. Return the exit code; after a failure, report it and exit. `method`: how this
    process was started, `fork` or `spawn`. `shared`: in-memory samples that the parent prepared, or None."""
    import torch

    from declarative_train.run.heartbeat import record_collectives, start_heartbeat
    from declarative_train.run.rank import FailureContext, run_rank
    from declarative_train.run.rendezvous import connect_from_environment

    gc.freeze()  # a collection would write to, and so copy, all objects of the forking process: 0.2 s and 75 MB
    job, scratch, parent = ranks.job, ranks.scratch, os.getppid()
    rank = ranks.first + int(os.environ["LOCAL_RANK"])
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks.num_ranks)}
    if method == "spawn":
        atexit.register(os._exit, 0)  # exit at once: torch's threads could abort the interpreter's exit
        replace_streams()
        silence_loggers()
    context = FailureContext(rank)
    watch = StopRequest(
        is_closing=lambda: is_sibling_gone(scratch),
        on_first=lambda: confirm_request(scratch, rank),
        on_late=lambda: exit_late(scratch, context.has_stepped),
    )
    cancel_parent_death_signal()
    watch.install()
    threading.Thread(target=exit_with_parent, args=(parent,), name="parent", daemon=True).start()
    announce(scratch, rank)
    try:
        torch.set_num_threads(num_threads)
        if shared is not None:
            from declarative_train.data.shared_sets import accept

            accept(job.plan.data, shared)
        record_collectives()
        start_heartbeat(context, scratch, job.failures_dir)
        store = round_store(connect_from_environment(), ranks.round)
        join_process_group(device_of(job.plan.layout.ranks[rank], job.device_kind), store)
        code = (job.work or run_rank)(job, context, lambda: watch.is_asked)
    except BaseException as error:
        failure = describe_failure(error, rank, context.stage, context.step, job.run_dir)
        write_failure(job.failures_dir, failure)
        if not write_failure(scratch, failure) and not failure.is_peer_loss:  # no report for the parent: a full disk
            say([f"dtrain: {format_headline(failure, ranks.num_ranks)}"])
        flush()
        if failure.is_peer_loss:
            time.sleep(VICTIM_WAIT_S)
        exit_process(EXIT_FAILED)
    if rank == 0:
        (scratch / OUTCOME).write_text(json.dumps({"code": code}))
    watch.finish()
    flush()
    return code


def cancel_parent_death_signal() -> None:
    """Cancel torch's request that the kernel sends SIGINT to this process when its parent exits. The signal would count
    as the user's request to stop, so a run whose agent was killed would not be restarted."""
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(SET_PARENT_DEATH_SIGNAL, 0)


def exit_with_parent(parent: int) -> None:
    """Wait until the process `parent` has exited, then exit too. Without its parent, nothing could stop or restart this
    rank."""
    while os.getppid() == parent:
        time.sleep(0.2)
    exit_process(EXIT_FAILED)


def round_store(store: Store, number: int) -> Store:
    """Return a view of `store` that shows only the entries of round `number`. (A round is one start of all ranks.)"""
    from torch.distributed.distributed_c10d import PrefixStore

    return PrefixStore(f"ranks/{number}", store)


def announce(scratch: Path, rank: int) -> None:
    """Write this rank's process id to a file in `scratch`, for the other ranks and the parent. The file appears
    complete, by a rename."""
    path = scratch / f"pid_{rank}"
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


def join_process_group(device: torch.device, store: Store) -> None:
    """Initialise torch's process group: gloo for CPU tensors, NCCL for CUDA tensors. The GPU is passed to NCCL, which
    then connects at once and reports its errors here. The time limit is `DTRAIN_TIMEOUT_S`, because torch's default
    would make ranks wait half an hour for a lost rank."""
    from torch import distributed

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > MOST_IN_MESH:  # else gloo connects all pairs at once: 330 ranks need all 1,024 file descriptors
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    limit = timedelta(seconds=limit_s("DTRAIN_TIMEOUT_S"))
    settings: dict[str, Any] = {"timeout": limit, "store": store, "rank": rank, "world_size": world}
    if device.type == "cuda":
        bind_to_gpu(device)
        os.environ.setdefault(QUIET_P2P, "false")
        distributed.init_process_group("cpu:gloo,cuda:nccl", device_id=device, **settings)
    else:
        distributed.init_process_group("gloo", **settings)
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)


def is_sibling_gone(scratch: Path) -> bool:
    """Return whether another rank of this machine has failed or exited. If so, a SIGTERM to this rank comes from the
    launcher, not from the user. `scratch`: the folder of messages between the ranks of this machine."""
    return any(scratch.glob("rank_*.json")) or not all(map(is_alive, rank_pids(scratch).values()))


def rank_pids(scratch: Path) -> dict[Path, int]:
    return {path: int(path.read_text()) for path in scratch.glob("pid_*[0-9]")}


def print_stopping(job: RankJob) -> None:
    """Print that the run will stop after the current step."""
    if not job.is_quiet:
        text = "dtrain: stopping after this step, with a checkpoint; repeat the signal (Ctrl-C) to stop at once"
        print(f"\n{text}" if sys.stderr.isatty() else text, file=sys.stderr)  # below the progress bar


def stop_ranks(ranks: NodeRanks) -> None:
    """Start a thread that asks the ranks of this node to save a checkpoint and exit."""
    threading.Thread(target=ask_ranks, args=(ranks.scratch, ranks.num_local), daemon=True).start()


def ask_ranks(scratch: Path, num_ranks: int) -> None:
    """Send SIGTERM to all `num_ranks` ranks of this node, and wait for those that are still starting. `scratch`: folder
    with files of their process ids. Kill the ranks that do not confirm the signal within a time limit, because they
    hang."""
    asked: dict[Path, int] = {}
    deadline = time.monotonic() + START_S
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


def kill_ranks(scratch: Path) -> None:
    for pid in rank_pids(scratch).values():
        send(pid, signal.SIGKILL)


def exit_unsaved(job: RankJob, how: str, *, loses: bool = True, number: int | None = None) -> NoReturn:
    say([unsaved_message(how, loses=loses), *resume_hint(job)])
    exit_process(code_without_save(loses, number))


def say(lines: Iterable[str]) -> None:
    """Print lines on standard error, with secrets masked and without control characters."""
    for line in lines:
        print(in_lines(masked(line)), file=sys.stderr)


def unsaved_message(how: str, *, loses: bool = True) -> str:
    """Return the message for a run that stopped without saving a checkpoint. `how`: words that follow `stopped`, for
    example `at once`. `loses`: the session has made steps, which are lost."""
    lost = ": the last steps are in no checkpoint" if loses else ", before the first step: nothing is lost"
    return f"dtrain: stopped {how}{lost}"


def confirm_request(scratch: Path, rank: int) -> None:
    """Write an empty file in `scratch`, which shows the parent that this rank received the request to stop."""
    with suppress(OSError):
        (scratch / f"heard_{rank}").touch()


def exit_late(scratch: Path, loses: bool) -> None:
    """Exit in the middle of a step, because the run did not stop in the time allowed. Write the reason to a file in
    `scratch`, which the parent process prints. `loses`: completed steps are lost, so the exit code is that of a failed
    run."""
    with suppress(OSError):  # the disk may be full
        (scratch / LATE).write_text(late_reason())
    exit_process(code_without_save(loses, signal.SIGTERM))


def read_outcome(scratch: Path) -> int | None:
    """Return the run's exit code, which rank 0 wrote to a file in `scratch` when it ended; None if there is no such
    file."""
    try:
        return int(json.loads((scratch / OUTCOME).read_text())["code"])
    except (OSError, ValueError, KeyError):
        return None


def explain_failure(job: RankJob, result: NodeResult, reason: str, *, asked_by: int | None) -> tuple[int, list[str]]:
    """Return the exit code and the message, as lines, for a failed round (a start of all ranks). The message says which
    rank caused the failure, and in which step. `reason`: why the coordinator ended the round, or "". `asked_by`: signal
    that asked the run to stop, or None."""
    num_ranks = len(job.plan.layout.ranks)
    failures, deaths = result.failures, result.deaths
    culprits = [failure for failure in failures if not failure.is_peer_loss]
    if culprits:
        return EXIT_FAILED, report(job, culprits[0], num_ranks)
    killed = {rank: -code for rank, code in deaths.items() if code < 0}
    if asked_by is not None and job.is_hosted and set(killed.values()) <= {signal.SIGKILL}:
        return EXIT_FAILED, [unsaved_message("at once")]
    step = next((failure.step for failure in failures if failure.step), None)
    at = f", step {step}" if step else ""
    if killed:
        rank, number = next(iter(killed.items()))
        where = result.nodes.get(rank)
        why = f"rank {rank}{'' if where is None else f' ({where})'}{at}: {_describe_signal(number)}"
    elif asked_by is not None:
        loses = SIGNALLED + signal.SIGTERM not in deaths.values()
        return code_without_save(loses, asked_by), [unsaved_message(result.late or late_reason(), loses=loses)]
    elif reason:
        why = reason if "step" in reason else f"{reason}{at}"
    elif silent := describe_silent_ranks(failures, num_ranks):
        why = silent
    elif failures:
        return EXIT_FAILED, report(job, failures[0], num_ranks)
    else:
        why = f"a rank exited without a report in {job.failures_dir} (exit codes {deaths})"
    write_reason(job.failures_dir, why)
    return EXIT_FAILED, [f"dtrain: the run failed: {why}"]


def report(job: RankJob, failure: Failure, num_ranks: int) -> list[str]:
    lines = [f"dtrain: the run failed: {format_headline(failure, num_ranks)}"]
    if failure.is_ours:
        lines.append(f"  traceback: {job.failures_dir / f'rank_{failure.rank}.txt'}")
    return lines


def resume_hint(job: RankJob) -> list[str]:
    """Return lines for the end of a message: the step of the last complete checkpoint, and the command that continues
    from it. If a remote checkpoint store does not answer within `ANSWER_S` seconds, the step is that of the last
    checkpoint that this run saved there. Return [] if there is no checkpoint."""
    from declarative_train.engine.checkpoints.store import CheckpointStore, hasty_damage
    from declarative_train.run.event import CheckpointSaved
    from declarative_train.run.sinks.jsonl import read_events

    store, how = job.place.checkpoints, f"the same command with --resume {job.run_dir}"
    found: Future[int | None] = Future()

    def look() -> None:
        try:
            entry, _ = CheckpointStore(store).newest(hasty_damage)
            found.set_result(None if entry is None else entry.step)
        except Exception as error:  # the client of a remote store has its own exceptions
            found.set_exception(error)

    threading.Thread(target=look, daemon=True).start()  # its client may try for minutes
    try:
        step = found.result(None if local_path(store) is not None else ANSWER_S)
        return [] if step is None else [f"  continue from step {step}: {how}"]
    except Exception:
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
    """Silence the loggers of torch's launcher, which would print every failure a second time. Also ignore its warning
    that stderr is not a file (as in notebooks): where warnings are errors, it would stop the ranks."""
    warnings.filterwarnings("ignore", message="Unable to enable fault handler")
    names = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.distributed.pipelining")
    for name in (*names, "torch.distributed.elastic.agent.server.api", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
