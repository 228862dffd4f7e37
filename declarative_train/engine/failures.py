"""What goes wrong while a run lasts, and how it is reported: once, by the rank where it began.

    RunFailure                 the world does not fit the plan, or the machine failed: one message, exit 3
    ├── NonFiniteLoss          the loss became nan or infinite and the plan says stop
    ├── NoValidItem            an epoch in which every target was masked or ignored
    └── CheckpointFailure      a checkpoint that cannot be used
    PeerFailure                another rank failed, and tells it itself
    DataError                  of the data room: the data are not those of the plan
    ComponentError             of the components: the plan names one that this version does not have
    anything else              a mistake of ours or of a plugin: the traceback goes to a file, its last line is shown

A rank that fails writes a file before it leaves. A rank that lost a peer writes one too, but waits before it leaves, so
that whoever watches sees the culprit go first (torch-facts, section 4).
"""

from __future__ import annotations

import errno
import json
import re
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from declarative_train.components.registry import ComponentError
from declarative_train.core.amounts import in_ranges
from declarative_train.core.secrets import masked
from declarative_train.data.spec import DataError

VICTIM_WAIT_S = 1.5
# what gloo, TCPStore and NCCL say when another process went away
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
# NCCL's own failures, which are not an echo of another rank's
_OWN_NCCL = ("ncclsystemerror", "ncclinternalerror", "ncclinvalid", "ncclunhandledcudaerror")


class RunFailure(Exception):  # noqa: N818 (the word of the messages, and of the family above)
    """A message in the recipe's words; nothing of ours is broken."""


class NonFiniteLoss(RunFailure):
    """`training.non_finite: stop`. `step`: of the loss, which is read later."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class NoValidItem(RunFailure):
    """A whole epoch whose masks and ignored targets left nothing to learn from."""


class CheckpointFailure(RunFailure):
    """A checkpoint that is torn, of another model, or not there."""


class PeerFailure(Exception):  # noqa: N818 (as RunFailure)
    """The echo of what another rank failed with."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's last words."""

    rank: int
    stage: int | None
    step: int | None
    time_ns: int  # monotonic: comparable on one machine
    kind: str  # the exception's class
    message: str
    is_peer_loss: bool
    is_ours: bool  # a bug: the traceback says more than the message
    trace: str


_NOT_OURS = (RunFailure, PeerFailure, DataError, ComponentError, OSError, MemoryError)


def describe_failure(
    error: BaseException, rank: int, stage: int | None, step: int | None, run_dir: Path | None = None
) -> Failure:
    trace = masked("".join(traceback.format_exception(error)))
    error = _cause(error)
    is_known = isinstance(error, _NOT_OURS) or _is_out_of_memory(error) or _special(error) is not None
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
    )


def _cause(error: BaseException) -> BaseException:
    """What went wrong in a stage of a pipeline: torch raises words of its own from it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    is_torchs = last is not None and str(last.tb_frame.f_globals.get("__name__")).startswith(_PIPELINING)
    return _cause(error.__cause__) if is_torchs and error.__cause__ is not None else error


_PIPELINING = "torch.distributed.pipelining"


def write_failure(directory: Path, failure: Failure) -> None:
    """Best effort: the disk may be what failed."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"rank_{failure.rank}.json").write_text(json.dumps(asdict(failure)), encoding="utf-8")
        (directory / f"rank_{failure.rank}.txt").write_text(failure.trace, encoding="utf-8")
    except OSError:
        pass


