"""Processes that want the same tokens: one makes them, and the others wait, but not for one that makes no progress."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from declarative_train.files import lock as locks
from declarative_train.files.lock import try_lock
from declarative_train.files.paths import SourceError
from declarative_train.packs.text import cache
from declarative_train.packs.text.cache import Encoded, EncodingJob, make_tokens


def work(pause_s: float = 0.0) -> EncodingJob:
    def encode(value: int, _: int) -> Encoded:
        time.sleep(pause_s)
        return Encoded([value])

    return EncodingJob(40, lambda start, stop: range(start, stop), encode, 100, about=["alone"])


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "dtrain" / "tokens").mkdir(parents=True)
    folder = cache._folder(["alone"])
    assert folder is not None
    return Path(f"{folder}.lock")


def test_one_that_stands_still_is_named(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.write_text('{"pid": 4711}')
    handle = os.open(lock, os.O_RDWR)
    assert try_lock(handle)
    monkeypatch.setattr(locks, "STUCK_S", 0.2)
    try:
        with pytest.raises(SourceError, match=r"process 4711 makes .* made no progress for 0 s") as found:
            make_tokens(work())
        assert found.value.help is not None
        assert "stop it" in found.value.help
    finally:
        os.close(handle)
    assert make_tokens(work()).tokens.tolist() == list(range(40))


def test_one_that_gets_on_is_waited_for(
    lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "STUCK_S", 2.0)
    child = os.fork()
    if not child:
        make_tokens(work(0.1))  # 4 s: longer than it may stand still
        os._exit(0)
    until = time.monotonic() + 10
    while not (lock.exists() and lock.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    assert make_tokens(work()).tokens.tolist() == list(range(40))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert f"waiting for process {child}, which makes the same tokens" in capsys.readouterr().err
