"""`dtrain launch`: what its files ask for follows from the plan, and each engine accepts them. Scripts for ssh are run
here, with an ssh that stays on this machine; scripts for Slurm in tests/test_slurm.py."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from declarative_train.app.main import main
from declarative_train.planner.text.estimate import memory
from declarative_train.run.event import CheckpointSaved, RunStarted, StepDone
from declarative_train.run.sinks.jsonl import read_events
from declarative_train.tools.launch.needs import needs_of
from declarative_train.tools.launch.write import ENGINES, job_name
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data, write_recipe
from tests.shell_lines import LAUNCHING

ROOT = Path(__file__).parent.parent.parent
TWO = {"parallelism": "ddp", "layout": {"nodes": 2, "gpus_per_node": 2, "device": "auto"}, "data": {"workers": 3}}
POINTS = {"sweep": {"type": "grid", "over": {"training.optimizer.lr": [0.1, 0.01, 0.001]}}}
OPTIONS = {
    "kubernetes": ("--image", "dtrain:1", "--volume", "work"),
    "skypilot": ("--image", "dtrain:1", "--accelerator", "H100"),
    "slurm": (),
    "ssh": ("--hosts", "one,two"),
    "trainjob": ("--image", "dtrain:1"),
}
ENDLESS = {"training": {"epochs": None, "steps": 1_000_000}, "checkpoint": None, "evaluation": None}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(directory: Path, to: str, recipe: Any, *more: str) -> str:
    path = write_recipe(directory, recipe)
    assert main(["launch", str(path), "--to", to, "--output", "job", *more]) == 0
    return (directory / "job" / ENGINES[to].file).read_text()


def test_needs_follow_from_the_plan(directory: Path) -> None:
    needs = needs_of(compiled(directory, merged(DIGITS, TWO)))
    assert (needs.num_nodes, needs.tasks_per_node, needs.gpus_per_task, needs.cores) == (2, 2, 1, 4)
    assert (needs.gpus_per_node, needs.cores_per_node) == (2, 8)
    assert (needs.lead_s, needs.minutes) == (120, None)
    scatters = needs_of(
        compiled(directory, merged(DIGITS, {"parallelism": "dp", "layout": {"gpus": 2, "device": "auto"}}))
    )
    assert (scatters.tasks_per_node, scatters.gpus_per_task) == (1, 2)
    assert needs_of(compiled(directory, merged(DIGITS, {"layout": {"device": "cpu"}}))).gpus_per_node == 0


def test_the_time_to_stop_grows_with_what_is_saved(directory: Path) -> None:
    plan = compiled(directory, DIGITS)
    largest = replace(memory(plan)[0], parameters=40_000_000_000, optimizer=0)
    assert needs_of(replace(plan, memory=(largest,))).lead_s == 830  # 25 s, and twice 40 GB at 100 MB/s


def test_the_limit_is_that_of_the_user_of_the_recipe_or_of_the_estimate(directory: Path) -> None:
    recipe = merged(DIGITS, {"layout": {"hardware": "h100-sxm"}, "training": {"epochs": None, "steps": 10_000_000}})
    plan = compiled(directory, recipe)
    assert plan.estimate is not None
    assert plan.estimate.step_s is not None
    needs = needs_of(plan)
    assert needs.minutes is not None
    assert needs.minutes * 60 >= 1.5 * plan.estimate.step_s * 10_000_000
    assert needs_of(plan, minutes=7).minutes == 7
    timed = compiled(directory, merged(recipe, {"training": {"max_time": "2 hours"}}))
    assert needs_of(timed).minutes == 132  # ten minutes to start, two to stop


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("gpt_nano", "gpt-nano"), ("Über GPT!", "ber-gpt"), ("7b", "run-7b"), ("_", "run"), ("a" * 80, "a" * 50)],
)
def test_a_name_is_one_for_every_engine(name: str, wanted: str) -> None:
    assert job_name(name) == wanted


@pytest.mark.parametrize("to", sorted(ENGINES))
def test_the_interface_and_the_time_are_in_every_file(directory: Path, to: str) -> None:
    text = launch(directory, to, merged(DIGITS, TWO), *OPTIONS[to], "--interface", "eth1", "--time", "2 hours")
    assert "GLOO_SOCKET_IFNAME" in text
    assert "eth1" in text
    if to in ("slurm", "kubernetes", "trainjob"):
        assert {"slurm": "--time=120 ", "kubernetes": "Seconds: 7200", "trainjob": "Seconds: 7200"}[to] in text
    if ENGINES[to].file.endswith(".sh"):
        subprocess.run(["bash", "-n", str(directory / "job" / "job.sh")], check=True)
    else:
        assert all(isinstance(each, dict | None) for each in yaml.safe_load_all(text))
    assert (directory / "job" / "plan.json").exists()


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


@pytest.mark.parametrize("more", [{}, POINTS])
def test_kubernetes_accepts_the_job(directory: Path, more: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    words = [*OPTIONS["kubernetes"], *(["--sweep"] if more else [])]
    text = launch(directory, "kubernetes", merged(merged(DIGITS, TWO), more), *words)
    found = documents(text)
    assert [each["kind"] for each in found] == ["Service", "Job"] * (3 if more else 1)
    newest = validate.latest_version()
    for each in found:
        validate.validate(each, newest, strict=True)
    planted = documents(text.replace("completionMode", "completionMoed"))[1]
    with pytest.raises(validate.ValidationError):
        validate.validate(planted, newest, strict=True)
    spec = found[1]["spec"]
    assert (spec["completions"], spec["template"]["spec"]["terminationGracePeriodSeconds"]) == (2, 120)
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": 8}, "limits": {"nvidia.com/gpu": 2}}


def unread(text: dict[str, Any]) -> Any:
    """Return what the models of Kubeflow's own client know of a TrainJob."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    job = models.TrainerV1alpha1TrainJob.from_dict(text)
    assert job is not None
    return job.to_dict()


