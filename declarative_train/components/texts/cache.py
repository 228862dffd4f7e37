"""Texts -> one flat file of token numbers, made once and then mapped into memory: text k is `tokens[starts[k] :
starts[k + 1]]`.

The file lies in a folder of its own below the user's cache, whose name says what it was made of. Several processes make
it, each a run of texts at a time; what a stopped one had done is used again, and the folder has its name only when all
of it is there.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from declarative_train.components.data import BadValueError
from declarative_train.core.amounts import counted
from declarative_train.core.machine import num_cores
from declarative_train.files.cache import is_locked
from declarative_train.files.errors import SourceError
from declarative_train.files.open_files import shown

if TYPE_CHECKING:
    import numpy as np

Unread = dict[str, tuple[int, int]]
"""The keys of messages that no chat template reads: in how many texts, and the number of the first."""

_FORMAT = 2
_PARTS = 64  # that a large file is made in
_LEAST_PART = 256  # texts
_FEW = 1 << 15  # texts that one process makes
_SMALL = 4 << 20  # bytes that one process makes
_SAID_S = 2.0  # what takes longer is told
_STUCK_S = 300.0  # without a sign of life of the process that makes the same; a text may be long, and far away
_LOOK_S = 0.1


class Encoded(NamedTuple):
    """The tokens of a text, which of them are to be learnt (None: all), and the keys of its messages that its chat
    template does not read."""

    tokens: Sequence[int]
    trained: Sequence[bool] | None = None
    unread: Collection[str] = ()


class Work(NamedTuple):
    """`read` gives the values from one text up to another, `encode` the tokens of one; it raises BadValueError, whose
    row counts among all. `about`: what the result depends on; None: it is not kept. `size_bytes`: of all texts, about;
    0: not known."""

    num_texts: int
    read: Callable[[int, int], Sequence[Any]]
    encode: Callable[[Any, int], Encoded]
    vocabulary: int
    has_trained: bool = False
    about: object = None
    size_bytes: int = 0


class Tokens(NamedTuple):
    """Flat token numbers, where each text begins (and where the last one ends), and, where some are not to be learnt,
    1 for those that are. `folder`: where they are kept, "" in memory."""

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


def made(work: Work) -> Tokens:
    """The tokens, from the cache where they are there. Raises BadValueError and SourceError."""
    folder = None if work.about is None else _folder(work.about)
    if folder is None:
        return _in_memory(work)
    if (found := _opened(folder)) is not None:
        return found
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with _alone(folder):
            found = _opened(folder)  # another process was first
            if found is None:
                _write(work, folder)
    except OSError as error:
        if not os.access(os.path.dirname(folder), os.W_OK):
            return _in_memory(work)
        # numpy says of a short write how many items were written, not why
        reason = (error.strerror or os.strerror(errno.ENOSPC)).lower()
        message = f"cannot keep tokens in {shown(os.path.dirname(folder))}: {reason}"
        raise SourceError("unreadable", message, help="name another place: XDG_CACHE_HOME") from error
    found = found or _opened(folder)
    if found is None:
        raise SourceError("unreadable", f"the tokens in {shown(folder)} are not as they were written")
    return found


def cache_folder() -> str | None:
    """Where the tokens of all texts lie; None without a place for it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "dtrain", "tokens") if os.path.isabs(base) else None


def _folder(about: object) -> str | None:
    base = cache_folder()
    key = blake2b(json.dumps([_FORMAT, about], sort_keys=True).encode(), digest_size=16).hexdigest()
    return None if base is None else os.path.join(base, key)


