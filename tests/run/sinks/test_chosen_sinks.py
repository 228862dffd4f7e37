"""The sinks of `logging.sinks`: what a run leaves in each, what a resumed one adds, and what their failures do."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from declarative_train.core import machine
from declarative_train.plan.codec import to_json
from declarative_train.run import sinks as tables
from declarative_train.run.event import EvaluationDone, Event, Notice, RunStarted, StepDone
from declarative_train.run.launch import launch
from declarative_train.run.sink import FanOut
from declarative_train.run.sinks import background
from declarative_train.run.sinks.background import BackgroundSink
from declarative_train.run.sinks.csv_table import CsvSink
from declarative_train.run.sinks.jsonl import read_events
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data
from tests.engine.runs import newest
from tests.kept import Kept

ROOT = Path(__file__).parent.parent.parent


def started(run_dir: Path, first_step: int = 0, lr: float = 0.1) -> RunStarted:
    settings: dict[str, str | int | float | bool] = {"training.optimizer.lr": lr, "mode": "single"}
    return RunStarted(
        "a", str(run_dir), "single", "cpu", 1, 30, 10, first_step, 5, "brief", "the plan", settings, time.time()
    )


def stepped(step: int, loss: float) -> StepDone:
    return StepDone(step, 1, loss, {}, {"accuracy": 0.5}, {"lr": 0.1}, None, 10.0, None, 0.0, 2**20, None, time.time())


def evaluated(step: int, loss: float) -> EvaluationDone:
    return EvaluationDone(step, 1, "validation", {"validation/loss": loss}, 5, 0.1, time.time())


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv_has_a_row_for_each_step_and_evaluation_and_goes_on_where_a_run_does(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    for event in (started(tmp_path), stepped(10, 1.5), evaluated(10, float("nan")), stepped(20, 1.25)):
        sink.write(event)
    sink.close()
    with path.open("a") as stream:
        stream.write("30,1,17")  # cut short by a crash
    before = path.read_text().splitlines()[0]
    sink = CsvSink(path)
    for event in (started(tmp_path, first_step=10), stepped(20, 1.0), evaluated(20, 2.0)):
        sink.write(event)
    sink.close()
    assert path.read_text().splitlines()[0] == before
    found = [(row["step"], row["training/loss"], row["validation/loss"]) for row in rows_of(path)]
    assert found == [("10", "1.5", ""), ("10", "", "nan"), ("20", "1.0", ""), ("20", "", "2.0")]


def test_a_recipe_chooses_its_sinks(tmp_path: Path) -> None:
    """And a run of it writes to no other; resumed, to the same file."""
    recipe = merged(DIGITS, {"logging": {"every": "2 steps", "sinks": {"csv": {}}}})
    plan = compiled(tmp_path, recipe)
    assert plan.logging.sinks == {"csv": {}}
    assert launch(plan, quiet=True, max_steps=4).code == 0
    run_dir, _ = newest(tmp_path)
    assert not list(run_dir.glob("events.out.*"))
    assert [row["step"] for row in rows_of(run_dir / "metrics.csv") if row["training/loss"]] == ["2", "4"]
    assert launch(plan, quiet=True, resume=str(run_dir), max_steps=4).code == 0
    assert [row["step"] for row in rows_of(run_dir / "metrics.csv") if row["training/loss"]] == ["2", "4", "6", "8"]


def test_which_sinks_a_plan_has(tmp_path: Path) -> None:
    def chosen(sinks: object) -> object:
        return dict(compiled(tmp_path, merged(DIGITS, {"logging": {"sinks": sinks}})).logging.sinks)

    assert compiled(tmp_path, DIGITS).logging.sinks == {"tensorboard": {"pictures": True}}
    assert chosen({}) == chosen({"jsonl": {}}) == {}
    assert chosen({"wandb": {"mode": "offline"}}) == {"wandb": {"project": None, "mode": "offline"}}


def test_a_package_that_is_missing_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = compiled(tmp_path, merged(DIGITS, {"logging": {"sinks": {"mlflow": {}}}}))
    there = importlib.util.find_spec
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name == "mlflow" else there(name))
    outcome = launch(plan, quiet=True)
    assert (outcome.code, outcome.run_dir) == (3, None)
    (why,) = outcome.why
    assert why.startswith("dtrain: logging.sinks.mlflow needs the package mlflow; help: ")
    assert why.endswith("pip install 'declarative_train[mlflow]'")
    assert not Path(plan.logging.dir).exists()


def test_wandb_is_not_let_ask_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    assert [*tables.sink_problems({"wandb": {"mode": "offline"}})] == []
    (said,) = tables.sink_problems({"wandb": {"mode": "online"}})
    assert "needs an API key" in said
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai login user password x\n")
    netrc.chmod(0o600)
    assert [*tables.sink_problems({"wandb": {"mode": "online"}})] == []


class Lost(BackgroundSink):
    """A server that goes away after the start."""

    def _send(self, events: Any) -> None:
        if not isinstance(events[0], RunStarted):
            raise ConnectionError("no route to host")

    def _finish(self) -> None:
        raise AssertionError("nothing is finished after a failure")


class Silent(BackgroundSink):
    """A server that does not answer."""

    wait_s: ClassVar[float] = 0.2

    def _send(self, events: Any) -> None:
        time.sleep(60)

    def _finish(self) -> None: ...


def test_a_server_that_goes_away_costs_a_run_nothing_but_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "SEND_S", 0.05)
    kept = Kept()
    sinks = FanOut((kept, Lost()))
    sinks.write(started(tmp_path))
    sinks.flush()
    for step in (1, 2, 3):
        sinks.write(stepped(step, 1.0))
        sinks.flush()
    sinks.close()
    assert [event.step for event in kept.events if isinstance(event, StepDone)] == [1, 2, 3]
    assert [event.message for event in kept.events if isinstance(event, Notice)] == [
        "Lost is disabled for the rest of this run: no route to host"
    ]


def test_a_server_that_does_not_answer_holds_a_run_up_for_a_bounded_time(tmp_path: Path) -> None:
    kept, begun = Kept(), time.monotonic()
    sinks = FanOut((kept, Silent()))
    sinks.write(started(tmp_path))
    sinks.flush()
    sinks.close()
    assert time.monotonic() - begun < 5
    (notice,) = (event for event in kept.events if isinstance(event, Notice))
    assert "no answer for 0.2 s" in notice.message


CHOSEN = """
import sys, time
from pathlib import Path
from declarative_train.run.sinks import open_sinks
from declarative_train.run.sink import FanOut
from tests.run.sinks.test_chosen_sinks import evaluated, started, stepped
from declarative_train.run.event import RunEnded

