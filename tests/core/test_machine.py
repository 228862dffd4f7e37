"""Limits of the machine, in a line."""

from __future__ import annotations

import errno
import resource

import pytest

from declarative_train.app.main import main
from declarative_train.core.machine import shortage


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "cannot open more files"),
        (ImportError("libgomp.so.1: cannot open shared object file: Too many open files"), "cannot open more files"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "cannot allocate more memory"),
        (MemoryError(), "cannot allocate more memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "cannot allocate more memory"),
        (RuntimeError("std::bad_alloc"), "cannot allocate more memory"),
        (OSError(errno.ENOENT, "No such file"), None),
        (ImportError("no module of this name"), None),
        (RuntimeError("shapes do not fit"), None),
    ],
)
def test_a_limit_is_one_line(error: Exception, words: str | None) -> None:
    said = shortage(error)
    assert said is None if words is None else words in str(said)


def test_a_command_that_meets_a_limit_leaves_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise MemoryError

    monkeypatch.setattr("declarative_train.app.commands.explain.run", fail)
    assert main(["explain", "G001"]) == 3
    assert capsys.readouterr().err.startswith("dtrain: this process cannot allocate more memory; help: ")


def test_a_run_with_too_few_open_files_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, 32))
    assert main(["run", "recipe.yaml"]) == 3
    wanted = "dtrain: a process may open 32 files here, and a run opens at least 64; help: `ulimit -n 1024`\n"
    assert capsys.readouterr().err == wanted
