"""Failures of a run, the reports that ranks write about them, and the time limits after which ranks fail.

    RunFailure                 the machine does not fit the plan, or failed: one message, exit code 3
    ├── NonFiniteLoss          the loss became nan or infinite and the plan says stop
    ├── NoValidItem            an epoch in which every target was masked or ignored
    └── CheckpointFailure      a checkpoint that cannot be used
    PeerFailure                another rank failed and reports the reason
    DataError                  from `data`: the data are not those of the plan
    ComponentError             from `components`: the plan names a component that this version does not have
    anything else              a bug in this project or in a plugin: the traceback is written to a file

A failed rank writes a report before it exits. A rank that only lost its connection also waits, so that the parent
process first sees the exit of the rank that caused the failure (docs/torch-facts.md, section 4)."""

from __future__ import annotations

import errno
import json
import os
import re
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from declarative_train.components.registry import ComponentError
from declarative_train.core.amounts import in_ranges
from declarative_train.core.secrets import masked
from declarative_train.data.spec import DataError

# defaults of the environment variables, in seconds
LIMITS_S = {
    "DTRAIN_GRACE_S": 25.0,  # from a request to stop to the end of a step
    "DTRAIN_SAVE_S": 600.0,  # for a checkpoint in progress when the grace is over
    "DTRAIN_TIMEOUT_S": 600.0,  # for collective operations
    "DTRAIN_STORE_S": 300.0,  # for retries of a save to an object store
    "DTRAIN_START_S": 1800.0,  # for all nodes and ranks to start, and for the first to read the data and compile
}
Limit = Literal["DTRAIN_GRACE_S", "DTRAIN_SAVE_S", "DTRAIN_TIMEOUT_S", "DTRAIN_STORE_S", "DTRAIN_START_S"]
VICTIM_WAIT_S = 1.5
REASON = "reason.txt"
# parts of messages of gloo, TCPStore and NCCL when another process has exited
_PEER_LOSS = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "read error",
    "write error",
    "timed out",
    "recv_bytes",
    "remote process exited",
    "ncclremoteerror",
    "closed by remote peer",
    "store is closed",
    "aborted due to",
    "failed to recv",
    "failed to send",
    "watchdog",
)
# errors of NCCL that another rank did not cause
_OWN_NCCL = ("ncclsystemerror", "ncclinternalerror", "ncclinvalid", "ncclunhandledcudaerror")


class RunFailure(Exception):  # noqa: N818 (the word of the messages, and of the family above)
    """Failure with a message for the user, in the words of the recipe; not a bug."""


class NonFiniteLoss(RunFailure):
    """Failure: the loss is nan or infinite, and the recipe says `non_finite: stop`. `step`: the step with this loss,
    which may be earlier than the current one, because losses are read a few steps later."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class NoValidItem(RunFailure):
    """Failure: in a whole epoch, every target was masked or ignored."""


class CheckpointFailure(RunFailure):
    """Failure: a checkpoint is missing, unfinished, damaged, or of another model."""


class PeerFailure(Exception):  # noqa: N818 (as RunFailure)
    """Error of this rank that was caused by the failure of another rank."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Report of the failure of one rank. `stage`: pipeline stage of the rank, or None. `step`: the optimizer step in
    which it failed, or None outside of steps. `is_peer_loss`: the rank failed only because another rank exited.
    `is_ours`: the cause is a bug of this project or a plugin, so the user needs the traceback. `repeats`: the failure
    would happen again after a restart."""

    rank: int
    stage: int | None
    step: int | None
    time_ns: int  # monotonic: comparable on one machine
    kind: str  # the exception's class
    message: str
    is_peer_loss: bool
    is_ours: bool  # a bug: the traceback says more than the message
    trace: str
    repeats: bool = False  # it would happen again after a restart
    node: str | None = None  # name of the node, if there are several


_REPEATING = (RunFailure, DataError, ComponentError)
_NOT_OURS = (RunFailure, PeerFailure, DataError, ComponentError, OSError, MemoryError)


def describe_failure(
    error: BaseException, rank: int, stage: int | None, step: int | None, run_dir: Path | None = None
) -> Failure:
    """Return the report of `error`, which occurred on this rank. `stage`: pipeline stage of the rank, or None. `step`:
    current optimizer step; None outside of steps. `run_dir`: the run's folder; an error about a file in it gets a
    special message."""
    trace = masked("".join(traceback.format_exception(error)))
    error = _unwrap(error)
    is_known = isinstance(error, _NOT_OURS) or _is_out_of_memory(error) or _shorten_torch_error(error) is not None
    return Failure(
        rank=rank,
        stage=stage,
        step=error.step if isinstance(error, NonFiniteLoss) else step,
        time_ns=time.monotonic_ns(),
        kind=type(error).__name__,
        message=explain(error, run_dir),
        is_peer_loss=is_peer_loss(error),
        is_ours=not is_known,
        trace=trace,
        repeats=isinstance(error, _REPEATING),
    )


def _unwrap(error: BaseException) -> BaseException:
    """Return the error that caused `error`, if torch's pipeline code raised `error` because of another error. Otherwise
    return `error` itself."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    is_torchs = last is not None and str(last.tb_frame.f_globals.get("__name__")).startswith(_PIPELINING)
    return _unwrap(error.__cause__) if is_torchs and error.__cause__ is not None else error


