"""The suite for one GPU runs here on the CPU for a few cells, so that its code is not first run where time is dear."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml

from benchmarks import gpu, report
from benchmarks.gpu_models import Job, by_hand, jobs, recipe, write_data
from declarative_train import recipe as recipe_room
from declarative_train.planner.compiler import compile as compile_plan
from tests.gpu.device import NO_GPU, has_device
from tests.gpu.needs import OF_TESTS, PACKAGES, missing, what_to_do
from tests.gpu.run_cell import ROOT, ran
from tests.started import finish, start


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TEST_DEVICE", "cpu")


@pytest.mark.parametrize("spawns", [False, pytest.param(True, marks=pytest.mark.long)])
def test_ranks_that_share_a_device_pass_their_tensors_by_the_cpu(spawns: bool) -> None:
    """Spawned: as on a machine with a GPU."""
    ways = ["zero bubble 2", "fsdp 2"]
    found = ran("ways", names=ways, precision_name="fp64", spawns=spawns)
    assert list(found) == ways
    assert max(found.values()) <= 1e-9


@pytest.mark.long
def test_a_resumed_run_is_the_one_that_was_never_stopped() -> None:
    found = ran("resumes", model="gpt", training={})
    assert (found["codes"], found["apart"]) == ([0, 0, 0], [])


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if has_device() and os.environ.get("DTRAIN_TEST_DEVICE") != "cpu":
        pytest.skip("there is one")
    monkeypatch.delenv("DTRAIN_TEST_DEVICE")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, out, _ = finish(start("tests.gpu", cwd=ROOT))
    assert (code, out.strip()) == (0, NO_GPU)


def test_what_it_imports_is_what_the_package_depends_on() -> None:
    """And what is not there is told, with a way on."""
    text = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=]", each)[0] for each in text}
    inside = {re.split(r"[<>=!~; \[]", each)[0].lower() for each in requires("pydantic") or () if "extra" not in each}
    assert names - {"torch"} | inside == set(PACKAGES)
    assert missing((*PACKAGES, *OF_TESTS)) == []
    assert missing(("numpy", "no-such-package")) == ["no-such-package"]
    assert "wheels no-such-package\n" in what_to_do(["no-such-package"])


@pytest.mark.parametrize("job", jobs(tiny=True), ids=lambda job: job.name)
def test_what_is_timed_on_a_gpu_has_the_sizes_of_what_it_is_held_against(job: Job, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    write_data(job, data)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe(job, data, compiled=False, layout={"device": "cpu"})))
    loaded = recipe_room.load(str(tmp_path / "recipe.yaml"))
    assert loaded.recipe is not None
    plan, _ = compile_plan(loaded.recipe)
    assert plan is not None
    ours = sum(item.num_elements for item in plan.parameters if item.tie is None)
    assert ours == sum(parameter.numel() for parameter in by_hand(job).parameters())


def test_the_benchmark_of_a_gpu_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures say nothing here."""
    monkeypatch.setenv("DTRAIN_BENCH_DEVICE", "cpu")
    job = jobs(tiny=True)[0]
    write_data(job, tmp_path / "data.npz")
    for side in ("ours", "by_hand"):
        words = (job.name, side, "0", str(tmp_path / "data.npz"))
        code, out, errors = finish(start("benchmarks.gpu_step", *words, cwd=ROOT), 100)
        assert code == 0, errors
        assert json.loads(out.splitlines()[-1])["step_s"] > 0


def test_the_benchmark_of_a_gpu_has_the_settings_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    @contextmanager
    def settings(*_: object) -> Iterator[None]:
        done.append("begun")
        yield
        done.append("ended")

    def timed(step: object) -> dict[str, float]:
        done.append("timed")
        return {}

    for target, value in (("TINY", True), ("KIND", "cpu"), ("timed", timed)):
        monkeypatch.setattr(gpu, target, value)
    monkeypatch.setattr("declarative_train.run.rank.torch_settings", settings)
    job = jobs(tiny=True)[0]
    write_data(job, tmp_path / "data.npz")
    gpu.ours(job, False, tmp_path / "data.npz")
    assert done == ["begun", "timed", "ended"]


def test_a_variant_that_is_late_or_fails_leaves_the_rows_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("TINY", True), ("LIMIT_S", 0.01), ("missing", list)):
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr(report, "REPORT", tmp_path / "report.md")
    report.REPORT.write_text("before\n<!-- begin: make bench-gpu -->\n<!-- end: make bench-gpu -->\nbehind\n")
    monkeypatch.setattr("sys.argv", ["gpu", "--only", "resnet_50", "--write"])
    with pytest.raises(SystemExit, match=r"(?s)gpu_step resnet_50 ours 0 .*did not end.*gpu_step resnet_50 ours 1"):
        gpu.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| resnet_50")]
    assert rows[:2] == [f"| resnet_50{word} | ours: over 0.01 s | | | | | |" for word in ("", ", compiled")]
    assert rows[0] in report.REPORT.read_text()
