"""What the console is: a reader may go away, a disk may be full, an encoding may have no such letter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from declarative_train.run.event import RunEnded
from declarative_train.run.sinks.jsonl import read_events
from tests.engine.made_recipes import DIGITS, merged, write_data, write_recipe
from tests.started import finish, start

RUN = (sys.executable, "-m", "declarative_train", "run")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def only_run(directory: Path) -> RunEnded:
    (path,) = (directory / "runs" / "made").glob("*/events.jsonl")
    last = read_events(path)[-1]
    assert isinstance(last, RunEnded)
    return last


@pytest.mark.parametrize(("mode", "gpus"), [("single", 1), pytest.param("ddp", 2, marks=pytest.mark.long)])
def test_a_run_goes_on_when_nobody_reads_it(directory: Path, mode: str, gpus: int) -> None:
    path = write_recipe(directory, merged(DIGITS, {"parallelism": mode, "layout": {"gpus": gpus}}))
    assert finish(start("declarative_train", "run", str(path), is_read=False))[0] == 0
    assert only_run(directory).status == "finished"


@pytest.mark.parametrize("how", [pytest.param(">/dev/full 2>&1", marks=pytest.mark.long), ">&- 2>&-"])
def test_a_run_goes_on_without_a_console(directory: Path, how: str) -> None:
    path = write_recipe(directory, DIGITS)
    line = " ".join([*RUN, str(path), how])
    assert subprocess.run(["sh", "-c", line], timeout=100, check=False).returncode == 0
    assert only_run(directory).status == "finished"


def test_a_recipe_with_errors_is_not_fine_because_nobody_reads_them(directory: Path) -> None:
    path = write_recipe(directory, merged(DIGITS, {"model": {"graph": {"act": {"type": "relo"}}}}))
    assert finish(start("declarative_train", "run", str(path), is_read=False))[0] == 1


def test_letters_that_the_console_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("name: caf\u00e9\ndata: {source: {type: csv, path: nothing}}\ntrainin\u00e9: {}\n", "utf-8")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    for form in ("full", "json"):
        ended = subprocess.run(
            [sys.executable, "-m", "declarative_train", "lint", "--static", "--format", form, str(path)],
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 1, ended.stderr
        assert b"Traceback" not in ended.stderr
        said = ended.stdout.decode("ascii")
        assert "trainin\\u00e9" in said
        if form == "json":
            assert "`trainin\u00e9`" in json.dumps(json.loads(said), ensure_ascii=False)