_PIPELINING = "torch.distributed.pipelining"


def write_failure(directory: Path, failure: Failure) -> bool:
    """Write the report of a failure and its traceback to files in `directory`. Return False if they cannot be
    written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"rank_{failure.rank}.json").write_text(json.dumps(asdict(failure)), encoding="utf-8")
        (directory / f"rank_{failure.rank}.txt").write_text(failure.trace, encoding="utf-8")
    except OSError:
        return False
    return True


def write_reason(directory: Path, why: str) -> None:
    """Write to a file in `directory` why a run failed. This is for failures that no rank can report."""
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / REASON).write_text(why, encoding="utf-8")


def read_reason(directory: Path) -> str | None:
    """Return why a run failed. It is the text that `write_reason` wrote to `directory` or, without it, the message of
    the first report of a rank. None if there is neither."""
    with suppress(OSError):
        return (directory / REASON).read_text(encoding="utf-8")
    first = next(iter(read_failures(directory)), None)
    if first is None:
        return None
    return f"rank {first.rank}{f', step {first.step}' if first.step else ''}: {first.message}"


def read_failures(directory: Path) -> list[Failure]:
    """Return the reports of all ranks in `directory`. Ranks that failed themselves come before ranks that failed
    because of another rank; each kind is sorted by time."""
    found = []
    for path in sorted(directory.glob("rank_*.json")):
        try:
            found.append(Failure(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue
    return sorted(found, key=lambda failure: (failure.is_peer_loss, failure.time_ns))


def is_peer_loss(error: BaseException) -> bool:
    """Return whether this rank failed only because another rank exited. This is judged by the class and the text of
    `error`. It is always False for RunFailure and DataError."""
    if isinstance(error, RunFailure | DataError):
        return False
    if isinstance(error, PeerFailure):
        return True
    kind, text = type(error).__name__, str(error).lower()
    if kind in ("DistNetworkError", "DistStoreError"):
        return True
    if not isinstance(error, RuntimeError | ConnectionError):
        return False
    if any(words in text for words in _PEER_LOSS):
        return True
    return kind == "DistBackendError" and not any(words in text for words in _OWN_NCCL)


def explain(error: BaseException, run_dir: Path | None = None) -> str:
    """Return the message about an error for the user, in one line and without secrets. `run_dir`: the run's folder, by
    which errors about its files are recognised."""
    return masked(_explain_raw(error, run_dir))


def _explain_raw(error: BaseException, run_dir: Path | None) -> str:
    if isinstance(error, RunFailure | PeerFailure | DataError | ComponentError):
        return str(error)
    if _is_out_of_memory(error):
        return f"out of memory: {first_line(error)}; {_MEMORY_HELP}"
    special = _shorten_torch_error(error)
    if special is not None:
        return special
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the device{_place(error)}{_FREE_SOME}"
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror.lower()}{_place(error)}"
        is_ours = run_dir is not None and error.filename and Path(str(error.filename)).is_relative_to(run_dir)
        return f"cannot write to the run's folder, which `logging.dir` names: {text}" if is_ours else text
    return f"{type(error).__name__}: {first_line(error)}"


def _shorten_torch_error(error: BaseException) -> str | None:
    """Return a short message with a remedy for certain errors that torch describes in many lines. Return None for other
    errors."""
    if not isinstance(error, RuntimeError):
        return None
    text = str(error)
    if "inline_container.cc" in text:  # torch's file writer, which keeps no errno
        return f"a checkpoint cannot be written completely, as on a full disk{_FREE_SOME}"
    undetermined = re.match(r"(\S+) does not have a deterministic implementation", text)
    if undetermined:
        return (
            f"`{undetermined[1]}` is not deterministic on this device, but training.deterministic is true; "
            "help: set it to false, or use another layer or loss"
        )
    if "operation not supported" in text and "driver" in text.lower():
        return (
            f"{first_line(error)}; help: a GPU without virtual memory (some virtual GPUs, WSL) needs "
            "PYTORCH_ALLOC_CONF=expandable_segments:False"
        )
    if "nccl" not in text.lower() or type(error).__name__ != "DistBackendError":
        return None
    lines = [line.strip() for line in text.partition("Last error:")[2].splitlines() if line.strip()]
    lines += [line.strip() for line in text.splitlines() if line.startswith("nccl")]
    reason = lines[0] if lines else first_line(error)
    advice = next(
        (way for words, way in _NCCL_HELP.items() if words in reason.lower()), "set NCCL_DEBUG=INFO for details"
    )
    return f"NCCL: {reason}; help: {advice}"


_FREE_SOME = "; help: free some, or set logging.dir to another disk"
_SHARED_MEMORY_HELP = "raise the container's /dev/shm: docker run --shm-size=8g, or --ipc=host"
_NCCL_HELP = {
    "shared memory": _SHARED_MEMORY_HELP,
    "/dev/shm": _SHARED_MEMORY_HELP,
    "duplicate gpu": "two ranks have the same GPU: start one rank per GPU on each machine",
    "driver version is insufficient": "a newer driver, or torch built for an older CUDA",
}

_MEMORY_HELP = (
    "help: raise training.gradient_accumulation_steps, set training.activation_checkpointing: blocks, "
    "or shard the model with parallelism: fsdp"
)


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no message"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _MEMORY_WORDS)


def _place(error: OSError) -> str:
    return f" ({error.filename})" if error.filename else ""


# messages of torch on the CPU; of CUDA and NCCL; of cuBLAS and cuDNN
_MEMORY_WORDS = ("can't allocate memory", "out of memory", "status_alloc_failed")
_OF_ALL_RANKS = (NonFiniteLoss.__name__, NoValidItem.__name__)  # errors that concern all ranks


def describe_silent_ranks(failures: Sequence[Failure], num_ranks: int) -> str | None:
    """Return a sentence that names the ranks that wrote no failure report, because they hang or were killed.
    `failures`: the reports of the other ranks. Return None if a report has another cause than a lost connection to a
    rank. Also return None if all ranks wrote one, or none did."""
    silent = sorted(set(range(num_ranks)) - {failure.rank for failure in failures})
    if not (failures and silent and all(failure.is_peer_loss for failure in failures)):
        return None
    waiting = format_headline(min(failures, key=lambda failure: failure.time_ns), num_ranks)
    return f"{'ranks' if len(silent) > 1 else 'rank'} {in_ranges(silent)} did not answer; {waiting}"


def format_headline(failure: Failure, num_ranks: int) -> str:
    """Return the first line of a message about a failure, such as `rank 1 (stage 2), step 37: ...`. The rank is left
    out if there is only one (`num_ranks`)."""
    where = []
    if num_ranks > 1 and failure.kind not in _OF_ALL_RANKS:
        place = ", ".join(filter(None, [failure.node, None if failure.stage is None else f"stage {failure.stage}"]))
        where.append(f"rank {failure.rank}" + (f" ({place})" if place else ""))
    if failure.step is not None:
        where.append(f"step {failure.step}" if failure.step else "before the first step")
    return f"{', '.join(where)}: {failure.message}" if where else failure.message


def limit_s(name: Limit) -> float:
    """Return a time limit in seconds. `name`: the environment variable that sets it; if it is not set, return the
    default. Raises RunFailure if its value is not a positive number."""
    text = os.environ.get(name, "")
    try:
        value = float(text or LIMITS_S[name])
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise RunFailure(f"{name} is `{text}`, not a number of seconds above 0; help: {name}={LIMITS_S[name]:g}")
    return value
