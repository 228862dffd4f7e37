"""A trained model held against rows with their targets: the numbers that the run logged, and what is wrong."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from declarative_train.app.main import main
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.engine.collectives import Alone
from declarative_train.engine.devices import exact_device
from declarative_train.engine.failures import RunFailure
from declarative_train.engine.step import step_runner
from declarative_train.inference import evaluate as evaluate_module
from declarative_train.inference.evaluate import EvaluationResult, _python, evaluate
from declarative_train.inference.input import InputError
from declarative_train.inference.predict import Prediction
from declarative_train.inference.reports import _average_precision
from declarative_train.inference.trained import UsageError, open_trained
from declarative_train.run.evaluate import Evaluator
from declarative_train.run.event import EvaluationDone
from declarative_train.run.sinks.jsonl import read_events
from tests.inference.made_runs import (
    HOUSE_COLUMNS,
    NAMES,
    WINE,
    WINE_COLUMNS,
    house_rows,
    trained,
    wine_rows,
    write_csv,
)


def logged(run: Path, step: int) -> dict[str, float]:
    events = [event for event in read_events(run / "events.jsonl") if isinstance(event, EvaluationDone)]
    return next(event.values for event in events if event.step == step)


@pytest.mark.parametrize("name", ["wine", "houses"])
def test_the_values_are_those_that_the_run_logged(name: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(name)
    model = open_trained(run)
    found = evaluate(model)
    assert found.set == "validation"
    assert found.num_samples == 40
    assert found.values == pytest.approx(logged(run, model.step), abs=1e-6)
    assert found.logged == pytest.approx(found.values, abs=1e-6)


def test_classes_and_their_table_by_hand(wine: Path, tmp_path: Path) -> None:
    rows = wine_rows(count=90, seed=2)
    for number in (4, 7, 10):
        rows[number][4] = NAMES[0]  # three mistakes of whoever wrote the labels
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, rows)
    found = evaluate(open_trained(wine), data=str(path), num_worst=8)
    (report,) = found.reports
    table = np.asarray(report.confusion)
    assert table.sum() == found.num_samples == 90
    names = [each.name for each in report.classes]
    assert names == sorted(NAMES)
    assert [each.support for each in report.classes] == [sum(row[4] == name for row in rows) for name in names]
    hits = np.diag(table)
    np.testing.assert_allclose([each.recall for each in report.classes], hits / table.sum(1))
    np.testing.assert_allclose([each.precision for each in report.classes], hits / table.sum(0))
    assert report.metrics["accuracy"] == pytest.approx(hits.sum() / 90)
    assert report.metrics["accuracy"] == pytest.approx(found.values["data/accuracy"])
    assert report.metrics["log_loss"] == pytest.approx(found.values["data/loss"], rel=1e-5)
    assert {each.place for each in report.worst} >= {f"row {number} of {path}" for number in (5, 8, 11)}
    assert len(report.worst) == 8
    assert [each.loss for each in report.worst] == sorted((each.loss for each in report.worst), reverse=True)
    worst = next(each for each in report.worst if each.place.startswith("row 5 "))
    assert worst.row == dict(zip(WINE_COLUMNS, [*map(str, rows[4][:3]), *rows[4][3:]], strict=True))


def test_residuals_are_in_the_unit_of_the_column(houses: Path, tmp_path: Path) -> None:
    rows = house_rows(count=50, seed=3)
    rows[20][2] = 1_000_000.0
    path = write_csv(tmp_path / "new.csv", HOUSE_COLUMNS, rows)
    found = evaluate(open_trained(houses), data=str(path), num_worst=1)
    price, sold = found.reports
    assert price.metrics["rmse"] == pytest.approx(found.values["data/rmse"], rel=1e-6)
    assert price.residuals["0%"] < -400_000
    assert price.metrics["bias"] < 0
    (worst,) = price.worst
    assert worst.place == f"row 21 of {path}"
    assert worst.target == pytest.approx(1_000_000, rel=1e-5)
    assert sold.metrics["accuracy"] == pytest.approx(found.values["data/accuracy"])
    assert 0.8 < sold.metrics["auroc"] <= 1
    assert [each.name for each in sold.classes] == ["0", "1"]
    assert sum(each.support for each in sold.classes) == 50


def test_an_answer_that_the_loss_does_not_accept_is_reported(houses: Path, tmp_path: Path) -> None:
    rows = [[*row[:3], 2 if number == 4 else row[3]] for number, row in enumerate(house_rows(count=9))]
    path = write_csv(tmp_path / "new.csv", HOUSE_COLUMNS, rows)
    with pytest.raises(InputError, match=r"row 5 .*`sold` is 2, but `bce_with_logits` expects 0 to 1"):
        evaluate(open_trained(houses), data=str(path), device="cpu")


def test_the_area_under_the_curve_is_that_of_pairs(houses: Path, tmp_path: Path) -> None:
    from declarative_train.inference.reports import _area

    chance = np.random.default_rng(0)
    scores, answers = np.round(chance.normal(size=80), 1), chance.integers(0, 2, 80).astype(bool)
    pairs = [(a > b) + (a == b) / 2 for a in scores[answers] for b in scores[~answers]]
    assert _area(scores, answers) == pytest.approx(np.mean(pairs))


def test_a_renamed_label_is_said_wherever_the_run_is_used(
    wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Class numbers are the run's: with others, three wines in four would be taken for another."""
    rows = wine_rows(names=("nebbiolo", *NAMES[1:]), count=60, seed=6)
    path = write_csv(tmp_path / "wine.csv", WINE_COLUMNS, rows)
    assert main(["evaluate", str(wine), "--data", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"row 1 of {path}: field `kind`: `kind` is `nebbiolo`, which is in none of the training rows" in said
    assert "known: barbera, barolo, grignolino" in said
    assert main(["predict", str(wine), str(path)]) == 0  # which needs no label
    right = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    wanted = ["barolo" if row[4] == "nebbiolo" else row[4] for row in rows]
    assert np.mean([one == other for one, other in zip(right, wanted, strict=True)]) > 0.9
    recipe = tmp_path / "again.yaml"
    text = open_trained(wine).recipe.replace("model:\n", f"model:\n  weights: {wine}\n")
    recipe.write_text(text.replace("runs}", f"{tmp_path}}}"))
    assert main(["lint", str(recipe)]) == 1
    said = capsys.readouterr()
    assert "`nebbiolo`" in said.out + said.err
    write_csv(path, WINE_COLUMNS, [row for row in rows if row[4] != "nebbiolo"])
    assert main(["evaluate", str(wine), "--data", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["values"]["data/accuracy"] > 0.9


def test_a_set_is_looked_at_whole_unless_asked_otherwise(tmp_path: Path) -> None:
    write_csv(tmp_path / "wine.csv", WINE_COLUMNS, wine_rows())
    run = trained(
        tmp_path, WINE.replace("evaluation: {every: 5 epochs}", "evaluation: {every: 5 epochs, max: 11 samples}")
    )
    model = open_trained(run)
    whole = evaluate(model)
    assert whole.num_samples == 40
    assert "40 samples here, and 11 of 40 in the evaluations of the run" in " ".join(whole.notices)
    same = evaluate(model, max_samples=11)
    assert (same.num_samples, same.notices) == (11, ())
    assert same.values == pytest.approx(logged(run, model.step), abs=1e-6)
    with pytest.raises(UsageError, match="--max is only for sets"):
        evaluate(model, data=str(tmp_path / "wine.csv"), max_samples=3)


def test_text_and_json_and_pictures(
    wine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["evaluate", str(wine), "--worst", "2"]) == 0
    captured = capsys.readouterr()
    place, *lines = captured.out.splitlines()
    assert place.startswith(f"{wine} step ")  # a path is as long as it is, and is not broken
    assert max(map(len, lines)) <= 80
    assert "logged by the run" in captured.out
    assert "is \\ said" in captured.out
    assert main(["evaluate", str(wine), "--json", "--no-tensorboard"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["values"]) == {"validation/loss", "validation/accuracy", "validation/f1"}
    folder = wine / "evaluations" / "validation"
    tags, pictures = read_tensorboard(folder)
    assert tags["validation/accuracy"] == pytest.approx(found["values"]["validation/accuracy"])
    assert pictures["kind/confusion_matrix"].startswith(b"\x89PNG")


def read_tensorboard(folder: Path, files: str = "*") -> tuple[dict[str, float], dict[str, bytes]]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    tags: dict[str, float] = {}
    pictures: dict[str, bytes] = {}
    for path in folder.glob(files):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.HasField("image"):
                    pictures[value.tag] = value.image.encoded_image_string
                else:
                    tags[value.tag] = value.simple_value
    return tags, pictures


def test_what_cannot_be_evaluated_is_said(wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(code: int, *words: object) -> str:
        assert main(["evaluate", *map(str, words)]) == code
        return capsys.readouterr().err

    assert "has no set `test`; help: known: training, validation" in said(2, wine, "--set", "test").replace("\n", "; ")
    assert "not allowed with argument" in said(2, wine, "--set", "validation", "--data", "x.csv")
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS[:4], [row[:4] for row in wine_rows(count=3)])
    assert "lacks the column `kind`, which the run's fields read" in said(1, wine, "--data", path)
    write_csv(path, WINE_COLUMNS, [])
    assert "has no row to evaluate" in said(1, wine, "--data", path)
    data = wine.parents[2] / "wine.csv"
    data.rename(tmp_path / "away.csv")
    try:
        from declarative_train.data import shared_sets

        shared_sets._latest.clear()
        assert "`--data FILE` evaluates rows of other files" in said(3, wine)
    finally:
        (tmp_path / "away.csv").rename(data)


SERIES = """
name: series
data:
  source: {type: csv, path: series.csv}
  window: {length: 9, stride: 1, sort: t}
  fields:
    past: {columns: [v], normalize: standard, rows: ":8"}
    next: {columns: [v], normalize: standard, rows: 8}
  split: {validation: {type: last, fraction: 0.25}}
model:
  graph:
    flat: flatten(past)
    guess: {type: linear, out_features: 1}
objective:
  loss: {type: mse, input: guess, target: next}
  metrics: [rmse]
training: {epochs: 3, global_batch_size: 16, optimizer: {type: adam, lr: 0.02}}
layout: {device: cpu}
logging: {dir: runs}
"""


def test_windows_are_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [[t, round(100 + 10 * np.sin(t / 3), 4)] for t in range(160)]
    write_csv(tmp_path / "series.csv", ("t", "v"), values)
    run = trained(tmp_path, SERIES)
    model = open_trained(run)
    found: EvaluationResult = evaluate(model)
    assert found.values == pytest.approx(logged(run, model.step), abs=1e-6)
    more = write_csv(tmp_path / "more.csv", ("t", "v"), values[40:70])
    on_more = evaluate(model, data=str(more))
    assert on_more.num_samples == 22
    assert on_more.reports[0].metrics["rmse"] == pytest.approx(on_more.values["data/rmse"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(more.read_bytes())))
    assert evaluate(model, data="-").values == on_more.values


@pytest.mark.parametrize("name", ["wine", "houses"])
@pytest.mark.parametrize("way", ["set", "data"])
def test_ranks_find_what_one_process_does(name: str, way: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The batches are the same, so that only sums are added in another order."""
    model = open_trained(request.getfixturevalue(name))
    columns, rows = (WINE_COLUMNS, wine_rows) if name == "wine" else (HOUSE_COLUMNS, house_rows)
    path = write_csv(tmp_path / "new.csv", columns, rows(count=301, seed=5))
    what: dict[str, Any] = {"data": str(path)} if way == "data" else {"set_name": "training"}
    alone, shared = (evaluate(model, **what, batch_size=8, num_worst=7, ranks=ranks) for ranks in (1, 2))
    assert shared.num_samples == alone.num_samples
    assert shared.values == pytest.approx(alone.values, rel=1e-12, abs=1e-12)
    for mine, theirs in zip(alone.reports, shared.reports, strict=True):
        assert (mine.name, mine.kind, mine.classes, mine.confusion) == (
            theirs.name, theirs.kind, theirs.classes, theirs.confusion
        )  # fmt: skip
        assert mine.metrics == pytest.approx(theirs.metrics, rel=1e-12, abs=1e-12)
        assert mine.residuals == pytest.approx(theirs.residuals, rel=1e-12)
        assert mine.worst == theirs.worst
        assert sorted(mine.points) == sorted(theirs.points)


def test_of_a_model_that_was_trained_in_shards(tmp_path: Path) -> None:
    """Each rank holds all of it. In float64 the numbers are those of one process to 1e-12, the rows to the bit."""
    path = write_csv(tmp_path / "wine.csv", WINE_COLUMNS, wine_rows())
    where = ("parallelism=fsdp", "layout.gpus=2", "training.precision=fp64", "training.epochs=5")
    run = trained(tmp_path, WINE, *where)
    model = open_trained(run)
    alone, shared = (evaluate(model, batch_size=4, ranks=ranks) for ranks in (1, 2))
    assert alone.values == pytest.approx(logged(run, model.step), rel=1e-12)
    assert shared.values == pytest.approx(alone.values, rel=1e-12)
    said = []
    for ranks in (1, 2):
        prediction = Prediction(model, batch_size=4, ranks=ranks)
        said.append(pa.concat_tables(prediction.tables(prediction.open_files(str(path)))))
    assert said[0].num_rows == 160
    assert said[0].equals(said[1])


def test_one_of_many_processes_is_told_how_to_start_them(
    wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, wine_rows(count=9))
    for words in (["evaluate", str(wine)], ["predict", str(wine), str(path)]):
        assert main(words) == 2
        assert "start one, with --ranks N" in capsys.readouterr().err


def test_a_rank_that_fails_ends_all(wine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_trained(wine)
    rows = wine_rows(count=301, seed=5)
    rows[200][3] = "lake"
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, rows)
    with pytest.raises(InputError, match=r"row 201 of .*`site` is `lake`"):
        evaluate(model, data=str(path), batch_size=8, ranks=2)
    parent, forward = os.getpid(), evaluate_module._Model.forward

    def dies(self: Any, batch: Any) -> Any:
        if os.getpid() != parent and self.ranks.rank == 1:
            os._exit(9)
        return forward(self, batch)

    monkeypatch.setattr(evaluate_module._Model, "forward", dies)
    with pytest.raises(RunFailure, match="rank 1 of 2 was lost"):
        evaluate(model, set_name="training", batch_size=8, ranks=2)


def test_a_loss_that_compares_samples_is_not_shared_among_ranks(tmp_path: Path) -> None:
    """Each rank would compare with its own samples alone, and another number would come out."""
    write_csv(tmp_path / "wine.csv", WINE_COLUMNS, wine_rows())
    loss, metrics = "{type: cross_entropy, input: logits, target: kind}", "  metrics: [accuracy, f1]\n"
    assert loss in WINE
    assert metrics in WINE
    recipe = WINE.replace(loss, "{type: info_nce, input: logits, target: hidden, over: 8 samples}").replace(metrics, "")
    recipe = recipe.replace("out_features: 8}", "out_features: 3}").replace(
        "validation/accuracy, mode: max", "validation/loss, mode: min"
    )
    model = open_trained(trained(tmp_path, recipe, "training.epochs=1"))
    with pytest.raises(UsageError, match="--ranks: the loss `loss` compares samples with each other"):
        evaluate(model, ranks=2)
    assert evaluate(model).num_samples == 40


LIFT = torch.ops.aten.lift_fresh.default


class NoFloat64OnCpu(TorchDispatchMode):
    """As Apple's GPUs, which the CPU stands for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given, made = (
            {each.dtype for each in pytree.tree_leaves(part) if isinstance(each, torch.Tensor) and each.is_cpu}
            for part in ((args, kwargs), found)
        )
        # numbers of Python become tensors of the CPU that it stands for, and stay what they are
        assert torch.float64 not in made or given == {torch.float64} or func is LIFT, func
        return found


@pytest.mark.parametrize("name", ["wine", "houses"])
def test_float64_is_left_to_the_exact_device(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU stands for mps, and meta for the CPU next to it."""
    assert exact_device(torch.device("mps")) == torch.device("cpu")
    assert exact_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    model = open_trained(request.getfixturevalue(name))
    plan, cpu = model.plan, torch.device("cpu")
    for module in (evaluate_module, step_runner):
        monkeypatch.setattr(module, "exact_device", lambda _: torch.device("meta"))
    made = evaluate_module._samples(model, prepare_sets(plan.data)["validation"], 16)
    samples = evaluate_module._Samples(made, Alone())
    with NoFloat64OnCpu():
        judged = evaluate_module._Model(model, cpu, [], samples, Alone())
        evaluator = Evaluator(plan, judged, lambda _: judged.batches())
        totals = torch.zeros(2 * len(plan.objective.terms) + 1, dtype=torch.float64, device=judged.device)
        for batch in judged.batches():
            evaluator._add(batch, totals)
    assert {value.device.type for value in judged._module.parameters()} == {"cpu"}


def test_a_date_of_a_row_is_shown_as_one() -> None:
    assert _python(np.datetime64("2026-11-23", "ns")) == "2026-11-23"
    assert _python(np.datetime64("2026-11-23T10:20:30.5", "ns")) == "2026-11-23T10:20:30.500000000"


def test_the_average_precision_of_a_label_is_scikit_learns() -> None:
    from sklearn.metrics import average_precision_score  # no other test of the file needs it

    random = np.random.default_rng(0)
    scores, answers = random.normal(size=90).round(1), random.random(90) > 0.6
    assert _average_precision(scores, answers) == pytest.approx(average_precision_score(answers, scores))
    assert np.isnan(_average_precision(scores, np.zeros(90, bool)))
