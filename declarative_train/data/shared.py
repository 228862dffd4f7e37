"""Sharing of sets: one process of a machine prepares the sets in memory, and the other processes map them.

The memory is a file without a name (memfd), which disappears with the last process that has it open, however it ends.
Each process maps it privately, so that writes are not shared. If that is not possible (another system, sets that are
not in memory, user code that cannot be pickled), every process prepares its own.
"""

from __future__ import annotations

import mmap
import os
import pickle
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from declarative_train.components.data import Table
from declarative_train.data.opened import prepare_sets, remember
from declarative_train.data.spec import DataError, DataSpec
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import numpy as np

    from declarative_train.data.materialize import PreparedSet

_ALIGNED = 64  # bytes
_AT_ONCE = 1 << 30  # bytes of a write


class Offer(NamedTuple):
    """Open file of another process. `mark`: its first bytes, which detect a process of the same number in another
    container. `ends`: the ends of the pickled sets and of their arrays in it.
    """

    pid: int
    file: int
    mark: bytes
    ends: tuple[int, ...]


def offer(spec: DataSpec) -> Offer | None:
    """Prepare the sets of the spec and move them to shared memory, which this process uses from now on, too.

    None: they cannot be shared. Raises DataError.
    """
    sets = prepare_sets(spec)
    if not hasattr(os, "memfd_create") or not all(each.is_held for each in sets.values()):
        return None
    buffers: list[pickle.PickleBuffer] = []
    try:
        without_tables = {name: replace(each, table=_ClosedTable(each.table)) for name, each in sets.items()}
        pickled = pickle.dumps(without_tables, protocol=5, buffer_callback=buffers.append)
        made = _write_pieces([memoryview(pickled), *(each.raw() for each in buffers)])
    except (pickle.PicklingError, AttributeError, TypeError, BufferError, OSError):  # each its own, as ever
        return None
    accept(spec, made)
    return made


@contextmanager
def offer_sets(spec: DataSpec) -> Iterator[Offer | None]:
    """Offer the sets for as long as the other processes may request them."""
    try:
        made = offer(spec)
    except DataError:  # which the others find, too, and say
        made = None
    try:
        yield made
    finally:
        if made is not None:
            os.close(made.file)


def accept(spec: DataSpec, made: Offer) -> bool:
    """Make `prepare_sets` of the spec return the sets of another process. False: they cannot be mapped."""
    try:
        sets = _read(made)
    except (OSError, ValueError, pickle.UnpicklingError, AttributeError, ImportError):
        return False
    remember(spec, sets)
    return True


def _write_pieces(pieces: Sequence[memoryview]) -> Offer:
    mark = secrets.token_bytes(_ALIGNED)
    ends = tuple(accumulate((each.nbytes for each in pieces), lambda end, size: _align(end) + size, initial=_ALIGNED))
    file = os.memfd_create("dtrain-held")
    try:
        os.truncate(file, ends[-1])
        _write(file, memoryview(mark), 0)
        for piece, (end, _) in zip(pieces, pairwise(ends), strict=True):
            _write(file, piece, _align(end))
    except OSError:
        os.close(file)
        raise
    return Offer(os.getpid(), file, mark, ends)


def _write(file: int, piece: memoryview, place: int) -> None:
    while piece.nbytes:
        done = os.pwrite(file, piece[:_AT_ONCE], place)
        piece, place = piece[done:], place + done


def _read(made: Offer) -> dict[str, PreparedSet]:
    file = os.open(f"/proc/{made.pid}/fd/{made.file}", os.O_RDONLY)
    try:
        mapped = mmap.mmap(file, made.ends[-1], mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(file)
    whole = memoryview(mapped)
    if bytes(whole[:_ALIGNED]) != made.mark:
        raise ValueError("another process's file")
    pickled, *buffers = [whole[_align(begin) : end] for begin, end in pairwise(made.ends)]
    found: dict[str, PreparedSet] = pickle.loads(pickled, buffers=buffers)
    return found


def _align(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED


class _ClosedTable(Table):
    """Table of a set in memory in a process that has not opened its files: what is known without reading."""

    def __init__(self, table: Table) -> None:
        self.columns, self.num_rows, self.files = {}, table.num_rows, table.files
        self.members, self.blocks = table.members, table.blocks

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        raise SourceError("unreadable", "the rows of a held set were asked of its files, which are not open here")
