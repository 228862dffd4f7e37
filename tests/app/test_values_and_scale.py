"""`trace --values`: rows as numbers, before and after training; `plan --scale`: when more GPUs stop paying."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.__main__ import main
from declarative_train.core.amounts import time_in_words
from declarative_train.data import shared_sets
from declarative_train.planner.text.estimate import ScalingRow, step_bounds, verdict
from tests.planner.cells import Cell

ROOT = Path(__file__).parent.parent.parent
MODES = str(ROOT / "recipes" / "compare_modes.yaml")
Captured = pytest.CaptureFixture[str]

HOUSES = """\
data:
  source: {type: csv, path: houses.csv}
  fields:
    x: {columns: [rooms, metres], normalize: standard, missing: mean}
    town: {type: category, columns: [town], unknown: 0}
    price: {columns: [price], normalize: standard}
  split: {validation: {type: where, column: town, in: [Rom]}}
model:
  graph:
    vectors: {type: embeddings, embedding_dim: 2, input: town}
    joined: {type: concat, inputs: [x, vectors]}
    net: {type: mlp, hidden: [8], out_features: 1}
objective:
  loss: {type: mse, input: net, target: price}
training: {epochs: 1, global_batch_size: 4, optimizer: {type: adam, lr: 1e-3}}
"""


@pytest.fixture
def houses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [
        f"{1 + at % 5},{'' if at == 1 else 30 + 7 * at},{'Ulm' if at % 3 else 'Rom'},{1000 + 90 * at}"
        for at in range(24)
    ]
    (tmp_path / "houses.csv").write_text("rooms,metres,town,price\n" + "\n".join(rows) + "\n")
    (tmp_path / "houses.yaml").write_text(HOUSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_values_of_the_first_rows_and_the_way_of_one(houses: Path, capsys: Captured) -> None:
    assert main(["trace", "houses.yaml", "--values"]) == 0
    text = capsys.readouterr().out
    assert "row 2 of houses.csv" in text
    assert re.search(r"rooms 2, metres\s", text)
    assert "(missing)" in text
    assert "normalize" in text
    assert max(map(len, text.splitlines())) <= 80
    assert main(["run", "houses.yaml", "--quiet", "--max-steps", "2"]) == 0
    capsys.readouterr()
    assert main(["trace", "runs/houses", "--values"]) == 0
    text = capsys.readouterr().out
    assert "\nthe first of validation, row 1 of" in text
    for node in ("vectors", "joined", "net"):
        assert re.search(rf"^{node} ", text, re.MULTILINE)
    assert re.search(r"loss: predicted [\d.]+; target 1000, in the unit of the column", text)
    assert max(map(len, text.splitlines())) <= 80
    (houses / "houses.csv").unlink()
    shared_sets._latest.clear()  # what this process has read
    assert main(["trace", "runs/houses", "--values"]) == 3
    assert "houses.csv" in capsys.readouterr().err


def test_values_of_no_run(tmp_path: Path, capsys: Captured) -> None:
    assert main(["trace", str(tmp_path), "--values"]) == 2
    assert "is not a run" in capsys.readouterr().err


def test_scale_is_a_table_between_two_ends(capsys: Captured) -> None:
    words = ["--for", "h100-sxm", "--set", "training.gradient_accumulation_steps=1"]
    assert main(["plan", MODES, *words, "--scale", "8,1,2,12"]) == 0
    text = capsys.readouterr().out
    rows = re.findall(r"^ *(\d+)  (single|ddp) .*$", text, re.MULTILINE)
    assert rows == [("1", "single"), ("2", "ddp"), ("8", "ddp")] or ("1", "single") in rows
    assert "12 GPUs: not a multiple of 8" in text
    assert "from full to no overlap" in text
    assert re.search(r"^ *2  ddp.*does not pay$", text, re.MULTILINE), text


@pytest.mark.parametrize("parallelism", ["ddp", "{data: {shard: all}}", "{tensor: 2, data: {shard: all}}", "auto"])
def test_scale_shows_the_figures_of_the_plan(parallelism: str, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "gpt.yaml"
    path.write_text(
        Cell("llama", "single", "fp32", "none").recipe("", "runs").replace("gpus: 1, device: cpu", "gpus: 8")
    )
    words = ["--set", f"parallelism={parallelism}"]
    assert main(["plan", str(path), *words, "--for", "h100-sxm", "--scale", "8"]) == 0
    text = capsys.readouterr().out
    settings = [*words[1:], "layout.hardware=h100-sxm", "layout.gpus=8"]
    recipe = recipe_room.load(str(path), set_=settings).recipe
    assert recipe is not None
    plan, diagnostics = planner.compile(recipe)
    assert plan is not None, diagnostics
    assert plan.estimate is not None
    assert f" {time_in_words(step_bounds(plan)[0])}" in text
    assert plan.layout.size("tensor") == (2 if "tensor" in parallelism else 1)


def test_scale_without_any_row_says_why_and_no_more(capsys: Captured) -> None:
    assert main(["plan", MODES, "--for", "cpu", "--scale", "1"]) == 1
    text = capsys.readouterr().out
    assert "1 GPU: the speed of cpu is not known" in text
    assert "from full to no overlap" not in text


@pytest.mark.parametrize(("seconds", "said"), [(0.5, "pays"), (0.7, "pays"), (0.75, "does not pay")])
def test_gpus_pay_by_each_doubling(seconds: float, said: str) -> None:
    """Four GPUs after one: as two steps of two."""
    recipe = recipe_room.load(MODES, set_=["layout.hardware=h100-sxm"]).recipe
    assert recipe is not None
    compiled = planner.compile(recipe)[0]
    assert compiled is not None
    assert compiled.estimate is not None

    def on(num_gpus: int, step_s: float) -> ScalingRow:
        assert compiled is not None
        assert compiled.estimate is not None
        estimate = replace(compiled.estimate, step_s=step_s, exposed_s=0.0, transfers=())
        return ScalingRow(num_gpus, replace(compiled, estimate=estimate))

    assert verdict(on(1, 1.0), on(2, seconds)) == said
    assert verdict(on(1, 1.0), on(4, seconds**2)) == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scale", "1,2"], "add --for h100-sxm"),
        (["--scale", "1,x"], "is not a list of numbers such as 1,2,4,8"),
        (["--scale", "1,2", "--for", "h100-sxm", "--diff", MODES], "does not work with a saved plan"),
    ],
)
def test_scale_refuses_what_it_cannot(words: list[str], said: str, capsys: Captured) -> None:
    assert main(["plan", MODES, *words]) == 2
    assert said in capsys.readouterr().err
