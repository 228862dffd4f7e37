"""Watchdog: a process that stops the runs of a sweep if the sweep itself was killed.

The sweep sends the process ids of active runs to the watchdog through a pipe, which is closed when the sweep exits for
any reason. Then the watchdog requests the remaining runs to save a checkpoint and stop."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

_CODE = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
running = set()
for line in sys.stdin:
    (running.add if line[0] == "+" else running.discard)(int(line[1:]))
for pid in running:
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError:
        pass
"""


class Guard:
    """Connection of the sweep to its watchdog, a process that stops the runs if the sweep is killed. Call `begin` and
    `end` with the process id of each run, and `close` when all runs have ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def begin(self, pid: int) -> None:
        self._tell(f"+{pid}\n")

    def end(self, pid: int) -> None:
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # the watchdog was killed; the sweep continues
            self._process.stdin.write(line)
            self._process.stdin.flush()
