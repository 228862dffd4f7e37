"""The whole way of somebody who has a csv and nothing else, to a classifier that answers in onnxruntime: once by
commands, once in Python."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import declarative_train as dt
from declarative_train.__main__ import main
from tests.inference.made_runs import WINE_COLUMNS, wine_rows, write_csv

CSV, NEW = "wine.csv", "new.csv"
ENDED = ("finished", "stopped early")  # a made recipe stops when it gets no better


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / CSV, WINE_COLUMNS, wine_rows(count=240))
    new = [row[:-1] for row in wine_rows(count=30, seed=9)]
    write_csv(tmp_path / NEW, WINE_COLUMNS[:-1], new)
    assert main(["init", "--from", CSV, "--target", "kind"]) == 0
    return tmp_path


def classes_in_onnxruntime(exported: Path) -> list[str]:
    """By the loading code that lies next to the model, and the names of its `preprocessing.json`."""
    loaded = runpy.run_path(str(exported / "load.py"))
    frame = pd.read_csv(NEW)
    scores = next(iter(loaded["predict"](loaded["rows_of"](frame)).values()))
    (meaning,) = json.loads((exported / "preprocessing.json").read_text())["outputs"][0]["means"]
    return list(np.array(meaning["classes"])[scores.argmax(axis=meaning["class_axis"])])


def test_by_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "wine.yaml"]) == 0
    capsys.readouterr()
    assert main(["run", "wine.yaml", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["state"] in ENDED
    run = result["run"]
    assert main(["evaluate", run, "--json", "--no-tensorboard"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert max(value for name, value in evaluated["values"].items() if name.endswith("accuracy")) > 0.9
    assert main(["predict", run, NEW, "-o", "answers.csv"]) == 0
    assert main(["export", run, "--to", "onnx", "-o", "wine_onnx"]) == 0
    answers = pd.read_csv("answers.csv")
    assert list(answers["class"]) == classes_in_onnxruntime(folder / "wine_onnx")
    assert answers["class"].nunique() == 3


@pytest.mark.long
def test_in_python(folder: Path) -> None:
    recipe = dt.load("wine.yaml")
    assert recipe.lint().errors == ()
    run = recipe.run(quiet=True)
    assert run.state in ENDED
    assert max(value for name, value in run.evaluate().values.items() if name.endswith("accuracy")) > 0.9
    answers = run.predict(pd.read_csv(NEW))
    exported = run.export("onnx", "wine_onnx")
    assert list(answers["class"]) == classes_in_onnxruntime(exported.folder)
    assert list(dt.open_run(run.folder).predict(NEW)["class"]) == list(answers["class"])
