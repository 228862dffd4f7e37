"""What evaluations on the way show: the table that `evaluate` counts, the same from one rank and from several."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from declarative_train.components.component import Collective
from declarative_train.data.batch import Batch
from declarative_train.data.rank_batches import EvaluationBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.inference.evaluate import evaluate
from declarative_train.inference.trained import open_trained
from declarative_train.plan.plan import Plan
from declarative_train.run.class_predictions import NUM_SAMPLES, predictions
from declarative_train.run.event import ClassesPredicted, Picture, SamplePrediction
from declarative_train.run.launch import launch
from declarative_train.run.sinks import drawing
from declarative_train.run.sinks.tensorboard import EventWriter
from tests.engine.made_recipes import DIGITS, WAYS, compiled, merged, write_data
from tests.engine.runs import newest
from tests.inference.test_evaluate import read_tensorboard

IMAGES: dict[str, Any] = {
    "data": {"fields": {"x": {"shape": [1, 4, 5]}}, "split": {"validation": {"type": "last", "fraction": 0.3}}},
    "model": {"graph": {"flat": {"type": "flatten", "input": "x"}, "hidden": {"input": "flat"}}},
}


@dataclass
class Several(Collective):
    """What all ranks have, one after the other: a sum is over the tensors of the same call."""

    kept: list[torch.Tensor]
    rank: int = 0
    size: int = 2

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self.kept.append(tensor.clone())
        return tensor

    def concatenate(self, tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError


class Others(Several):
    """The last rank: adds what the others kept."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + self.kept.pop(0)


def made_scores(batch: Batch) -> dict[str, torch.Tensor]:
    """By the sample's number: right, but for each fifth."""
    target = batch.tensors["y"]
    ids = torch.zeros(len(target), dtype=torch.int64)
    ids[: batch.num_rows] = torch.from_numpy(batch.sample_ids)
    said = torch.where(ids % 5 == 0, (target + 1) % 10, target)
    return {"logits": 4.0 * torch.nn.functional.one_hot(said, 10), "y": target}


def shown(plan: Plan, num_ranks: int) -> ClassesPredicted:
    sets = open_sets(plan.data)
    kept: list[torch.Tensor] = []
    found: list[ClassesPredicted] = []
    for rank in range(num_ranks):
        watched = predictions(plan, torch.device("cpu"))
        assert watched is not None
        watched.begin("validation")
        batches = EvaluationBatches(plan.data, "validation", sets, batch_size=7, num_ranks=num_ranks, dp_rank=rank)
        for batch in batches.iterate():
            watched.add(made_scores(batch), batch)
        ranks = Others(kept) if rank == num_ranks - 1 and rank else Several(kept)
        found = watched.take("validation", 3, ranks)  # type: ignore[arg-type]
    (one,) = found
    return one


