"""Ranks on this machine: started after the imports by torch's elastic launcher, watched, told apart when they fail.

They are forked, which costs next to nothing. Where a fork is not safe they are spawned, and import everything anew:
on macOS, whose system libraries do not survive one, and where this process has used CUDA, which cannot be had a second
time in a child, or autograd with its threads for devices.
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
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from declarative_train.core.amounts import counted
from declarative_train.core.printable import in_lines
from declarative_train.core.run_files import EVENTS
from declarative_train.core.secrets import masked
from declarative_train.engine.devices import bind_to_gpu, device_of, safe_threads, start_autograd, threads_per_rank
from declarative_train.engine.failures import (
    VICTIM_WAIT_S,
    Failure,
    RunFailure,
    describe_failure,
    headline,
    read_failures,
    without_answer,
    write_failure,
)
from declarative_train.engine.time_limits import limit_s
from declarative_train.files.open_files import shown
from declarative_train.run.job import Job
from declarative_train.run.signals import EXIT_FAILED, STOP_SIGNALS, StopRequest, flush, late, leave, leave_now
from declarative_train.run.storage.run_lock import is_alive
from declarative_train.run.streams import replace_streams

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

    from declarative_train.data.shared import Offer

OUTCOME, LATE = "outcome.json", "late"
FORKS_TIMEOUT_S = 60.0
DEAF_S = 5.0  # longer than the grace: a rank that has not even heard by then does not run Python any more
QUIET_P2P = "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"  # torch-facts, section 9
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def launch_ranks(job: Job) -> tuple[int, list[str]]:
    """Start the plan's ranks here, wait for all; their exit code, and the lines of the first failure."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a parent with an OpenMP pool must not fork (torch-facts, section 4)
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from declarative_train.data.shared import offered
    from declarative_train.engine.axes.replicate import are_alone
    from declarative_train.run.rendezvous import launch_config

    if not are_alone(job.plan):
        import torch._dynamo  # DDP, fully_shard and schedules need it: once here, and not in every rank
    silence_loggers()
    num_ranks = len(job.plan.layout.ranks)
    method = start_method(job.device_kind)
    scratch = job.run_dir / "launch"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(job.failures_dir, ignore_errors=True)
    scratch.mkdir(parents=True)
    threads = threads_per_rank(num_ranks)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)  # one machine: no look-up of its name
    watch = StopRequest(
        leave=False, on_first=lambda: stop_ranks(job, scratch), on_second=lambda: kill_ranks(job, scratch)
    )
    handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGQUIT)}
    watch.install()
    code: int | None = None
    deaths: dict[int, int] = {}
    try:
        launch = elastic_launch(launch_config(num_ranks, scratch, method), rank_main)
        with nullcontext() if method == "fork" else offered(job.plan.data) as made:
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
        code = outcome(scratch)
    said: list[str] = []
    if code is None:
        code = EXIT_FAILED
        said = failure_in_words(job, scratch, deaths, was_asked=watch.is_asked)
    shutil.rmtree(scratch, ignore_errors=True)
    return code, said


def import_for_ranks() -> None:
    """What `launch_ranks` needs, and every rank would import for itself."""
    for name in ("fsspec", "torch.distributed.launcher.api", f"{__package__}.rank", f"{__package__}.rendezvous"):
        import_module(name)


def start_method(device_kind: str) -> Literal["fork", "spawn"]:
    return "spawn" if sys.platform == "darwin" or spoils(device_kind) else "fork"


def spoils(device_kind: str) -> bool:
    """Whether a forked child of this process could not train: CUDA was used here, in a run or where the number of GPUs
    is not known without it (no NVML, MIG), or autograd has started a thread for a device. A child is asked: what torch
    keeps on it in the parent has changed from version to version."""
    child = os.fork()
    if child == 0:
        answer = 1
        try:
            import torch

            start_autograd()  # which raises where threads were started
            answer = int(device_kind == "cuda" and torch.cuda._is_in_bad_fork())
        finally:
            os._exit(answer)
    return os.waitpid(child, 0)[1] != 0


