"""Sinks of a recipe's plugins: read without being imported, opened by the run, skipped when they fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from declarative_train import recipe as recipe_room
from declarative_train.plan.codec import from_json, to_json
from declarative_train.run.launch import launch
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data, write_recipe
from tests.engine.runs import newest

PLUGIN = '''
from pathlib import Path
from declarative_train.run.event import Event, StepDone
from declarative_train.run.sink import Sink

class LossesSink(Sink):
    """The loss of every logging step."""

    def __init__(self, run_dir: Path, file: str, factor: float = 1.0, fails_at: int = 0, tags: list[str] = []):
        self.stream = (run_dir / file).open("a")
        self.factor, self.fails_at = factor, fails_at
        assert isinstance(tags, list)

    def write(self, event: Event) -> None:
        if isinstance(event, StepDone):
            if event.step == self.fails_at:
                raise ValueError("the server said no")
            print(event.step, self.factor * event.loss, file=self.stream)

    def flush(self) -> None:
        self.stream.flush()

    def close(self) -> None:
        self.stream.close()
'''


def recipe_with(folder: Path, sinks: object, text: str = PLUGIN) -> dict[str, Any]:
    (folder / "my_sinks.py").write_text(text)
    write_data(folder)
    return merged(DIGITS, {"plugins": ["my_sinks.py"], "logging": {"every": "2 steps", "sinks": sinks}})


def said(folder: Path, sinks: object, text: str = PLUGIN) -> list[tuple[str, str]]:
    loaded = recipe_room.load(str(write_recipe(folder, recipe_with(folder, sinks, text))))
    return [(each.code, each.message) for each in loaded.diagnostics]


def test_a_run_writes_to_it_beside_the_others(tmp_path: Path) -> None:
    sinks = {"losses": {"file": "losses.txt", "factor": 10, "tags": ["a"]}, "csv": {}}
    plan = compiled(tmp_path, recipe_with(tmp_path, sinks))
    assert plan.logging.sinks["losses"] == {"file": "losses.txt", "factor": 10, "tags": ["a"]}
    assert launch(from_json(to_json(plan)), quiet=True, max_steps=4).code == 0
    run_dir, _ = newest(tmp_path)
    rows = [line.split() for line in (run_dir / "losses.txt").read_text().splitlines()]
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    losses = {event["step"]: event["loss"] for event in events if event["event"] == "StepDone"}
    assert {int(step): pytest.approx(float(loss)) for step, loss in rows} == {k: 10 * v for k, v in losses.items()}
    assert (run_dir / "metrics.csv").is_file()


def test_one_that_fails_is_left_out(tmp_path: Path) -> None:
    plan = compiled(tmp_path, recipe_with(tmp_path, {"losses": {"file": "losses.txt", "fails_at": 4}}))
    assert launch(plan, quiet=True).code == 0
    run_dir, _ = newest(tmp_path)
    assert len((run_dir / "losses.txt").read_text().splitlines()) == 1
    assert "is disabled for the rest of this run: the server said no" in (run_dir / "events.jsonl").read_text()


def test_one_that_cannot_be_made_ends_the_run_with_its_name(tmp_path: Path) -> None:
    plan = compiled(tmp_path, recipe_with(tmp_path, {"losses": {"file": "no/such/folder"}}))
    outcome = launch(plan, quiet=True)
    assert outcome.code == 3
    assert "logging.sinks.losses: FileNotFoundError" in " ".join(outcome.why)


@pytest.mark.parametrize(
    ("sinks", "expected"),
    [
        ({"losses": {"file": "a", "fakt": 2}}, "`logging.sinks.losses` has no key `fakt`"),
        ({"losses": {"file": 3}}, "`file`"),
        ({"losses": {}}, "file"),
        ({"loses": {"file": "a"}}, "loses"),
    ],
)
def test_settings_are_checked_without_running_it(tmp_path: Path, sinks: object, expected: str) -> None:
    found = said(tmp_path, sinks, PLUGIN + "\nraise SystemExit(3)\n")
    assert len(found) == 1
    assert expected in found[0][1]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("def flush", "def flushed", ("X003", "the sink `LossesSink` has no `flush`")),
        ("(self, run_dir: Path, file: str, factor: float = 1.0, fails_at: int = 0, tags: list[str] = [])", "(self)",
         ("X003", "the sink `LossesSink` has no `__init__` that takes the run's folder")),
        ("class LossesSink", "class CsvSink", ("B001", "the plugin's sink `csv` has the same name as a sink")),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_class_is_said(
    tmp_path: Path, before: str, after: str, expected: tuple[str, str]
) -> None:
    assert before in PLUGIN
    assert said(tmp_path, {"csv": {}}, PLUGIN.replace(before, after)) == [expected]
