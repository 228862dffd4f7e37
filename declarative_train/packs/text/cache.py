"""Cache of tokenized texts: one flat file of token numbers, written once and then memory-mapped. Text k is
`tokens[starts[k] : starts[k + 1]]`.

Each result has its own folder in the user's cache, named by a hash of the inputs. Several processes encode parts of the
texts. After an interruption, complete parts are used again.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from declarative_train.components.data import BadValueError
from declarative_train.core.amounts import format_count
from declarative_train.core.machine import num_cores
from declarative_train.files.cache import cache_folder
from declarative_train.files.lock import FileLock, hold_lock
from declarative_train.files.open_files import format_path
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import numpy as np

Unread = dict[str, tuple[int, int]]
"""Keys of messages that the chat template does not read -> (number of texts with the key, number of the first)."""

_FORMAT = 3
_PARTS = 64  # largest number of parts into which texts are divided
_LEAST_PART = 256  # texts of a part, if all texts together are small
_FEW = 1 << 15  # texts; up to this number one process encodes them all
_SMALL = 4 << 20  # bytes; up to this size one process encodes them all
_REPORT_S = 2.0  # report the duration if it is longer


class Encoded(NamedTuple):
    """Tokens of one text. `trained`: for each token, whether it counts in the loss; None: all do. `unread`: keys of
    messages that the chat template does not read."""

    tokens: Sequence[int]
    trained: Sequence[bool] | None = None
    unread: Collection[str] = ()


class EncodingJob(NamedTuple):
    """Texts to be encoded, and how to encode them.

    num_texts    number of texts
    read         function (start, stop) -> texts from index `start` to `stop`
    encode       function (text, its index) -> tokens; may raise BadValueError
    vocabulary   number of different tokens
    has_trained  `encode` also returns which tokens count in the loss
    about        everything on which the result depends, as JSON value; None: do not cache
    size_bytes   approximate size of all texts; 0: unknown"""

    num_texts: int
    read: Callable[[int, int], Sequence[Any]]
    encode: Callable[[Any, int], Encoded]
    vocabulary: int
    has_trained: bool = False
    about: object = None
    size_bytes: int = 0


class Tokens(NamedTuple):
    """Tokens of all texts. `tokens`: flat array of token numbers. `starts`: (num_texts + 1,), index in `tokens` at
    which each text starts, and the end of the last text. `trained`: 1 for each token that counts in the loss; None: all
    do. `folder`: the folder in the cache; "" if the tokens are in memory."""

    tokens: np.ndarray
    starts: np.ndarray
    trained: np.ndarray | None
    unread: Unread
    folder: str = ""

    @property
    def num_texts(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        import numpy as np

        return np.diff(self.starts)


def make_tokens(work: EncodingJob) -> Tokens:
    """Return the tokens of the texts from the cache. If they are not in the cache, encode the texts and write them to
    it. Raises BadValueError and SourceError."""
    folder = None if work.about is None else _folder(work.about)
    if folder is None:
        return _encode_in_memory(work)
    if (found := _open_folder(folder)) is not None:
        return found
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with hold_lock(f"{folder}.lock", "makes the same tokens") as lock:
            found = _open_folder(folder)  # another process may have written it
            if found is None:
                _write(work, folder, lock)
    except OSError as error:
        if not os.access(os.path.dirname(folder), os.W_OK):
            return _encode_in_memory(work)
        # after a short write numpy reports how many items were written, but no reason
        reason = (error.strerror or os.strerror(errno.ENOSPC)).lower()
        message = f"cannot keep tokens in {format_path(os.path.dirname(folder))}: {reason}"
        raise SourceError("unreadable", message, help="set XDG_CACHE_HOME to a folder with room") from error
    found = found or _open_folder(folder)
    if found is None:
        raise SourceError("unreadable", f"the tokens in {format_path(folder)} are damaged")
    return found


def _folder(about: object) -> str | None:
    base = cache_folder("tokens")
    key = blake2b(json.dumps([_FORMAT, about], sort_keys=True).encode(), digest_size=16).hexdigest()
    return None if base is None else os.path.join(base, key)


def _open_folder(folder: str) -> Tokens | None:
    """Open the tokens in `folder`. Return None if it does not exist or is incomplete."""
    import numpy as np

    try:
        with open(os.path.join(folder, "about.json"), encoding="utf-8") as file:
            about = json.load(file)
        starts = np.load(os.path.join(folder, "starts.npy"), mmap_mode="r")
        tokens = _map_file(os.path.join(folder, "tokens"), about["dtype"], int(about["num_tokens"]))
        trained = None
        if about["has_trained"]:
            trained = _map_file(os.path.join(folder, "trained"), "uint8", int(about["num_tokens"]))
        if len(starts) != about["num_texts"] + 1 or int(starts[-1]) != about["num_tokens"]:
            return None
        unread = {str(key): (int(count), int(first)) for key, (count, first) in about["unread"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Tokens(tokens, starts, trained, unread, folder)


def _map_file(path: str, dtype: str, size: int) -> np.ndarray:
    import numpy as np

    if not size:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r", shape=(size,))


def _dtype(vocabulary: int) -> str:
    return "uint16" if vocabulary <= 1 << 16 else "uint32"


def _encode_in_memory(work: EncodingJob) -> Tokens:
    import numpy as np

    parts = [_encode(work, start, stop) for start, stop in _split_texts(work)]
    lengths = np.concatenate([np.zeros(1, np.int64), *(each.lengths for each in parts)])
    tokens = np.concatenate([np.empty(0, _dtype(work.vocabulary)), *(each.tokens for each in parts)])
    trained = np.concatenate([np.empty(0, np.uint8), *(each.trained for each in parts)]) if work.has_trained else None
    return Tokens(tokens, np.cumsum(lengths), trained, _sum_unread(each.unread for each in parts))


def _split_texts(work: EncodingJob) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) of texts that are encoded separately. They do not depend on the machine, so that
    ranges that an interrupted process finished can be used again."""
    size = max(-(-work.num_texts // _PARTS), 1 if work.size_bytes > _SMALL else _LEAST_PART)
    return [(start, min(start + size, work.num_texts)) for start in range(0, work.num_texts, size)]


class _EncodedRun(NamedTuple):
    """Tokens of consecutive texts, joined into one array. `lengths`: number of tokens of each text. `trained`: 1 for
    each token that counts in the loss; empty if all tokens do."""

    tokens: np.ndarray
    lengths: np.ndarray
    trained: np.ndarray
    unread: Unread


def _encode(work: EncodingJob, start: int, stop: int) -> _EncodedRun:
    import numpy as np

    found: list[Encoded] = []
    for at, value in enumerate(work.read(start, stop)):
        found.append(work.encode(value, start + at))
        if _current is not None:
            _current[2].touch()
    unread = _sum_unread({key: (1, start + at)} for at, each in enumerate(found) for key in each.unread)
    lengths = np.fromiter((len(each.tokens) for each in found), np.int64, len(found))
    tokens = np.fromiter((token for each in found for token in each.tokens), _dtype(work.vocabulary), lengths.sum())
    flags = [
        np.ones(len(each.tokens), np.uint8) if each.trained is None else np.asarray(each.trained, np.uint8)
        for each in (found if work.has_trained else ())
    ]
    return _EncodedRun(tokens, lengths, np.concatenate([np.empty(0, np.uint8), *flags]), unread)


def _sum_unread(parts: Iterable[Unread]) -> Unread:
    """Return {key that the chat template does not read: (number of texts with this key, index of the first one)} for
    all texts. `parts`: such a dict for each run of consecutive texts, in order."""
    total: Unread = {}
    for part in parts:
        for key, (count, first) in part.items():
            before, earliest = total.get(key, (0, first))
            total[key] = (before + count, earliest)
    return total


_current: tuple[EncodingJob, str, FileLock] | None = None  # the job, its folder and lock, for the forked processes


def _write(work: EncodingJob, folder: str, lock: FileLock) -> None:
    global _current
    begun, parts, making = time.monotonic(), _split_texts(work), f"{folder}.making"
    os.makedirs(making, exist_ok=True)
    num_processes = _num_processes(work, len(parts))
    _current = (work, making, lock)
    try:
        if num_processes == 1:
            for number, (start, stop) in enumerate(parts):
                _write_part(number, start, stop)
        else:
            _write_in_processes(parts, num_processes)
        num_tokens = _join(work, making, len(parts), lock)
    finally:
        _current = None
    shutil.rmtree(folder, ignore_errors=True)  # it may exist and be incomplete
    os.rename(making, folder)
    if (took := time.monotonic() - begun) > _REPORT_S:
        with_ = "" if num_processes == 1 else f" by {num_processes} processes"
        print(
            f"dtrain: {format_count(num_tokens, 'token')} of {format_count(work.num_texts, 'text')} made in "
            f"{took:.0f} s{with_}, "
            f"once; cached in {format_path(folder)}",
            file=sys.stderr,
        )


def _num_processes(work: EncodingJob, num_parts: int) -> int:
    import multiprocessing

    is_large = work.num_texts > _FEW or work.size_bytes > _SMALL
    if not is_large or multiprocessing.current_process().daemon or sys.platform != "linux":
        return 1
    return max(1, min(num_cores(), num_parts, 32))


def _write_in_processes(parts: Sequence[tuple[int, int]], num_processes: int) -> None:
    import multiprocessing

    context = multiprocessing.get_context("fork")  # the processes read the table that is open here
    with ProcessPoolExecutor(num_processes, context, _start_worker) as pool:
        waiting = [pool.submit(_try_write_part, number, *part) for number, part in enumerate(parts)]
        try:
            for each in waiting:
                if (problem := each.result()) is not None:
                    raise problem()
        except BrokenProcessPool:
            message = "a process that makes tokens was killed, perhaps because memory ran out"
            hint = "run the command again, it continues where it stopped; if it happens again, free some memory"
            raise SourceError("unreadable", message, help=hint) from None
        finally:
            for each in waiting:
                each.cancel()


def _start_worker() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # no threads in a process, because there are several processes


class _WorkerError(NamedTuple):
    """Exception in a worker process, as its class and arguments, because the exception itself cannot be pickled. The
    parent process calls this object to make the exception."""

    kind: Callable[..., Exception]
    given: tuple[object, ...]
    keys: dict[str, object]

    def __call__(self) -> Exception:
        return self.kind(*self.given, **self.keys)


def _try_write_part(number: int, start: int, stop: int) -> _WorkerError | None:
    """Encode texts `start` to `stop` in a worker process, and write their tokens as part number `number`. Return None,
    or a description of an expected error; the exception itself cannot be pickled."""
    try:
        _write_part(number, start, stop)
    except BadValueError as error:
        return _WorkerError(BadValueError, (error.problem, error.column, str(error)),
                      {"row": error.row, "help": error.help, "key": error.key})  # fmt: skip
    except SourceError as error:
        return _WorkerError(SourceError, (error.problem, str(error)), {"help": error.help})
    return None


def _write_part(number: int, start: int, stop: int) -> None:
    """Encode texts `start` to `stop`, and write the files of part number `number`, unless they exist. The file of
    lengths is written last, so its presence means that the part is complete."""
    import numpy as np

    assert _current is not None
    work, making, _ = _current
    base = os.path.join(making, f"{number:04}")
    if os.path.exists(f"{base}.lengths.npy"):
        return
    part = _encode(work, start, stop)
    part.tokens.tofile(f"{base}.tokens")
    part.trained.tofile(f"{base}.trained")
    with open(f"{base}.unread", "w", encoding="utf-8") as file:
        json.dump(part.unread, file)
    np.save(f"{base}.part.npy", part.lengths)
    os.replace(f"{base}.part.npy", f"{base}.lengths.npy")


def _join(work: EncodingJob, making: str, num_parts: int, lock: FileLock) -> int:
    import numpy as np

    bases = [os.path.join(making, f"{number:04}") for number in range(num_parts)]
    lengths = np.concatenate([np.zeros(1, np.int64), *(np.load(f"{base}.lengths.npy") for base in bases)])
    starts = np.cumsum(lengths)
    np.save(os.path.join(making, "starts.npy"), starts)
    for kind in ("tokens", "trained") if work.has_trained else ("tokens",):
        with open(os.path.join(making, kind), "wb") as whole:
            for base in bases:
                lock.touch()
                with open(f"{base}.{kind}", "rb") as part:
                    shutil.copyfileobj(part, whole, 1 << 22)
    unread = []
    for base in bases:
        with open(f"{base}.unread", encoding="utf-8") as file:
            unread.append(json.load(file))
    for name in os.listdir(making):
        if name[:4].isdigit():
            os.unlink(os.path.join(making, name))
    about = {
        "num_texts": work.num_texts,
        "num_tokens": int(starts[-1]),
        "dtype": _dtype(work.vocabulary),
        "has_trained": work.has_trained,
        "unread": _sum_unread(unread),
        "about": work.about,
    }
    with open(os.path.join(making, "about.json"), "w", encoding="utf-8") as file:
        json.dump(about, file)
    return int(starts[-1])