def read_failures(directory: Path) -> list[Failure]:
    """The first culprit first; victims of a lost peer after all culprits."""
    found = []
    for path in sorted(directory.glob("rank_*.json")):
        try:
            found.append(Failure(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue
    return sorted(found, key=lambda failure: (failure.is_peer_loss, failure.time_ns))


def is_peer_loss(error: BaseException) -> bool:
    """Whether this is the echo of another rank's end. Our own failures never are, whatever they quote."""
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
    """Return one line for the user, without secrets. `run_dir`: so that a file in it is known as the run's own."""
    return masked(_explained(error, run_dir))


def _explained(error: BaseException, run_dir: Path | None) -> str:
    if isinstance(error, RunFailure | PeerFailure | DataError | ComponentError):
        return str(error)
    if _is_out_of_memory(error):
        return f"out of memory: {first_line(error)}; {_MEMORY_HELP}"
    special = _special(error)
    if special is not None:
        return special
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the device{_place(error)}{_FREE_SOME}"
    if isinstance(error, OSError) and error.strerror:
        said = f"{error.strerror.lower()}{_place(error)}"
        is_ours = run_dir is not None and error.filename and Path(str(error.filename)).is_relative_to(run_dir)
        return f"cannot write to the run's folder, which `logging.dir` names: {said}" if is_ours else said
    return f"{type(error).__name__}: {first_line(error)}"


def _special(error: BaseException) -> str | None:
    """What torch says in many lines, and there is one thing to do about."""
    if not isinstance(error, RuntimeError):
        return None
    text = str(error)
    if "inline_container.cc" in text:  # torch's writer of files, which keeps no number of the error
        return f"a checkpoint cannot be written whole, as on a full disk{_FREE_SOME}"
    undetermined = re.match(r"(\S+) does not have a deterministic implementation", text)
    if undetermined:
        return (
            f"`{undetermined[1]}` gives other bits in every run on this device, and training.deterministic is true; "
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
    said = lines[0] if lines else first_line(error)
    way_on = next((way for words, way in _NCCL_HELP.items() if words in said.lower()), "NCCL_DEBUG=INFO says more")
    return f"NCCL: {said}; help: {way_on}"


_FREE_SOME = "; help: free some, or set logging.dir to another disk"
_SHARED_MEMORY_HELP = "give the container more of /dev/shm: docker run --shm-size=8g, or --ipc=host"
_NCCL_HELP = {
    "shared memory": _SHARED_MEMORY_HELP,
    "/dev/shm": _SHARED_MEMORY_HELP,
    "duplicate gpu": "two ranks have the same GPU: start as many on each machine as it has GPUs",
    "driver version is insufficient": "a newer driver, or torch built for an older CUDA",
}

_MEMORY_HELP = (
    "help: raise training.gradient_accumulation_steps, set training.activation_checkpointing: blocks, "
    "or share the model out with parallelism: fsdp"
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


# of torch on the CPU; of CUDA, and of NCCL, which quotes it; of cuBLAS and cuDNN, which want room of their own
_MEMORY_WORDS = ("can't allocate memory", "out of memory", "status_alloc_failed")
_OF_ALL_RANKS = (NonFiniteLoss.__name__, NoValidItem.__name__)  # the loss is that of all: no rank is to blame


def without_answer(failures: Sequence[Failure], num_ranks: int) -> str | None:
    """Return the sentence on the ranks that have reported nothing, where all others report that a peer is lost; None
    where that is not so. A rank that hangs or is stopped cannot report, and those that wait for it are not to blame."""
    silent = sorted(set(range(num_ranks)) - {failure.rank for failure in failures})
    if not (failures and silent and all(failure.is_peer_loss for failure in failures)):
        return None
    waiting = headline(min(failures, key=lambda failure: failure.time_ns), num_ranks)
    return f"{'ranks' if len(silent) > 1 else 'rank'} {in_ranges(silent)} did not answer; {waiting}"


def headline(failure: Failure, num_ranks: int) -> str:
    """`rank 1 (stage 2), step 37: ...`; one process has no rank worth naming."""
    where = []
    if num_ranks > 1 and failure.kind not in _OF_ALL_RANKS:
        where.append(f"rank {failure.rank}" + (f" (stage {failure.stage})" if failure.stage is not None else ""))
    if failure.step is not None:
        where.append(f"step {failure.step}" if failure.step else "before the first step")
    return f"{', '.join(where)}: {failure.message}" if where else failure.message
