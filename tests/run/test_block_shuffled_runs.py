"""Runs over sets that are read in blocks, on real ranks: the samples of each step are those of one process, also in a
run that goes on in the middle of an epoch on another layout, with or without loader processes."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.components.datasets.parquet import ParquetFormat
from declarative_train.data import prefetch
from declarative_train.run import meter
from declarative_train.run.event import EvaluationDone, Notice, StepDone
from declarative_train.run.launch import run
from declarative_train.run.rank_job import default_sinks
from tests.engine.made_recipes import WAYS, compiled, merged
from tests.engine.runs import Done, SampleLog, Samples, assert_same_tensors, go, last_tensors, newest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS, GROUP = 210, 8
NUM_STEPS, INSIDE = 16, 12  # 7 steps an epoch of 168 samples: 12 lies inside the second one
COMMON: dict[str, Any] = {
    "name": "made",
    "training": {"steps": NUM_STEPS, "global_batch_size": 24, "optimizer": {"type": "adam", "lr": 1e-2}},
    "evaluation": {"every": "8 steps"},
    "checkpoint": {"every": "4 steps", "keep": 5},
    "layout": {"device": "cpu"},
    "logging": {"every": "1 step"},
}
NUMBERS = COMMON | {
    "data": {
        "source": {"type": "parquet", "path": "made.parquet"},
        "fields": {"x": {"columns": ["a", "b"], "normalize": "standard"}, "y": {"type": "category", "column": "y"}},
        "split": {"validation": 0.2},
        "shuffle_window": 48,
    },
    "model": {
        "graph": {
            "hidden": {"type": "linear", "out_features": 16, "input": "x"},
            "act": {"type": "relu"},
            "logits": {"type": "linear", "out_features": 4},
        }
    },
    "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y"}, "metrics": ["accuracy"]},
}
PICTURES = merged(
    NUMBERS,
    {
        "data": {
            "fields": {"x": {"type": "image", "column": "picture", "size": 8}},
            "transforms": [{"type": "random_flip", "p": 0.5}, {"type": "random_crop", "size": 8, "padding": 1}],
        },
    },
)
PICTURES["data"]["fields"]["x"] = {"type": "image", "column": "picture", "size": 8}
PICTURES["model"] = {
    "graph": {
        "flat": {"type": "flatten", "input": "x"},
        "logits": {"type": "linear", "out_features": 4},
    }
}
TOKENS = merged(NUMBERS, {})
TOKENS["data"]["fields"]["x"] = {"type": "tokens", "column": "text", "tokenizer": "bytes", "length": 8}
TOKENS["model"] = {
    "graph": {
        "table": {"type": "embedding", "num_embeddings": 259, "embedding_dim": 4, "input": "x.ids"},
        "flat": {"type": "flatten"},
        "logits": {"type": "linear", "out_features": 4},
    }
}
MIXED = merged(PICTURES, {})
MIXED["data"]["fields"]["y"] = {"type": "category", "column": "y", "one_hot": True}
MIXED["data"]["transforms"] += [
    {"type": "cutmix", "labels": ["y"], "p": 0.5},
    {"type": "mixup", "labels": ["y"], "p": 0.4, "alpha": 0.7},
]
MIXED["model"] = {
    "graph": {
        "flat": {"type": "flatten", "input": "x"},
        "hidden": {"type": "linear", "out_features": 8},
        "act": {"type": "relu"},
        "logits": {"type": "linear", "out_features": 4},
    }
}
RECIPES = {
    name: merged(each, {"training": {"precision": "fp64"}})
    for name, each in {"numbers": NUMBERS, "pictures": PICTURES, "tokens": TOKENS, "mixed": MIXED}.items()
}
CLOSE = 1e-10


def write_table(folder: Path) -> None:
    from PIL import Image

    draws = np.random.default_rng(0)

    def png() -> bytes:
        file = io.BytesIO()
        Image.fromarray(draws.integers(0, 255, (8, 8, 3), np.uint8)).save(file, "png")
        return file.getvalue()

    table = pa.table(
        {
            "a": draws.standard_normal(ROWS).astype("f4"),
            "b": draws.standard_normal(ROWS).astype("f4"),
            "y": np.arange(ROWS) % 4,
            "picture": [png() for _ in range(ROWS)],
            "text": [f"{number} times {number % 7}" for number in range(ROWS)],
        }
    )
    pq.write_table(table, folder / "made.parquet", row_group_size=GROUP)


class Runs:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._log = SampleLog(folder / "samples", monkeypatch)
        self._alone: dict[str, tuple[Done, Samples]] = {}

    def go(self, name: str, way: str, workers: int = 0, **how: Any) -> tuple[Done, Samples]:
        done = go(self.folder, RECIPES[name], WAYS[way], {"data": {"workers": workers}}, **how)
        assert done.code == 0
        return done, self._log.take()

    def alone(self, name: str) -> tuple[Done, Samples]:
        if name not in self._alone:
            self._alone[name] = self.go(name, "single")
        return self._alone[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("shuffled")
    write_table(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Runs(folder, monkeypatch)


@pytest.mark.packs
def test_each_epoch_has_every_sample_once_and_another_order(runs: Runs) -> None:
    for name in ("numbers", "pictures", "tokens"):
        plan = compiled(runs.folder, RECIPES[name])
        assert plan.data.roll is not None, name
        assert plan.data.roll.streams > 1
        _, samples = runs.alone(name)
        for first in (1, 8):
            assert sorted(number for step in range(first, first + 7) for number in samples[step]) == list(range(168))
        assert [samples[step] for step in range(1, 8)] != [samples[step] for step in range(8, 15)]


@pytest.mark.parametrize(
    ("name", "before", "after", "workers"),
    [
        ("mixed", "pipeline 2", "ddp 2", 1),  # pictures and more
        pytest.param("pictures", "fsdp 2", "ddp 2", 1, marks=pytest.mark.long),
        pytest.param("mixed", "ddp 2, accumulation 3", "fsdp 2", 0, marks=pytest.mark.long),
        pytest.param("mixed", "dp 2", "hybrid 2 x 2", 2, marks=pytest.mark.long),
        pytest.param("numbers", "ddp 2", "fsdp 2", 0, marks=pytest.mark.long),
        pytest.param("tokens", "single", "ddp 2", 0, marks=pytest.mark.long),
        pytest.param("numbers", "pipeline 2 x ddp 2", "ddp 3", 2, marks=pytest.mark.long),
        pytest.param("pictures", "ddp 3", "single", 2, marks=pytest.mark.long),
        pytest.param("tokens", "fsdp 4", "dp 2", 1, marks=pytest.mark.long),
    ],
)
@pytest.mark.packs
def test_ranks_see_what_one_process_sees_and_go_on_elsewhere(
    name: str, before: str, after: str, workers: int, runs: Runs
) -> None:
    straight, samples = runs.alone(name)
    first, seen = runs.go(name, before, max_steps=INSIDE)
    assert seen == {step: samples[step] for step in range(1, INSIDE + 1)}
    done, seen = runs.go(name, after, workers, resume=str(first.run_dir))
    assert done.run_dir == first.run_dir
    assert seen == {step: samples[step] for step in range(INSIDE + 1, NUM_STEPS + 1)}
    for kind in (StepDone, EvaluationDone):
        wanted, found = straight.of(kind), done.of(kind)
        assert [each.step for each in found] == [each.step for each in wanted]
        for one, other in zip(wanted, found, strict=True):
            values = (
                [each.loss, each.grad_norm] if kind is StepDone else list(each.values.values()) for each in (one, other)
            )
            assert next(values) == pytest.approx(next(values), rel=CLOSE)
    assert_same_tensors(last_tensors(straight.run_dir), last_tensors(done.run_dir), rtol=1e-9, atol=1e-11)


def test_a_run_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path)
    plan = compiled(tmp_path, NUMBERS)
    read = ParquetFormat.read

    def slow(form: ParquetFormat, *given: Any) -> Any:
        time.sleep(0.2)
        return read(form, *given)

    monkeypatch.setattr(ParquetFormat, "read", slow)
    monkeypatch.setattr(prefetch, "LOOK_S", 0.05)
    monkeypatch.setattr(prefetch, "REPORT_S", 0.1)
    monkeypatch.setattr(meter, "LONG_WAIT_S", 0.1)
    assert run(plan, sinks=default_sinks(quiet=True), max_steps=2) == 0
    said = [event for event in newest(tmp_path)[1] if isinstance(event, Notice)]
    words = r"the next batch has not come for \d+ s: a thread of this process has been reading .*made.parquet for \d+ s"
    assert [each.is_warning for each in said if re.fullmatch(words, each.message)][:1] == [True]
    assert re.fullmatch(r"waited for data \d+% of the time \(\d+ s\): .*`data.workers`.*", said[-1].message)
    assert prefetch.PATIENCE.limit_s == 600.0
    assert prefetch.PATIENCE.report is prefetch._on_stderr
