"""Bytes of remote files that are kept on disk: asked for once, by one of several processes, within a limit, and never
wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from declarative_train.files import range_cache
from declarative_train.files.lock import try_lock
from declarative_train.files.range_cache import GRAIN, RangeFile, Ranges

SIZE = 150 * GRAIN + 123  # three segments
CONTENT = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dtrain" / "remote"


class Server:
    """`content` by range, and what was asked for. `log`: a file to which processes write each range."""

    def __init__(self, content: bytes = CONTENT, log: Path | None = None, gives_parts: bool = True) -> None:
        self.asked: list[tuple[int, int]] = []
        self._content, self._log, self._gives_parts = content, log, gives_parts

    def __call__(self, start: int, stop: int) -> bytes:
        self.asked.append((start, stop))
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(f"{start} {stop}\n")
            time.sleep(0.02)
        return self._content[start:stop] if self._gives_parts else self._content

    def opened(self, name: str = "a") -> Ranges:
        return Ranges((name,), len(self._content), self)


def test_what_was_read_is_not_asked_for_again(folder: Path) -> None:
    server = Server()
    draws = np.random.default_rng(1)
    ranges = server.opened()
    for _ in range(300):
        start, stop = sorted(draws.integers(0, SIZE + 1000, 2).tolist())
        assert ranges.read(start, min(stop, start + 200_000)) == CONTENT[start : min(stop, start + 200_000)]
    assert ranges.read(0, SIZE) == CONTENT
    assert sum(stop - start for start, stop in server.asked) == SIZE  # no byte twice
    again = Server()
    assert again.opened().read(5, SIZE) == CONTENT[5:]
    assert again.asked == []
    other = Server(b"x" * SIZE)
    assert other.opened("b").read(0, 10) == b"x" * 10


def test_neighbours_are_asked_for_together(folder: Path) -> None:
    server = Server()
    server.opened().read(0, SIZE)
    assert server.asked == [(0, SIZE)]


def test_who_reads_on_and_on_is_read_ahead_for(folder: Path) -> None:
    server = Server()
    file = RangeFile(server.opened())
    found = b""
    while piece := file.read(10_000):
        found += piece
    assert found == CONTENT
    assert len(server.asked) < 15
    file.seek(-100, 2)
    assert file.read() == CONTENT[-100:]
    scattered = Server()
    ranges = scattered.opened("b")
    for start in (0, 40 * GRAIN, 20 * GRAIN, 100 * GRAIN):
        ranges.read(start, start + 10)
    assert [stop - start for start, stop in scattered.asked] == [GRAIN] * 4


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "harm",
    [
        flipped,
        lambda path: path.write_bytes(path.read_bytes()[:-GRAIN]),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(os.urandom(3 * GRAIN)),
        lambda path: path.unlink(),
    ],
    ids=["flipped", "cut", "cut in the head", "empty", "noise", "removed"],
)
def test_what_is_damaged_is_thrown_away(folder: Path, harm: Callable[[Path], object]) -> None:
    Server().opened().read(0, SIZE)
    for path in folder.iterdir():
        harm(path)
    server = Server()
    assert server.opened().read(0, SIZE) == CONTENT
    assert server.asked
    again = Server()
    assert again.opened().read(0, SIZE) == CONTENT
    assert again.asked == []


def test_the_limit_holds_and_what_was_used_last_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 40 * GRAIN
    monkeypatch.setenv("DTRAIN_CACHE_GB", str(limit / 1e9))
    server = Server(CONTENT[: 10 * GRAIN])
    server.opened("kept").read(0, 10 * GRAIN)
    for number in range(20):
        assert Server(CONTENT[: 4 * GRAIN]).opened(f"{number}").read(0, 4 * GRAIN) == CONTENT[: 4 * GRAIN]
        server.opened("kept").read(0, 10)
    assert server.asked == [(0, 10 * GRAIN)]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= limit + limit // 32 + 5 * GRAIN
    last, first = Server(CONTENT[: 4 * GRAIN]), Server(CONTENT[: 4 * GRAIN])
    last.opened("19").read(0, 4 * GRAIN)
    first.opened("0").read(0, 4 * GRAIN)
    assert (len(last.asked), len(first.asked)) == (0, 1)


def test_of_several_processes_one_asks(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    children = []
    for number in range(4):
        if not (child := os.fork()):
            try:
                ranges = Server(log=log).opened()
                order = np.random.default_rng(number).permutation(15) * 10 * GRAIN
                right = all(ranges.read(at, at + 10 * GRAIN) == CONTENT[at : at + 10 * GRAIN] for at in order.tolist())
                os._exit(0 if right and ranges.read(0, SIZE) == CONTENT else 1)
            finally:
                os._exit(2)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    asked = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    assert sum(stop - start for start, stop in asked) == SIZE


def test_a_process_that_holds_on_is_waited_for_so_long_and_no_longer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Server().opened().read(0, 10)
    (path,) = folder.iterdir()
    handle = os.open(path, os.O_RDWR)
    assert try_lock(handle)
    monkeypatch.setattr(range_cache, "_WAIT_S", 0.2)
    server = Server()
    begun = time.monotonic()
    assert server.opened().read(30 * GRAIN, 31 * GRAIN) == CONTENT[30 * GRAIN : 31 * GRAIN]
    assert 0.2 <= time.monotonic() - begun < 5
    os.close(handle)


def test_a_server_that_gives_no_parts_is_asked_once(folder: Path) -> None:
    server = Server(gives_parts=False)
    ranges = server.opened()
    assert ranges.read(70 * GRAIN, 71 * GRAIN) == CONTENT[70 * GRAIN : 71 * GRAIN]
    assert ranges.read(0, SIZE) == CONTENT
    assert len(server.asked) == 1


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    server = Server()
    assert server.opened().read(10, SIZE) == CONTENT[10:]
    assert server.opened().read(10, 20) == CONTENT[10:20]
    assert len(server.asked) == 2


def test_a_process_that_is_forked_meanwhile_holds_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[int] = []

    class Forking(Server):
        def __call__(self, start: int, stop: int) -> bytes:
            if not (child := os.fork()):
                time.sleep(60)
                os._exit(0)
            children.append(child)
            return super().__call__(start, stop)

    try:
        Forking().opened().read(0, 10)
        begun = time.monotonic()
        Server().opened().read(5 * GRAIN, 6 * GRAIN)
        assert time.monotonic() - begun < 10
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
