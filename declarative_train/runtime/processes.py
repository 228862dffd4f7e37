"""Ranks on this machine: forked after the imports by torch's elastic launcher, watched, told apart when they fail."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import NoReturn

from declarative_train.runtime.devices import threads_per_rank
from declarative_train.runtime.failures import (
    VICTIM_WAIT_S,
    Failure,
    RunFailure,
    describe_failure,
    headline,
    read_failures,
    write_failure,
)
from declarative_train.runtime.job import Job
from declarative_train.runtime.signals import EXIT_FAILED, StopRequest, flush, grace_s, leave
from declarative_train.terms.amounts import counted

OUTCOME = "outcome.json"
FORKS_TIMEOUT_S = 60.0
TRIAL_S = 2.0
CLOSING_GRACE_S = 1.0  # when a sibling is gone there is no step whose end could be waited for
LOCALHOST = "127.0.0.1"


def launch_ranks(job: Job) -> int:
    """Start the plan's ranks here, wait for all; their exit code, after the first failure was told."""
    import torch

    torch.set_num_threads(1)  # a parent with an OpenMP pool must not fork (torch-facts, section 4)
    import torch._dynamo  # DDP and fully_shard need it: once here, and not in every rank
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    silence_loggers()
    num_ranks = len(job.plan.layout.ranks)
    scratch = job.run_dir / "launch"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(job.failures_dir, ignore_errors=True)
    scratch.mkdir(parents=True)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine: no look-up of its name
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{LOCALHOST}:0",
        local_addr=LOCALHOST,
        max_restarts=0,
        monitor_interval=0.02,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch)),
        signals_to_handle="SIGTERM,SIGINT",
        shutdown_timeout=int(grace_s()) + 5,
    )
    watch = StopRequest(leave=False, on_first=lambda: tell_stopping(job), on_second=lambda: kill_ranks(job, scratch))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    watch.install()
    code: int | None = None
    deaths: dict[int, int] = {}
    try:
        codes = elastic_launch(config, rank_main)(job, safe_threads(threads_per_rank(num_ranks)))
        code = max(codes.values())
    except ChildFailedError as error:
        deaths = {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException:
        pass
    finally:
        watch.restore()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code is None:
        code = outcome(scratch)
    if code is None:
        code = EXIT_FAILED
        tell_failure(job, deaths, was_asked=watch.is_asked)
    shutil.rmtree(scratch, ignore_errors=True)
    return code


def rank_main(job: Job, num_threads: int) -> int:
    """In the forked rank. It leaves by returning: the child then ends by `os._exit` (torch-facts, section 4)."""
    import torch

    from declarative_train.runtime.rank import Where, run_rank

    rank = int(os.environ["RANK"])
    scratch = job.run_dir / "launch"
    announce(scratch, rank)
    watch = StopRequest(grace=lambda: rank_grace_s(scratch, job.failures_dir))
    watch.install()
    where = Where(rank)
    try:
        torch.set_num_threads(num_threads)
        wait_for_forks(scratch, len(job.plan.layout.ranks))
        join_process_group(job.device_kind)
        code = run_rank(job, where, lambda: watch.is_asked)
    except BaseException as error:
        failure = describe_failure(error, rank, where.stage, where.step, job.run_dir)
        write_failure(job.failures_dir, failure)
        flush()
        if failure.is_peer_loss:
            time.sleep(VICTIM_WAIT_S)
        leave(EXIT_FAILED)
    if rank == 0:
        (scratch / OUTCOME).write_text(json.dumps({"code": code}))
    watch.finished_code = code
    flush()
    if watch.is_asked:
        leave(code)  # the parent was told too, and no longer waits for a return
    return code


def safe_threads(wanted: int) -> int:
    """As many threads as a forked rank may use: 1 when this process has an OpenMP pool already, since that does not
    survive a fork and the rank would wait for it for ever. Nobody can ask for the pool, so a child tries."""
    import torch

    if wanted == 1:
        return 1
    child = os.fork()
    if child == 0:
        torch.set_num_threads(2)
        torch.exp(torch.rand(1 << 18))
        os._exit(0)
    deadline = time.monotonic() + TRIAL_S
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return wanted
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


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


def join_process_group(device_kind: str) -> None:
    """From the environment that the launcher set. CPU tensors travel by gloo beside NCCL."""
    from torch import distributed

    distributed.init_process_group("cpu:gloo,cuda:nccl" if device_kind == "cuda" else "gloo")
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)


