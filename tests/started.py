"""`python -m MODULE WORDS` in a session of its own. The process is forked from a server that has imported torch, so
that it starts quickly.

process = start("declarative_train", "run", "recipe.yaml", cwd=folder) code, out, errors = finish(process)
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tests.machines import Machine

LIMIT_S = 60
LEAVING_S = 5.0
IMPORTED = (  # modules that a run imports
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.launcher.api",
    "torch.distributed.pipelining",
    "torch.utils.tensorboard",
    "declarative_train.app.main",
    "declarative_train.app.commands.run",
    "declarative_train.run.sinks.console",
    "declarative_train.run.sinks.tensorboard",
    "declarative_train.planner.compiler",
    "declarative_train.engine.axes.pipeline",
    "declarative_train.engine.axes.shard",
    "declarative_train.run.agent",
    "declarative_train.run.rank",
    "declarative_train.run.rendezvous",
)


class Started:
    """Process that was started, with an interface like that of `subprocess.Popen`. `pid`: its id, and that of its
    session."""

    def __init__(
        self,
        module: str,
        words: Iterable[str],
        cwd: Path | None,
        ignored: tuple[int, ...],
        machine: Machine | None,
        is_read: bool,
    ) -> None:
        folder = tempfile.mkdtemp()
        # the folder is removed even if the test fails
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._streams = [Path(folder, name) for name in ("out", "err")]
        where = (str(cwd or Path.cwd()), dict(os.environ), [str(path) for path in self._streams])
        self._process = server().Process(target=_main, args=(module, [*words], *where, ignored, machine, is_read))
        self.begun_s = time.time()
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int:
        assert self._process.exitcode is not None
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def errors(self) -> str:
        """Return the text that the process has written to standard error so far."""
        return self._streams[1].read_text("utf-8") if self._streams[1].exists() else ""

    def communicate(self, timeout: float = LIMIT_S) -> tuple[str, str]:
        """Wait until the process and all processes of its session have ended. Return standard output and standard
        error."""
        self._process.join(timeout)
        deadline_s = time.monotonic() + LEAVING_S
        while session(self.pid) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        out, errors = (path.read_text("utf-8") if path.exists() else "" for path in self._streams)
        assert self._process.exitcode is not None, f"still there after {timeout} s: {errors}"
        self._remove()
        return out, errors


@cache
def server() -> ForkServerContext:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # like `main`, but before the server imports torch
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED])
    return context


def start(
    module: str,
    *words: str,
    cwd: Path | None = None,
    ignored: tuple[int, ...] = (),
    machine: Machine | None = None,
    is_read: bool = True,
) -> Started:
    """Start `python -m module words` in the current environment. `ignored`: signals that the process ignores.
    `machine`: where it runs; None: this machine. `is_read`: False if its output goes to a pipe that nothing reads."""
    return Started(module, words, cwd, ignored, machine, is_read)


def finish(process: Started, timeout: float = LIMIT_S) -> tuple[int, str, str]:
    """Wait for a process, and return (exit code, standard output, standard error). No process of its session may be
    left."""
    out, errors = process.communicate(timeout)
    assert not session(process.pid), f"left behind: {session(process.pid)}\n{errors}"
    return process.returncode, out, errors


def run(recipe: Path | str, into: Path, *words: str, timeout: float = 110) -> list[dict[str, Any]]:
    """Run `dtrain run` with an event for every step, and return the events. `into`: an empty folder for the run."""
    more = ("--quiet", "--set", f"logging.dir={into}", "--set", "logging.every=1 step")
    code, out, errors = finish(start("declarative_train", "run", str(recipe), *more, *words), timeout)
    assert code == 0, out + errors
    (path,) = into.rglob("events.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def session(leader: int) -> list[int]:
    """Return the ids of the living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] not in "ZX":
            found.append(int(path.name))
    return found


def family(pid: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            found += (each for child in path.read_text().split() for each in family(int(child)))
    return found


def ranks_below(agent: Started) -> dict[int, int]:
    """Return a dict from rank to process id, for the ranks of an agent.

    The ids are read from files. Files that are older than the agent are ignored: an agent that was killed leaves its
    files, and the system gives its process ids to other processes.
    """
    own, found = family(agent.pid), {}
    for folder in Path(tempfile.gettempdir()).glob("dtrain-*"):
        with suppress(OSError):  # the folder of another run, which has ended meanwhile
            for path in folder.glob("pid_*[0-9]"):
                if path.stat().st_mtime > agent.begun_s and (pid := int(path.read_text())) in own:
                    found[int(path.name.removeprefix("pid_"))] = pid
    return found


def _main(
    module: str,
    words: list[str],
    cwd: str,
    environment: dict[str, str],
    streams: list[str],
    ignored: tuple[int, ...],
    machine: Machine | None,
    is_read: bool,
) -> None:
    os.setsid()
    if machine is not None:
        machine.enter()
    for number, path in enumerate(streams, 1):
        if is_read:
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        else:
            reader, opened = os.pipe()
            os.close(reader)
        os.dup2(opened, number)
        os.close(opened)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment | {"OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)  # the server imported torch without OMP_NUM_THREADS
    warnings.simplefilter("error", ResourceWarning)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
