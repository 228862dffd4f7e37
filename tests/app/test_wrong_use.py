"""What people type who take one thing for another: each gets one sentence, and most what to type instead."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from declarative_train.app.main import main

RUN, STEP = "runs/wine/made", "runs/wine/made/checkpoints/step_a"

# words, code, what is said
USES = """
lint plan.json                              1  the file is a plan, not a recipe
plan t.csv                                  1  `dtrain init --from t.csv --target COLUMN`
run picture.yaml                            1  the file is a picture, not a recipe
show other.yaml                             1  of another program (`services`)
sweep plan.json                             1  the file is a plan, not a recipe
data show plan.json                         1  the file is a plan, not a recipe
trace plan.json                             1  the file is a plan, not a recipe
trace plan.json --values                    1  the file is a plan, not a recipe
trace RUN/events.jsonl                      1  `dtrain trace RUN` prints its events
lint RUN/run.json                           1  the record of a run
plan recipe.yaml --with plan.json           1  the file is a plan, not a recipe
plan recipe.yaml --diff t.csv               1  the file is a table
plan plan.json --set seed=1                 2  a saved plan is used as it is
plan plan.json --with recipe.yaml           2  a saved plan is used as it is
run plan.json --set seed=1                  2  a saved plan is used as it is
run old.json                                3  it has plan version 1, this dtrain reads version 4
plan other.json                             3  it has no `version`, so it is not a plan
run RUN                                     2  `RUN` is a run: `dtrain trace` shows it
plan RUN                                    2  `dtrain run RECIPE --resume RUN`
run folder                                  2  `folder` is a folder: give a recipe in it
trace RUN --set seed=1                      2  a run is shown as it was
trace STEP                                  2  is not a run
trace folder                                2  is not a run
runs STEP                                   0  no run in STEP
runs recipe.yaml                            2  `recipe.yaml` is a file
tensorboard recipe.yaml                     2  `recipe.yaml` is a file
compare RUN STEP                            2  it is a checkpoint; give its run
compare RUN recipe.yaml                     2  there is no run `recipe.yaml`
predict recipe.yaml t.csv                   2  recipe.yaml is a file, and a run is a folder
predict t.csv RUN                           2  t.csv is a file, and a run is a folder
predict RUN recipe.yaml                     2  the name of recipe.yaml does not show its format
predict RUN plan.json                       2  the name of plan.json does not show its format
predict RUN folder                          2  folder is a folder without pictures
predict RUN t.csv                           1  t.csv lacks 4 columns
predict RUN t.csv --ranks 0                 2  0 is not a whole number of 1 or more
predict RUN t.csv --ranks two               2  two is not a whole number of 1 or more
predict RUN t.csv -o a.xlsx                 2  the name does not say which format to write
predict folder t.csv                        2  folder is not a run: there is no checkpoint in it
evaluate plan.json                          2  plan.json is a file, and a run is a folder
evaluate RUN t.csv                          2  pass new rows with an option: `--data t.csv`
evaluate RUN --set tset                     2  has no set `tset`
evaluate RUN --max some                     2  some is not a whole number of 0 or more
evaluate RUN --data recipe.yaml             2  the name of recipe.yaml does not show its format
export recipe.yaml --to onnx                2  recipe.yaml is a file, and a run is a folder
export RUN --to pickle                      2  invalid choice: 'pickle'
export RUN --to safetensors -o t.csv        2  t.csv is a file
generate RUN --prompt a                     2  was trained on csv and not on text
generate RUN --prompt a --temperature hot   2  hot is not 0 or more
init t.csv                                  2  `dtrain init --from t.csv --target COLUMN`
init recipe.yaml                            2  recipe.yaml exists already
init --data t.csv --target a                2  its name here is `--from`
init --from t.csv --label a                 2  its name here is `--target`
predict RUN --source t.csv                  2  the rows follow the run
predict RUN t.csv --output a.csv            2  `-o a.csv` writes to it
export RUN --format onnx                    2  its name here is `--to`
val RUN                                     2  help: `dtrain evaluate`
lint folder                                 2  `dtrain init --from folder`
init --from recipe.yaml --target a          2  its name does not tell the format
init --from t.csv                           2  give the column to predict
run recipe.yaml --set training.epochs 3     2  `--set training.epochs=3`
init t.csv --target a                       2  give them with --from t.csv
explain leak                                0  target-among-inputs
explain recipe.yaml                         2  there is no diagnostic `recipe.yaml`
list plan.json                              2  there is no type `plan.json`
schema recipe.yaml                          2  nothing here takes recipe.yaml
train recipe.yaml                           2  help: `dtrain run`
test RUN                                    2  help: `dtrain evaluate`
recipe.yaml                                 2  help: `dtrain run recipe.yaml`
help                                        2  help: `dtrain --help`
plna recipe.yaml                            2  did you mean `dtrain plan`?
xyzzy                                       2  known: calibrate, compa
run recipe.yaml --epochs 3                  2  `--set training.epochs=3`
run recipe.yaml --lr=0.1                    2  `--set training.optimizer.lr=0.1`
run recipe.yaml --batch-size 32             2  `--set training.global_batch_size=32`
plan recipe.yaml training.steps=3           2  `--set training.steps=3`
lint recipe.yaml --gpus 2                   2  `--set layout.gpus=2`
run recipe.yaml plan.json                   2  give only one at a time
run recipe.yaml other.yaml                  2  `--with other.yaml` merges it
run recipe.yaml --max-steps many            2  many is not a whole number of 1 or more
run recipe.yaml --run-dir t.csv             3  t.csv is a file; help: set `--run-dir` to
sweep recipe.yaml                           2  has no `sweep:` section
"""
LINES = 6  # of a diagnostic with its source and hint; usage comes before


def uses() -> list[tuple[str, int, str]]:
    rows = (re.split(r" {2,}", line, maxsplit=2) for line in USES.strip().splitlines())
    return [(words, int(code), said) for words, code, said in rows]


@pytest.fixture(scope="module")
def folder(wine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("uses")
    shutil.copytree(wine, made / RUN)
    (checkpoint,) = list((made / RUN / "checkpoints").glob("step_*"))[:1]
    shutil.copytree(checkpoint, made / STEP)
    plan = (made / RUN / "plan.json").read_text("utf-8")
    (made / "plan.json").write_text(plan)
    (made / "old.json").write_text(plan.replace('"version": 4', '"version": 1', 1))
    (made / "other.json").write_text(json.dumps({"a": 1}))
    (made / "other.yaml").write_text("services:\n  web: {image: a}\n")
    (made / "picture.yaml").write_bytes(b"\x89PNG\r\n\x1a\n" + np.random.default_rng(0).bytes(2000))
    (made / "t.csv").write_text("a,b\n1,2\n")
    (made / "folder").mkdir()
    assert main(["init", str(made / "recipe.yaml")]) == 0
    return made


@pytest.mark.parametrize(("words", "code", "said"), uses(), ids=lambda value: value if isinstance(value, str) else None)
@pytest.mark.packs
def test_one_sentence(
    words: str, code: int, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")

    capsys.readouterr()
    assert main([named(word) for word in words.split()]) == code
    streams = capsys.readouterr()
    text = streams.out + streams.err
    assert named(said) in text
    lines = [line for line in text.splitlines() if not line.startswith(("usage:", " " * 8))]
    assert len(lines) <= LINES, text


def named(text: str) -> str:
    return text.replace("STEP", STEP).replace("RUN", RUN)