def rank_main(job: Job, num_threads: int, method: str, shared: Offer | None = None) -> int:
    """In the rank. It leaves by returning: a forked child then ends by `os._exit` (torch-facts, section 4)."""
    import torch

    from declarative_train.run.rank import FailureContext, run_rank

    rank, parent = int(os.environ["RANK"]), os.getppid()
    scratch = job.run_dir / "launch"
    if method == "spawn":
        atexit.register(os._exit, 0)  # before torch's own threads can abort the end of the interpreter
        replace_streams()
        silence_loggers()
    watch = StopRequest(
        is_closing=lambda: is_sibling_gone(scratch, job.failures_dir),
        on_first=lambda: confirm_request(scratch, rank),
        on_late=lambda: leave_late(scratch),
    )
    watch.install()
    announce(scratch, rank)
    context = FailureContext(rank)
    try:
        torch.set_num_threads(num_threads)
        if shared is not None:
            from declarative_train.data.shared import accept

            accept(job.plan.data, shared)
        wait_for_forks(scratch, len(job.plan.layout.ranks))
        join_process_group(device_of(job.plan.layout.ranks[rank], job.device_kind))
        code = run_rank(job, context, lambda: watch.is_asked)
    except BaseException as error:
        failure = describe_failure(error, rank, context.stage, context.step, job.run_dir)
        write_failure(job.failures_dir, failure)
        flush()
        if failure.is_peer_loss:
            time.sleep(VICTIM_WAIT_S)
        leave(EXIT_FAILED)
    if rank == 0:
        (scratch / OUTCOME).write_text(json.dumps({"code": code}))
    watch.finish()
    flush()
    threading.Thread(target=leave_after, args=(parent, code), name="parent", daemon=True).start()
    return code


def leave_after(parent: int, code: int) -> None:
    """torch's wrapper around a rank waits until the parent has read what the rank returned: for ever, where that was
    killed."""
    while os.getppid() == parent:
        time.sleep(0.2)
    leave(code)


def announce(scratch: Path, rank: int) -> None:
    """This rank's process number, for siblings and for the parent. Written aside and renamed: it is there or not."""
    path = scratch / f"pid_{rank}"
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


def wait_for_forks(scratch: Path, num_ranks: int) -> None:
    """Until every sibling has been forked. Raises RunFailure when one does not come.

    A rank that connects to the parent's store makes a thread of the parent look up the name of the peer, under a lock
    of glibc that a fork does not reset: a sibling forked at that moment would wait for it for ever at its own first
    connection. So nobody connects before the last fork.
    """
    deadline = time.monotonic() + FORKS_TIMEOUT_S
    while not all((scratch / f"pid_{rank}").exists() for rank in range(num_ranks)):
        if time.monotonic() > deadline:
            raise RunFailure(f"not all of {counted(num_ranks, 'rank')} could be started within {FORKS_TIMEOUT_S:.0f} s")
        time.sleep(0.001)


def join_process_group(device: torch.device, store: Store | None = None) -> None:
    """From the environment that the launcher set, or over a store that is there already. CPU tensors travel by gloo
    beside NCCL, which is told its GPU, so that it meets the others now and what is wrong with it shows here.

    Without a timeout, a rank of another machine that was lost would be waited for half an hour.
    """
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
    """Then SIGTERM is the launcher's, which cleans up."""
    return any(failures.glob("rank_*.json")) or not all(map(is_alive, rank_pids(scratch).values()))


def rank_pids(scratch: Path) -> dict[Path, int]:
    return {path: int(path.read_text()) for path in scratch.glob("pid_*[0-9]")}


def tell_stopping(job: Job) -> None:
    """Somebody asked for the first time."""
    if not job.is_quiet:
        text = "dtrain: stopping at the end of a step, with a checkpoint; once more: at once"
        print(f"\n{text}" if sys.stderr.isatty() else text, file=sys.stderr)  # below the progress bar


def stop_ranks(job: Job, scratch: Path) -> None:
    """Somebody asked for the first time: the ranks hear of it."""
    tell_stopping(job)
    threading.Thread(target=ask_ranks, args=(scratch, len(job.plan.layout.ranks)), daemon=True).start()


def ask_ranks(scratch: Path, num_ranks: int) -> None:
    """All of them, those that are being started too. One that does not even hear is killed: its interpreter hangs."""
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


def kill_ranks(job: Job, scratch: Path) -> None:
    """The second Ctrl-C: now."""
    for pid in rank_pids(scratch).values():
        send(pid, signal.SIGKILL)
    if not job.is_hosted:
        leave_unsaved(job, "at once")