run_dir, chosen = Path(sys.argv[1]), eval(sys.argv[2])
for first, lr, status in ((0, 0.1, "stopped"), (10, 0.2, "finished")):
    sinks = FanOut(open_sinks(True, chosen, run_dir))
    sinks.write(started(run_dir, first, lr))
    sinks.write(stepped(first + 10, 2.0 - first / 10))
    sinks.write(evaluated(first + 10, float("nan")))
    sinks.flush()
    sinks.write(RunEnded(first + 10, status, {"best/validation/loss": 0.5}, 1.0, time.time(), {}))
    sinks.close()
"""


def told(run_dir: Path, chosen: dict[str, Any]) -> list[Event]:
    """In a process of its own, whose warnings are those libraries' own business: a run, and it resumed."""
    run_dir.mkdir(parents=True)
    (run_dir / "plan.json").write_text('{"recipe": {"some/where/r.yaml": "name: a"}}')
    done = subprocess.run(
        [sys.executable, "-c", CHOSEN, str(run_dir), repr(chosen)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    events = read_events(run_dir / "events.jsonl")
    assert not [event for event in events if isinstance(event, Notice)]
    return events


ASKED = """
import json, sys
from declarative_train.run.sinks.mlflow_server import open_client

client = open_client(sys.argv[1])
found = []
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        history = client.get_metric_history(run.info.run_id, "training/loss")
        found.append({
            "experiment": experiment.name, "name": run.info.run_name, "status": run.info.status,
            "params": run.data.params, "tags": run.data.tags, "metrics": sorted(run.data.metrics),
            "loss": [[each.step, each.value] for each in history],
            "files": [each.path for at in (None, "recipe") for each in client.list_artifacts(run.info.run_id, at)],
        })
print(json.dumps(found))
"""


def held_by_mlflow(uri: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", ASKED, uri], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    return dict(run)


def check_mlflow(run: dict[str, Any]) -> None:
    """Of `CHOSEN`: one run, which went on where it had been stopped."""
    assert (run["name"], run["status"], run["tags"]["state"]) == ("20261122-single", "FINISHED", "finished")
    assert run["loss"] == [[10, 2.0], [20, 1.0]]
    assert {"training/accuracy", "validation/loss", "validation/best_loss"} <= set(run["metrics"])
    assert run["params"] == {"training.optimizer.lr": "0.1", "mode": "single"}
    assert run["tags"]["changed.training.optimizer.lr"] == "0.2"
    assert run["tags"]["resumed_after_step"] == "10"
    assert run["files"] == ["plan.txt", "recipe", "recipe/r.yaml"]


@pytest.mark.long
def test_mlflow_keeps_a_run_and_goes_on_with_it(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    chosen = {"mlflow": {"uri": None, "experiment": None, "folder": str(tmp_path)}}
    told(tmp_path / "a" / "20261122-single", chosen)
    run = held_by_mlflow(f"sqlite:///{tmp_path / 'mlflow.db'}")
    check_mlflow(run)
    assert run["experiment"] == "a"
    assert (tmp_path / "mlflow-artifacts").is_dir()


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> None:
    write_data(tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """MLflow's own, on a free port of this machine."""
    pytest.importorskip("mlflow")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    folder = tmp_path / "server"
    folder.mkdir()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", "sqlite:///store.db", "--artifacts-destination", "kept"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        uri, end = f"http://127.0.0.1:{port}", time.monotonic() + 90
        while True:
            try:
                with urllib.request.urlopen(f"{uri}/health", timeout=2):
                    break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.5)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_mlflow_server_keeps_a_run_and_goes_on_with_it(tmp_path: Path, server: str) -> None:
    chosen = {"mlflow": {"uri": server, "experiment": "tried", "folder": str(tmp_path)}}
    told(tmp_path / "a" / "20261122-single", chosen)
    run = held_by_mlflow(server)
    check_mlflow(run)
    assert run["experiment"] == "tried"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_server_that_is_not_there_does_not_end_a_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    recipe = merged(DIGITS, {"logging": {"sinks": {"csv": {}, "mlflow": {"uri": "http://127.0.0.1:9"}}}})
    (tmp_path / "plan.json").write_text(to_json(compiled(tmp_path, recipe)))
    command = [sys.executable, "-m", "declarative_train", "run", "plan.json", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "Mlflow is disabled for the rest of this run" in done.stderr


@pytest.mark.long
def test_wandb_offline_keeps_a_run_under_one_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_dir = tmp_path / "a" / "20261122-single"
    told(run_dir, {"wandb": {"project": "tried", "mode": "offline"}})
    files = sorted((run_dir / "wandb").glob("offline-run-*/*.wandb"))
    (run_id,) = {file.stem.removeprefix("run-") for file in files}
    assert run_id in (run_dir / "wandb.json").read_text()
    content = b"".join(file.read_bytes() for file in files)
    for word in (b"training/loss", b"validation/best_loss", b"training.optimizer.lr", b"the plan", b"tried"):
        assert word in content, word