def _opened(folder: str) -> Tokens | None:
    """None where it is not there, or not whole."""
    import numpy as np

    try:
        with open(os.path.join(folder, "about.json"), encoding="utf-8") as file:
            about = json.load(file)
        starts = np.load(os.path.join(folder, "starts.npy"), mmap_mode="r")
        tokens = _mapped(os.path.join(folder, "tokens"), about["dtype"], int(about["num_tokens"]))
        trained = None
        if about["has_trained"]:
            trained = _mapped(os.path.join(folder, "trained"), "uint8", int(about["num_tokens"]))
        if len(starts) != about["num_texts"] + 1 or int(starts[-1]) != about["num_tokens"]:
            return None
        unread = {str(key): (int(count), int(first)) for key, (count, first) in about["unread"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Tokens(tokens, starts, trained, unread, folder)


def _mapped(path: str, dtype: str, size: int) -> np.ndarray:
    import numpy as np

    if not size:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r", shape=(size,))


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Of processes that want the same, one makes it, and the others wait until it is done or gone. Raises SourceError
    where it stands still."""
    with open(f"{folder}.lock", "a+") as file:
        if not is_locked(file.fileno()):
            _wait(file, folder)
        file.truncate(0)
        file.write(f"{os.getpid()}")
        file.flush()
        yield


def _wait(file: IO[str], folder: str) -> None:
    """Who makes tokens touches the lock while it gets on (`_lives`)."""
    file.seek(0)
    who = f"process {number}" if (number := file.read().strip()) else "another process"
    print(f"dtrain: waiting for {who} that makes the same tokens", file=sys.stderr)
    seen, since = os.fstat(file.fileno()).st_mtime_ns, time.monotonic()
    while not is_locked(file.fileno()):
        if (now := os.fstat(file.fileno()).st_mtime_ns) != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > _STUCK_S:
            message = f"{who} makes the same tokens, and stands still for {_STUCK_S:.0f} s"
            raise SourceError("unreadable", message, help=f"end it: it holds {shown(folder)}.lock")
        time.sleep(_LOOK_S)


_lived = 0.0


def _lives() -> None:
    global _lived
    if _current is not None and time.monotonic() - _lived > 1:
        _lived = time.monotonic()
        with suppress(OSError):
            os.utime(f"{_current[1].removesuffix('.making')}.lock")


def _dtype(vocabulary: int) -> str:
    return "uint16" if vocabulary <= 1 << 16 else "uint32"


def _in_memory(work: Work) -> Tokens:
    import numpy as np

    parts = [_encode(work, start, stop) for start, stop in _parts(work)]
    lengths = np.concatenate([np.zeros(1, np.int64), *(each.lengths for each in parts)])
    tokens = np.concatenate([np.empty(0, _dtype(work.vocabulary)), *(each.tokens for each in parts)])
    trained = np.concatenate([np.empty(0, np.uint8), *(each.trained for each in parts)]) if work.has_trained else None
    return Tokens(tokens, np.cumsum(lengths), trained, _sum_unread(each.unread for each in parts))


def _parts(work: Work) -> list[tuple[int, int]]:
    """The same on every machine, so that what is there of a stopped one fits."""
    size = max(-(-work.num_texts // _PARTS), 1 if work.size_bytes > _SMALL else _LEAST_PART)
    return [(start, min(start + size, work.num_texts)) for start in range(0, work.num_texts, size)]


class _Part(NamedTuple):
    """A run of texts: their tokens, the number of tokens of each, and 1 for those to be learnt or nothing."""

    tokens: np.ndarray
    lengths: np.ndarray
    trained: np.ndarray
    unread: Unread


def _encode(work: Work, start: int, stop: int) -> _Part:
    import numpy as np

    found: list[Encoded] = []
    for at, value in enumerate(work.read(start, stop)):
        found.append(work.encode(value, start + at))
        _lives()
    unread = _sum_unread({key: (1, start + at)} for at, each in enumerate(found) for key in each.unread)
    lengths = np.fromiter((len(each.tokens) for each in found), np.int64, len(found))
    tokens = np.fromiter((token for each in found for token in each.tokens), _dtype(work.vocabulary), lengths.sum())
    flags = [
        np.ones(len(each.tokens), np.uint8) if each.trained is None else np.asarray(each.trained, np.uint8)
        for each in (found if work.has_trained else ())
    ]
    return _Part(tokens, lengths, np.concatenate([np.empty(0, np.uint8), *flags]), unread)


def _sum_unread(parts: Iterable[Unread]) -> Unread:
    """`parts` are in the order of their texts."""
    total: Unread = {}
    for part in parts:
        for key, (count, first) in part.items():
            before, earliest = total.get(key, (0, first))
            total[key] = (before + count, earliest)
    return total


_current: tuple[Work, str] | None = None  # what the processes that are forked work on


def _write(work: Work, folder: str) -> None:
    global _current
    begun, parts, making = time.monotonic(), _parts(work), f"{folder}.making"
    os.makedirs(making, exist_ok=True)
    num_processes = _num_processes(work, len(parts))
    _current = (work, making)
    try:
        if num_processes == 1:
            for number, (start, stop) in enumerate(parts):
                _write_part(number, start, stop)
        else:
            _in_processes(parts, num_processes)
        num_tokens = _join(work, making, len(parts))
    finally:
        _current = None
    shutil.rmtree(folder, ignore_errors=True)  # one that is not whole
    os.rename(making, folder)
    if (took := time.monotonic() - begun) > _SAID_S:
        with_ = "" if num_processes == 1 else f" by {num_processes} processes"
        print(
            f"dtrain: {counted(num_tokens, 'token')} of {counted(work.num_texts, 'text')} made in {took:.0f} s{with_}, "
            f"once; kept in {shown(folder)}",
            file=sys.stderr,
        )


def _num_processes(work: Work, num_parts: int) -> int:
    import multiprocessing

    is_large = work.num_texts > _FEW or work.size_bytes > _SMALL
    if not is_large or multiprocessing.current_process().daemon or sys.platform != "linux":
        return 1
    return max(1, min(num_cores(), num_parts, 32))


def _in_processes(parts: Sequence[tuple[int, int]], num_processes: int) -> None:
    import multiprocessing

    context = multiprocessing.get_context("fork")  # they read the table that is open here
    with ProcessPoolExecutor(num_processes, context, _begin) as pool:
        waiting = [pool.submit(_part, number, *part) for number, part in enumerate(parts)]
        try:
            for each in waiting:
                if (problem := each.result()) is not None:
                    raise problem()
        except BrokenProcessPool:
            message = "a process that makes tokens was ended from outside, perhaps for want of memory"
            hint = "the same command goes on where it was; if it happens again, see that more memory is free"
            raise SourceError("unreadable", message, help=hint) from None
        finally:
            for each in waiting:
                each.cancel()


def _begin() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism


class _Again(NamedTuple):
    """An error, as it is made."""

    kind: Callable[..., Exception]
    given: tuple[object, ...]
    keys: dict[str, object]

    def __call__(self) -> Exception:
        return self.kind(*self.given, **self.keys)


def _part(number: int, start: int, stop: int) -> _Again | None:
    """In a process of its own, from which errors come back as what makes them anew."""
    try:
        _write_part(number, start, stop)
    except BadValueError as error:
        return _Again(BadValueError, (error.problem, error.column, str(error)),
                      {"row": error.row, "help": error.help, "key": error.key})  # fmt: skip
    except SourceError as error:
        return _Again(SourceError, (error.problem, str(error)), {"help": error.help})
    return None


def _write_part(number: int, start: int, stop: int) -> None:
    """Its lengths are written last: they say that it is whole."""
    import numpy as np

    assert _current is not None
    work, making = _current
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


def _join(work: Work, making: str, num_parts: int) -> int:
    import numpy as np

    bases = [os.path.join(making, f"{number:04}") for number in range(num_parts)]
    lengths = np.concatenate([np.zeros(1, np.int64), *(np.load(f"{base}.lengths.npy") for base in bases)])
    starts = np.cumsum(lengths)
    np.save(os.path.join(making, "starts.npy"), starts)
    for kind in ("tokens", "trained") if work.has_trained else ("tokens",):
        with open(os.path.join(making, kind), "wb") as whole:
            for base in bases:
                _lives()
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