def rank_grace_s(scratch: Path, failures: Path) -> float:
    """After SIGTERM: time to end the step and save, unless a sibling has gone (then it is the launcher cleaning up)."""
    gone = any(failures.glob("rank_*.json")) or any(not is_alive(pid) for pid in rank_pids(scratch))
    return CLOSING_GRACE_S if gone else grace_s()


def rank_pids(scratch: Path) -> list[int]:
    return [int(path.read_text() or 0) for path in scratch.glob("pid_*")]


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return _answers(pid)
    return state not in ("Z", "X")


def _answers(pid: int) -> bool:
    if os.path.isdir("/proc/self"):
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def tell_stopping(job: Job) -> None:
    """Somebody asked for the first time."""
    if not job.is_quiet:
        text = "dtrain: stopping at the end of a step, with a checkpoint; once more: at once"
        print(f"\n{text}" if sys.stderr.isatty() else text, file=sys.stderr)  # below the progress bar


def kill_ranks(job: Job, scratch: Path) -> None:
    """The second Ctrl-C: now."""
    for pid in rank_pids(scratch):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    leave_unsaved(job, "at once")


def leave_unsaved(job: Job, how: str) -> NoReturn:
    tell_unsaved(job, how)
    leave(EXIT_FAILED)


def tell_unsaved(job: Job, how: str) -> None:
    """The run ends amid a step, after somebody asked it to stop."""
    print(f"dtrain: stopped {how}: there is no checkpoint of the last steps", file=sys.stderr)
    tell_way_on(job)


def late() -> str:
    return f"as no step ended within {grace_s():g} s"


def outcome(scratch: Path) -> int | None:
    """What rank 0 wrote when its work was done: it holds even if the launcher was told to stop meanwhile."""
    try:
        return int(json.loads((scratch / OUTCOME).read_text())["code"])
    except (OSError, ValueError, KeyError):
        return None


def tell_failure(job: Job, deaths: dict[int, int], *, was_asked: bool) -> None:
    """One message: the first culprit, where, and what to look at."""
    num_ranks = len(job.plan.layout.ranks)
    failures = read_failures(job.failures_dir)
    culprits = [failure for failure in failures if not failure.is_peer_loss]
    if culprits:
        report(job, culprits[0], num_ranks)
        return
    killed = {rank: -code for rank, code in deaths.items() if code < 0}
    if killed:
        rank, number = next(iter(killed.items()))
        step = next((failure.step for failure in failures if failure.step), None)
        at = f", step {step}" if step else ""
        print(f"dtrain: the run failed: rank {rank}{at}: {_killed(number)}", file=sys.stderr)
        tell_way_on(job)
    elif was_asked:
        tell_unsaved(job, late())
    elif failures:
        report(job, failures[0], num_ranks)
    else:
        print(f"dtrain: the run failed: a rank ended without a word (exit codes {deaths})", file=sys.stderr)


def report(job: Job, failure: Failure, num_ranks: int) -> None:
    print(f"dtrain: the run failed: {headline(failure, num_ranks)}", file=sys.stderr)
    if failure.is_ours:
        print(f"  traceback: {job.failures_dir / f'rank_{failure.rank}.txt'}", file=sys.stderr)
    tell_way_on(job)


def tell_way_on(job: Job) -> None:
    """Where the last whole checkpoint is, and how to go on from it."""
    from declarative_train.plan.run_folder import CHECKPOINTS
    from declarative_train.runtime.checkpoint_store import CheckpointStore

    whole, _ = CheckpointStore(str(job.run_dir / CHECKPOINTS)).entries()
    if whole:
        print(f"  go on from step {whole[0].step}: the same command with --resume {job.run_dir}", file=sys.stderr)


def _killed(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = "; the system kills a process when memory runs out" if number == signal.SIGKILL else ""
    return f"the process was killed by {name}{hint}"


def silence_loggers() -> None:
    """The launcher's loggers print every failure again, in their own words."""
    names = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.distributed.pipelining")
    for name in (*names, "torch.distributed.elastic.agent.server.api", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
