"""A function in a forked child: what pretended ranks leave behind in torch (groups, meshes, what it remembers of shards
by them) would be taken for their own by the real ranks that this process forks afterwards."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 120.0


def in_child(work: Callable[[], T]) -> T | None:
    """What it returns, which goes through pickle; None where it fails or takes too long."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as stream:
                pickle.dump(work(), stream)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        data = _read(reading, time.monotonic() + LIMIT_S)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        found: T = pickle.loads(data)
    except (pickle.UnpicklingError, EOFError):
        return None
    return found


def _read(pipe: int, deadline_s: float) -> bytes:
    parts = []
    while (left := deadline_s - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            part = os.read(pipe, 1 << 16)
            if not part:
                break
            parts.append(part)
    return b"".join(parts)
