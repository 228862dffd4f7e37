"""`logging.dir` at a URL: the folder of a run is copied there, `status` and `runs` read it there, and another machine
continues the run from there. The store is moto's S3, over HTTP."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from declarative_train.app.main import main
from declarative_train.engine.failures import describe_failure, read_failures
from declarative_train.run.coordinator import Coordinator
from declarative_train.run.event import EvaluationDone, RunEnded, RunStarted, StepDone
from declarative_train.run.messages import NodeResult, Place
from declarative_train.run.sinks.jsonl import read_events
from declarative_train.run.storage import remote_dir
from declarative_train.run.storage.remote_dir import Mirror, fetch_run, is_uploading, place_for
from tests.engine.made_recipes import DIGITS, merged, write_data, write_recipe
from tests.engine.test_lost_store import Store, store  # noqa: F401  # a fixture
from tests.started import finish, start


def test_a_folder_is_copied_changed_and_fetched(tmp_path: Path) -> None:
    remote, run = f"memory://{tmp_path.name}/runs", tmp_path / "here" / "made" / "20260101-000000-single"
    (run / "failures").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    for name in ("events.jsonl", "run.json", "failures/rank_0.json", "checkpoints/large", "lock"):
        (run / name).write_text(name)
    place = place_for(remote, "made", run, None)
    assert place.startswith(f"{remote}/made/{run.name}-")
    mirror, fs = Mirror(run, place), fsspec.filesystem("memory")
    mirror.copy()

    def there() -> set[str]:
        return {path.partition(f"{run.name}-")[2][7:] for path in fs.find(place.removeprefix("memory:/"))}

    assert there() == {"events.jsonl", "run.json", "failures/rank_0.json", "uploaded.json"}
    shutil.rmtree(run / "failures")
    (run / "events.jsonl").write_text("more events")
    mirror.copy(has_ended=True)
    assert there() == {"events.jsonl", "run.json", "uploaded.json"}
    with remote_dir.local_copies(place) as copy:
        assert not is_uploading(Path(copy))  # it has ended
    assert fetch_run(remote, "made", run.parent) is None  # what is here is as new
    elsewhere = tmp_path / "there"
    assert fetch_run(remote, "made", elsewhere) is not None
    assert (elsewhere / run.name / "events.jsonl").read_text() == "more events"
    assert fetch_run(remote, "made", tmp_path, tmp_path / "other") is None  # there is no run of that name


def test_a_store_that_does_not_answer_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events.jsonl").write_text("a")
    mirror = Mirror(tmp_path, f"memory://{tmp_path.name}/away")
    put = mirror._fs.put_file
    monkeypatch.setattr(mirror._fs, "put_file", lambda *given: (_ for _ in ()).throw(OSError("503")))
    with pytest.raises(OSError, match="503"):
        mirror.copy()
    monkeypatch.setattr(mirror._fs, "put_file", put)
    mirror.copy()
    assert mirror._fs.exists(f"{mirror._base}/events.jsonl")


def test_the_head_writes_what_other_nodes_reported(tmp_path: Path) -> None:
    """And leaves what is there: a rank of this node, or of another one on the same disk."""
    places = (Place("a", 0, "box0"), Place("b", 1, "box1"))
    lost, own = (describe_failure(ValueError(words), 1, None, 3) for words in ("lost", "own"))
    coordinator = Coordinator(None)  # type: ignore[arg-type]
    coordinator._job, coordinator._places = SimpleNamespace(failures_dir=tmp_path / "failures"), places  # type: ignore[assignment]
    results = [NodeResult(None, {}, (each,), waiting={"waiting_1.txt": each.message}) for each in (own, lost)]
    coordinator._keep_reports({places[0]: results[0]})
    assert not (tmp_path / "failures").exists()
    coordinator._keep_reports(dict(zip(places, results, strict=True)))
    assert [each.message for each in read_failures(tmp_path / "failures")] == ["ValueError: lost"]
    assert (tmp_path / "failures" / "waiting_1.txt").read_text() == "ValueError: lost"
    coordinator._keep_reports({places[1]: results[0]})
    assert [each.message for each in read_failures(tmp_path / "failures")] == ["ValueError: lost"]


FAILS = """
import os
from torch import nn

class Frail(nn.Module):
    def forward(self, x):
        if os.environ.get("RANK") == "1":
            raise ValueError("the dog ate the batch")
        return x
"""


@pytest.mark.long
def test_the_failure_of_a_node_with_a_disk_of_its_own_arrives(
    tmp_path: Path,
    store: Store,  # noqa: F811
) -> None:
    (tmp_path / "frail.py").write_text(FAILS)
    several = {"parallelism": "ddp", "layout": {"gpus": None, "nodes": 2, "gpus_per_node": 1}}
    changes = {"plugins": ["frail.py"], "model": {"graph": {"act": {"type": "frail"}}}}
    recipe = write_recipe(tmp_path, merged(merged(DIGITS, changes), several))
    with socket.create_server(("127.0.0.1", 0)) as any_server:
        head = f"127.0.0.1:{any_server.getsockname()[1]}"
    started = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        words = ("--quiet", "--set", "logging.dir=s3://made/runs", "--node", str(number), "--head", head)
        started.append(start("declarative_train", "run", str(recipe), *words, cwd=tmp_path / str(number)))
    codes = [finish(each, 110)[0] for each in started]
    assert codes == [3, 3]
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    (place,) = fs.ls("made/runs/made", detail=False)
    failure = json.loads(fs.cat_file(f"{place}/failures/rank_1.json"))
    assert failure["message"] == "ValueError: the dog ate the batch"
    assert b"frail.py" in fs.cat_file(f"{place}/failures/rank_1.txt")


@pytest.mark.long
def test_a_run_goes_on_on_another_machine(
    tmp_path: Path,
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = write_recipe(tmp_path, merged(DIGITS, {"checkpoint": {"every": "3 steps", "best": None}}))
    machines = [tmp_path / name for name in ("one", "two")]
    write_data(tmp_path)
    for number, machine in enumerate(machines):
        machine.mkdir()
        words = ("--max-steps", "6") if number == 0 else ("--resume",)
        line = ("run", str(recipe), "--quiet", "--set", "logging.dir=s3://made/runs", *words)
        code, _, errors = finish(start("declarative_train", *line, cwd=machine), 110)
        assert code == 0, errors
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    (place,) = fs.ls("made/runs/made", detail=False)
    log = tmp_path / "events.jsonl"
    fs.get_file(f"{place}/events.jsonl", str(log))
    events = read_events(log)
    assert [event.first_step for event in events if isinstance(event, RunStarted)] == [0, 6]
    for kind in (StepDone, EvaluationDone, RunEnded):
        steps = [event.step for event in events if isinstance(event, kind)]
        assert steps == sorted(set(steps))  # none is there twice
    names = [path.rpartition("/")[2] for path in fs.ls(place, detail=False)]
    assert len([name for name in names if name.startswith("events.out.tfevents")]) == 2  # one of each session
    assert {"run.json", "plan.json", "owner.json", "checkpoints", "uploaded.json"} <= set(names)
    assert main(["status", f"s3://{place}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["restarts"], found["run"]) == ("finished", 1, f"s3://{place}")
    assert main(["runs", "s3://made/runs", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["state"] == "finished"