def test_ranks_show_what_one_shows(tmp_path: Path) -> None:
    write_data(tmp_path)
    plan = compiled(tmp_path, merged(DIGITS, IMAGES))
    alone, both = shown(plan, 1), shown(plan, 2)
    assert (alone.confusion, alone.answers, alone.classes) == (both.confusion, both.answers, both.classes)
    total = next(each.num_samples for each in plan.data.sets if each.name == "validation")
    table = np.asarray(alone.confusion)
    assert table.sum() == total
    assert np.trace(table) == total - -(-total // 5)
    assert [answer.sample for answer in alone.answers] == [k * total // NUM_SAMPLES for k in range(NUM_SAMPLES)]
    for answer in alone.answers:
        assert (answer.predicted == answer.target) == (answer.sample % 5 != 0)
        assert answer.probability == pytest.approx(float(torch.tensor([4.0] + [0.0] * 9).softmax(0)[0]))
        assert answer.picture is not None
        assert (answer.picture.height, answer.picture.width, len(answer.picture.pixels)) == (4, 5, 20)


def test_nobody_watches_where_nothing_is_drawn(tmp_path: Path) -> None:
    write_data(tmp_path)
    cpu = torch.device("cpu")
    assert predictions(compiled(tmp_path, DIGITS), cpu) is not None
    for logging in ({"sinks": {"csv": {}}}, {"sinks": {"tensorboard": {"pictures": False}}}):
        assert predictions(compiled(tmp_path, merged(DIGITS, {"logging": logging})), cpu) is None


def drawn_by(run_dir: Path) -> dict[str, bytes]:
    return read_tensorboard(run_dir, "events.out.*")[1]


def test_a_run_shows_what_evaluate_counts(tmp_path: Path) -> None:
    write_data(tmp_path)
    plan = compiled(tmp_path, merged(DIGITS, IMAGES))
    outcome = launch(plan, quiet=True)
    assert outcome.code == 0
    run_dir, _ = newest(tmp_path)
    pictures = drawn_by(run_dir)
    assert set(pictures) == {"validation/confusion_matrix", "validation/samples"}
    assert Image.open(io.BytesIO(pictures["validation/samples"])).width > 4 * 120
    assert "ClassesPredicted" not in (run_dir / "events.jsonl").read_text()
    last = open_trained(run_dir / "checkpoints" / sorted(path.name for path in (run_dir / "checkpoints").iterdir())[-1])
    (report,) = evaluate(last).reports
    names = [each.name for each in report.classes]
    title = f"validation, step {plan.training.num_steps}"
    assert pictures["validation/confusion_matrix"] == drawing.png(
        drawing.confusion_matrix(title, names, report.confusion)
    )


@pytest.mark.long
@pytest.mark.parametrize("way", ["ddp 2", "pipeline 2"])
def test_ranks_of_a_run_show_the_same(way: str, tmp_path: Path) -> None:
    write_data(tmp_path)
    found = []
    for changes in ({}, WAYS[way]):
        assert launch(compiled(tmp_path, merged(merged(DIGITS, IMAGES), changes)), quiet=True).code == 0
        found.append(drawn_by(newest(tmp_path)[0]))
    assert found[0].keys() == found[1].keys()
    assert found[0]["validation/confusion_matrix"] == found[1]["validation/confusion_matrix"]


def test_in_fp64_too(tmp_path: Path) -> None:
    write_data(tmp_path)
    plan = compiled(tmp_path, merged(merged(DIGITS, IMAGES), {"training": {"precision": "fp64"}}))
    assert launch(plan, quiet=True, max_steps=7).code == 0
    assert set(drawn_by(newest(tmp_path)[0])) == {"validation/confusion_matrix", "validation/samples"}


def event(step: int, *answers: SamplePrediction) -> ClassesPredicted:
    return ClassesPredicted(step, "validation", "", ("a", "b"), ((3, step), (0, 4)), answers, 1000.0)


def test_of_many_evaluations_the_first_and_the_last_are_drawn() -> None:
    stream = io.BytesIO()
    writer = EventWriter(stream)
    sizes = []
    for step in range(1, 20):
        writer.write(event(step))
        writer.draw(all_of_them=False)
        sizes.append(stream.tell())
    assert len(set(sizes)) == 1
    writer.draw(all_of_them=True)
    assert stream.tell() > sizes[0]
    after = stream.tell()
    writer.draw(all_of_them=True)
    assert stream.tell() == after


def test_samples_that_are_no_pictures_are_a_table() -> None:
    table = drawing.samples_table([SamplePrediction(4, "a", "b", 0.75), SamplePrediction(9, "b", "b", 1.0)])
    assert table.splitlines()[2:] == ["| 4 | a | **b** | 0.750 |", "| 9 | b | b | 1.000 |"]
    assert drawing.samples_sheet([SamplePrediction(4, "a", "b", 0.75)]) is None


def test_without_pillow_the_run_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ImportError("PIL")

    monkeypatch.setattr(drawing, "canvas", missing)
    stream = io.BytesIO()
    writer = EventWriter(stream)
    for step in (1, 2):
        writer.write(event(step))
        writer.draw(all_of_them=True)
    assert stream.getvalue().count(b"declarative_train[images]") == 1


def test_colours_and_odd_sizes() -> None:
    picture = Picture(2, 5, 3, bytes(range(30)))
    sheet = drawing.samples_sheet([SamplePrediction(k, "a", "a", 0.5, picture) for k in range(5)])
    assert sheet is not None
    assert sheet.getpixel((10, 10)) == (0, 1, 2)