def test_kubeflow_accepts_the_job(directory: Path) -> None:
    text = launch(directory, "trainjob", merged(DIGITS, TWO), *OPTIONS["trainjob"])
    (job,) = documents(text)
    assert unread(job) == job
    (planted,) = documents(text.replace("numNodes", "numNode"))
    assert unread(planted) != planted
    assert job["spec"]["trainer"]["numNodes"] == 2


def test_skypilot_gets_paths_that_it_copies(directory: Path) -> None:
    (task,) = documents(launch(directory, "skypilot", merged(DIGITS, TWO), *OPTIONS["skypilot"]))
    assert task["num_nodes"] == 2
    assert task["resources"]["accelerators"] == "H100:2"
    assert "dtrain run job/plan.json --resume" in task["run"]


# of the page https://docs.skypilot.co/en/latest/reference/yaml-spec.html; SkyPilot refuses other keys
SKYPILOT = {
    "": "name workdir num_nodes resources envs secrets volumes file_mounts setup run config",
    "resources": "infra accelerators accelerator_args cpus memory instance_type use_spot disk_size disk_tier "
    "network_tier max_hourly_cost image_id ports labels autostop any_of ordered job_recovery",
    "job_recovery": "strategy max_restarts_on_errors recover_on_exit_codes",
}


def unknown_keys(task: dict[str, Any]) -> set[str]:
    resources = task.get("resources", {})
    parts = {"": task, "resources": resources, "job_recovery": resources.get("job_recovery", {})}
    return {key for name, part in parts.items() for key in part if key not in SKYPILOT[name].split()}


def test_skypilot_knows_every_key(directory: Path) -> None:
    text = launch(directory, "skypilot", merged(DIGITS, TWO), *OPTIONS["skypilot"], "--interface", "eth1")
    (task,) = documents(text)
    assert unknown_keys(task) == set()
    for key in ("num_nodes", "accelerators", "recover_on_exit_codes", "image_id"):
        (planted,) = documents(text.replace(key, f"{key}s"))
        assert unknown_keys(planted) == {f"{key}s"}
    schemas = pytest.importorskip("sky.utils.schemas")
    importlib.import_module("jsonschema").validate(task, schemas.get_task_schema())


