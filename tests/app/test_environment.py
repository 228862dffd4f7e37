"""Values of the environment in a recipe: a run needs them, and nothing that it writes or prints shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from declarative_train.app.main import main
from declarative_train.core.secrets import used_variables

SECRET = "s3cr3t-0001"
RECIPE = """
name: made
meta: {owner: "{{ env.A_TOKEN | upper }}", note: "by {{ env.A_TOKEN }}"}
data:
  source: {type: csv, path: "{{ env.A_TOKEN }}.csv"}
  fields: {x: {columns: [x]}, y: {columns: ["{{ env.A_COLUMN }}"]}}
model: {graph: {h: {type: linear, out_features: 1, input: x}}}
objective: {loss: {type: mse, input: h, target: y}}
training: {steps: 3, global_batch_size: 4, optimizer: {type: sgd, lr: 0.01}}
parallelism: single
layout: {gpus: 1, device: cpu}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_TOKEN", SECRET)
    monkeypatch.setenv("A_COLUMN", "price_1")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    rows = "".join(f"{number % 7},{number % 5},{number % 3}\n" for number in range(40))
    (tmp_path / f"{SECRET}.csv").write_text(f"x,price_1,price_2\n{rows}")
    return tmp_path


def in_files(folder: Path, *words: str) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".csv"]
    return [str(path) for path in files if any(word.encode() in path.read_bytes() for word in words)]


@pytest.mark.long
def test_a_run_shows_no_value_and_needs_all(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["show", "recipe.yaml"], ["plan", "recipe.yaml"], ["data", "show", "recipe.yaml"]):
        assert main(words) == 0
    assert main(["plan", "recipe.yaml", "-o", "plan.json"]) == 0
    assert main(["run", "plan.json", "--run-dir", "one"]) == 0
    assert main(["run", "recipe.yaml", "--run-dir", "one", "--resume", "--set", "training.steps=5"]) == 0
    assert main(["predict", "one", f"{SECRET}.csv", "-o", "out.csv"]) == 0
    streams = capfd.readouterr()
    printed = streams.out + streams.err.replace(f"{SECRET}.csv by", "")
    assert "{{ env.A_TOKEN }}.csv" in printed
    assert "finished after 5 steps" in printed
    lines = [line for line in printed.splitlines() if SECRET in line or SECRET.upper() in line]
    assert lines == []
    # the upper case letters are in the saved plan, which its owner alone can read: no variable gives them
    assert in_files(folder, SECRET) == []
    plans = [str(folder / "one" / "plan.1.json"), str(folder / "one" / "plan.json"), str(folder / "plan.json")]
    assert sorted(in_files(folder, SECRET.upper())) == plans
    assert {Path(path).stat().st_mode & 0o777 for path in plans} == {0o600}

    used_variables.__init__()  # type: ignore[misc]
    monkeypatch.setenv("A_COLUMN", "price_2")
    assert main(["run", "plan.json"]) == 3
    assert "other values in the environment, which decide what it computes: `A_TOKEN`, `A_COLUMN`" in (
        capfd.readouterr().err
    )
    monkeypatch.delenv("A_COLUMN")
    assert main(["run", "plan.json"]) == 3
    assert capfd.readouterr().err == (
        "dtrain: plan.json uses values of the environment, in which `A_COLUMN` is not set\nhelp: set it\n"
    )
    assert main(["predict", "one", f"{SECRET}.csv", "-o", "out.csv"]) == 3
    assert "uses values of the environment, in which `A_COLUMN` is not set" in capfd.readouterr().err


def test_a_saved_plan_is_signed_whatever_the_values_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A token that was changed since does not make another plan of it."""
    assert main(["plan", "recipe.yaml"]) == 0
    assert main(["plan", "recipe.yaml", "-o", "plan.json"]) == 0
    streams = capfd.readouterr()
    assert "csv {{ env.A_TOKEN }}.csv" in streams.out
    assert SECRET not in streams.out + streams.err
    assert in_files(folder, SECRET) == []
    before = json.loads(Path("plan.json").read_text())
    (folder / f"{SECRET}.csv").rename(folder / "another-0002.csv")
    monkeypatch.setenv("A_TOKEN", "another-0002")
    assert main(["plan", "plan.json"]) == 0
    assert main(["plan", "plan.json", "-o", "again.json"]) == 0
    after = json.loads(Path("again.json").read_text())
    assert after["data"]["source"] == before["data"]["source"]
    assert after["identity"] == before["identity"]