def leave_unsaved(job: Job, how: str) -> NoReturn:
    say(unsaved(job, how))
    leave(EXIT_FAILED)


def say(lines: Iterable[str]) -> None:
    """Print lines on standard error, without secrets and without what a terminal would act on."""
    for line in lines:
        print(in_lines(masked(line)), file=sys.stderr)


def unsaved(job: Job, how: str) -> list[str]:
    """The run ends amid a step, after somebody asked it to stop."""
    return [f"dtrain: stopped {how}: there is no checkpoint of the last steps", *way_on(job)]


def confirm_request(scratch: Path, rank: int) -> None:
    """Tell the parent that a rank has heard of the request to stop; the folder may have been deleted."""
    with suppress(OSError):
        (scratch / f"heard_{rank}").touch()


def leave_late(scratch: Path) -> None:
    """Write, in a rank, why the run ended amid a step: the parent prints it."""
    (scratch / LATE).write_text(late())
    leave_now()


def outcome(scratch: Path) -> int | None:
    """What rank 0 wrote when its work was done: it holds even if the launcher was told to stop meanwhile."""
    try:
        return int(json.loads((scratch / OUTCOME).read_text())["code"])
    except (OSError, ValueError, KeyError):
        return None


def failure_in_words(job: Job, scratch: Path, deaths: dict[int, int], *, was_asked: bool) -> list[str]:
    """One message: the first culprit, where, and what to look at."""
    num_ranks = len(job.plan.layout.ranks)
    failures = read_failures(job.failures_dir)
    culprits = [failure for failure in failures if not failure.is_peer_loss]
    if culprits:
        return report(job, culprits[0], num_ranks)
    killed = {rank: -code for rank, code in deaths.items() if code < 0}
    if was_asked and job.is_hosted and set(killed.values()) <= {signal.SIGKILL}:
        return unsaved(job, "at once")
    if killed:
        rank, number = next(iter(killed.items()))
        step = next((failure.step for failure in failures if failure.step), None)
        at = f", step {step}" if step else ""
        return [f"dtrain: the run failed: rank {rank}{at}: {_killed(number)}", *way_on(job)]
    if was_asked:
        return unsaved(job, (scratch / LATE).read_text() if (scratch / LATE).exists() else late())
    if silent := without_answer(failures, num_ranks):
        return [f"dtrain: the run failed: {silent}", *way_on(job)]
    if failures:
        return report(job, failures[0], num_ranks)
    return [f"dtrain: the run failed: a rank ended without a word (exit codes {deaths})"]


def report(job: Job, failure: Failure, num_ranks: int) -> list[str]:
    lines = [f"dtrain: the run failed: {headline(failure, num_ranks)}"]
    if failure.is_ours:
        lines.append(f"  traceback: {job.failures_dir / f'rank_{failure.rank}.txt'}")
    return [*lines, *way_on(job)]


def way_on(job: Job) -> list[str]:
    """Return the line that names the last whole checkpoint and how to go on from it; of a store that does not answer,
    the last one that the run has saved there."""
    from declarative_train.engine.checkpoints.store import CheckpointStore, hasty_damage
    from declarative_train.run.event import CheckpointSaved
    from declarative_train.run.sinks.jsonl import read_events

    store, how = job.place.checkpoints, f"the same command with --resume {job.run_dir}"
    try:
        entry, _ = CheckpointStore(store).newest(hasty_damage)
        return [] if entry is None else [f"  go on from step {entry.step}: {how}"]
    except Exception:  # of the client of the store, which has exceptions of its own
        saved = [event.step for event in read_events(job.run_dir / EVENTS) if isinstance(event, CheckpointSaved)]
    return [f"  go on from step {step}, when {shown(store)} can be reached: {how}" for step in saved[-1:]]


def _killed(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = "; the system kills a process when memory runs out" if number == signal.SIGKILL else ""
    return f"the process was killed by {name}{hint}"


def silence_loggers() -> None:
    """The launcher's loggers print every failure again, in their own words. And it warns, in each rank, where standard
    error is no file, as in notebooks and under pytest's capsys; where warnings are errors no rank would begin."""
    warnings.filterwarnings("ignore", message="Unable to enable fault handler")
    names = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.distributed.pipelining")
    for name in (*names, "torch.distributed.elastic.agent.server.api", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