def test_the_documented_lines_write_their_files(directory: Path) -> None:
    recipe = write_recipe(directory, merged(merged(DIGITS, TWO), POINTS))
    page = (ROOT / "docs" / LAUNCHING).read_text("utf-8")
    lines = re.findall(r"^\$ dtrain (launch RECIPE .*)$", page, re.M)
    assert {re.findall(r"--to (\w+)", line)[0] for line in lines} == set(ENGINES)
    for number, line in enumerate(lines):
        volume = line.replace("RECIPE", str(recipe)).replace("work:/work", f"work:{directory}")
        words = [word for word in shlex.split(volume) if word != "--submit"]  # which tests/test_slurm.py does
        assert main([*words, "--output", f"job_{number}"]) == 0
        assert list((directory / f"job_{number}").glob("job.*"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--to", "kubernetes"), 2, "kubernetes needs an image"),
        (("--to", "kubernetes", "--image", "a"), 2, "needs the claim of a volume"),
        (("--to", "kubernetes", "--image", "a", "--volume", "work:/elsewhere"), 2, "is not on the volume"),
        (("--to", "skypilot", "--image", "a"), 2, "--accelerator H100"),
        (("--to", "ssh", "--hosts", "a"), 2, "the plan is for 2 machines, and --hosts names 1"),
        (("--to", "ssh", "--sweep", "--hosts", "a,b"), 2, "a sweep cannot be written for ssh"),
        (("--to", "slurm", "--sweep"), 2, "has no `sweep:` section"),
        (("--to", "slurm", "--time", "soon"), 2, "`soon` is not a time"),
    ],
)
def test_misuse_is_one_line(
    directory: Path, words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(directory, merged(DIGITS, TWO))
    assert main(["launch", str(path), *words]) == code
    assert said in capsys.readouterr().err


def test_what_cannot_be_submitted_here_is_said(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    path = write_recipe(directory, merged(DIGITS, TWO))
    assert main(["launch", str(path), "--to", "skypilot", "--submit", *OPTIONS["skypilot"]]) == 3
    assert "sky is not installed here" in capsys.readouterr().err


def find_number(events: Path, kind: type) -> int:
    return sum(isinstance(event, kind) for event in read_events(events)) if events.exists() else 0


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param("by itself", marks=pytest.mark.long),
        "by a signal",
        pytest.param("after a kill", marks=pytest.mark.long),
    ],
)
def test_the_script_for_ssh_runs_and_stops(directory: Path, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    bin_ = directory / "bin"
    bin_.mkdir()
    (bin_ / "ssh").write_text('#!/bin/bash\nexec bash -c "${@: -1}"\n')  # the last word is the command
    (bin_ / "ssh").chmod(0o755)
    (bin_ / "dtrain").write_text(f'#!/bin/bash\nexec {sys.executable} -m declarative_train "$@"\n')
    (bin_ / "dtrain").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    recipe = DIGITS if ends == "by itself" else merged(merged(DIGITS, ENDLESS), {"layout": {"max_restarts": 2}})
    text = launch(directory, "ssh", recipe, "--hosts", "one")
    path = directory / "job" / "job.sh"
    path.write_text(re.sub(r"exec \S+ run", f"exec {bin_}/dtrain run", text))
    process = subprocess.Popen(["bash", str(path)], cwd=directory, start_new_session=True)
    log = directory / "runs" / "made" / "job" / "events.jsonl"

    def wait_for_a_step() -> None:
        deadline_s, before = time.monotonic() + 100, find_number(log, StepDone)
        while find_number(log, StepDone) == before:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    try:
        if ends == "after a kill":
            wait_for_a_step()
            os.kill(int((directory / "job" / "node_0.pid").read_text()), signal.SIGKILL)
            wait_for_a_step()
        if ends != "by itself":
            wait_for_a_step()
            process.send_signal(signal.SIGTERM)
        assert process.wait(100) == (0 if ends == "by itself" else 75)
    finally:
        process.kill()
    assert find_number(log, CheckpointSaved) > 0
    assert find_number(log, RunStarted) == (2 if ends == "after a kill" else 1)


def test_the_image_is_built_from_files_that_are_there() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for sources in re.findall(r"^COPY (.*) \S+$", text, re.M):
        assert all((ROOT / each).exists() for each in sources.split()), sources
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([linter, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_plans_of_all_points_are_written(directory: Path) -> None:
    text = launch(directory, "slurm", merged(DIGITS, POINTS), "--sweep", "--jobs", "2")
    assert "#SBATCH --array=0-2%2" in text
    assert sorted(path.name for path in (directory / "job").glob("plan-*.json")) == [
        f"plan-{number}.json" for number in range(3)
    ]
