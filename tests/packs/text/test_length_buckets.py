"""Length buckets in training: the same losses and gradients as at full length, on every layout, after every resume."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.data import build_spec
from declarative_train.data.length_buckets import BucketCuts
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.tensor_sets import open_sets
from declarative_train.packs.text.data_tables import lengths
from declarative_train.packs.text.token_tables import TextRows
from declarative_train.plan.plan import Plan
from declarative_train.planner import compile as compile_plan
from declarative_train.recipe import load
from declarative_train.run.event import EvaluationDone, StepDone
from tests.engine.made_recipes import compiled, merged, on_pipeline, write_recipe
from tests.engine.on_ranks import kept_engine, on_ranks
from tests.engine.parity import largest_difference, record
from tests.engine.runs import SampleLog, assert_same_tensors, go, last_tensors

BUCKETS = (9, 17, 33)
RECIPE: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "jsonl", "path": "texts.jsonl"},
        "fields": {"text": {"type": "tokens", "column": "text", "tokenizer": "bytes", "eos": False}},
        "split": {"validation": {"type": "random", "fraction": 0.2}},
    },
    "model": {
        "graph": {
            "tokens": "text[:, :-1]",
            "next": "text[:, 1:]",
            "counts": "text.trained[:, 1:]",
            "lm": {"type": "gpt", "vocabulary": 256, "layers": 2, "width": 16, "heads": 2, "input": "tokens"},
        }
    },
    "objective": {
        "loss": {"type": "cross_entropy", "input": "lm", "target": "next", "mask": "counts"},
        "metrics": {"accuracy": {"of": "loss"}},
    },
    "training": {"epochs": 3, "global_batch_size": 4, "precision": "fp64", "optimizer": {"type": "adamw", "lr": 1e-3}},
    "evaluation": {"every": "1 epoch"},
    "checkpoint": {"every": "5 steps", "keep": 9},
    "logging": {"every": "1 step"},
}
RECIPE["data"]["fields"]["text"]["length"] = {"buckets": list(BUCKETS)}
EXPERTS = {
    "model": {
        "graph": {
            "lm": {
                "type": "mixtral",
                "vocabulary": 256,
                "layers": 2,
                "width": 16,
                "heads": 2,
                "experts": 4,
                "hidden": 16,
                "input": "tokens",
            }
        }
    }
}


def on_axes(gpus: int, **axes: Any) -> dict[str, Any]:
    return {"parallelism": axes, "layout": {"gpus": gpus}}


SEQUENCE = {"size": 2, "sequence": True}
CHUNKED = {"objective": {"loss": {"chunks": 2}, "metrics": None}}
TWO = {"parallelism": {"pipeline": {"microbatches": 2}}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp 2": {"parallelism": "ddp", "layout": {"gpus": 2}},
    "dp 2": {"parallelism": "dp", "layout": {"gpus": 2}},
    "fsdp 2": {"parallelism": "fsdp", "layout": {"gpus": 2}},
    "tensor 2": on_axes(2, tensor=2),
    "sequence 2": on_axes(2, tensor=SEQUENCE),
    "context 2": on_axes(2, context=2),
    "ring 2": on_axes(2, context={"size": 2, "keys": "ring"}),
    "expert 2": merged(EXPERTS, on_axes(2, expert=2)),
    "pipeline 2": on_pipeline(2, "1f1b", 2),
    "zero bubble 2": on_pipeline(4, "zbv", 2),
    "accumulation 2": {"training": {"gradient_accumulation_steps": 2}},
}
PRODUCTS: dict[str, dict[str, Any]] = {
    "tensor 2 x ddp 2": on_axes(4, tensor=2, data={"replicate": 2}),
    "expert 2 x tensor 2": merged(EXPERTS, on_axes(4, expert=2, tensor=2)),
    "expert 2 x fsdp 2": merged(EXPERTS, on_axes(4, expert=2, data={"shard": 2})),
    "experts, pipeline 2": merged(EXPERTS, on_pipeline(2, "1f1b", 2)),
    "experts, context 2": merged(EXPERTS, on_axes(2, context=2)),
    "interleaved 2": on_pipeline(4, "interleaved_1f1b", 2),
    "pipeline 2, loss in chunks": merged(on_pipeline(2, "1f1b", 2), CHUNKED),
    "pipeline 2 x context 2": on_pipeline(2, "1f1b", 4, context=2),
    "pipeline 2 x sequence 2": on_pipeline(2, "1f1b", 4, tensor=SEQUENCE),
    "pipeline 2 x ddp 2": merged(on_pipeline(2, "1f1b", 4, data={"replicate": 2}), TWO),
    "pipeline 2 x fsdp 2": merged(on_pipeline(2, "1f1b", 4, data={"shard": 2}), TWO),
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    lengths = random.integers(2, 40, 53)
    texts = ["".join(chr(97 + letter) for letter in random.integers(0, 26, length)) for length in lengths]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tmp_path


def test_batches_are_as_long_as_the_bucket_of_their_longest_text(directory: Path) -> None:
    plan = compiled(directory, RECIPE)
    assert sum(plan.data.set("training").buckets) == plan.data.set("training").num_samples == 42
    batches, seen, samples = TrainingBatches(plan.data, plan.batch, 0, open_sets(plan.data)), set(), []
    for step, (batch,) in enumerate(batches.iterate(1, 11), 1):
        size = batch.tensors["text"].shape[1]
        used = int(batch.tensors["text.trained"].any(0).nonzero().max()) + 1
        assert size == min(length for length in BUCKETS if length >= used)
        assert batch.tensors["text.trained"].shape == batch.tensors["text"].shape
        assert batches.step(step)[0].sample_ids.tolist() == batch.sample_ids.tolist()
        seen.add(size)
        samples += batch.sample_ids.tolist()
    assert seen == set(BUCKETS)
    assert sorted(samples) == list(range(42))


def test_the_data_are_shown_as_full_as_their_buckets(directory: Path) -> None:
    plan = compiled(directory, RECIPE)
    sets = prepare_sets(plan.data)
    (table,) = lengths({"training": sets["training"]})
    rows = {str(name): number for name, number in table.rows}
    spaces = sum(length * count for length, count in zip(BUCKETS, plan.data.set("training").buckets, strict=True))
    sizes = [len(json.loads(line)["text"]) for line in (directory / "texts.jsonl").read_text().splitlines()]
    chosen = sets["training"].rows.at(np.arange(42))
    assert rows["full"] == f"{sum(min(sizes[row], 33) for row in chosen.tolist()) / spaces:.1%}"


@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_have_batches_of_one_length(directory: Path, size: int) -> None:
    plan = compiled(directory, merged(RECIPE, {"parallelism": "ddp", "layout": {"gpus": size}}))
    sets = open_sets(plan.data)
    ranks = [TrainingBatches(plan.data, plan.batch, rank, sets).iterate(1, 11) for rank in range(size)]
    lengths = [
        {batch.tensors["text"].shape[1] for batches in step for batch in batches} for step in zip(*ranks, strict=True)
    ]
    assert all(len(each) == 1 for each in lengths)
    assert set().union(*lengths) == set(BUCKETS)


@pytest.mark.parametrize("layout", [*LAYOUTS, *(pytest.param(each, marks=pytest.mark.long) for each in PRODUCTS)])
def test_losses_and_gradients_are_those_at_full_length(
    directory: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = (LAYOUTS | PRODUCTS)[layout]
    found = record(directory, merged(RECIPE, way), num_steps=11)
    monkeypatch.setattr(BucketCuts, "cut", lambda self, tensors, level: dict(tensors))
    full = record(directory, merged(RECIPE, {"model": way.get("model", {})}), num_steps=11)
    assert found.sample_ids == full.sample_ids
    assert found.losses == pytest.approx(full.losses, rel=1e-12)
    assert largest_difference(full, found) <= 1e-10


def held_buffers(plan: Plan) -> list[tuple[int, int, int]]:
    """(length of the batch, elements of the receive buffers, of all that have memory) after each step of a rank"""
    seen = []
    with kept_engine(plan) as engine:
        batches = TrainingBatches(plan.data, plan.batch, engine.dp_rank, open_sets(plan.data))
        for step, mine in enumerate(batches.iterate(1, 11), 1):
            engine.step(step, mine, num_rows=4, lr_factor=1.0, measure=False)
            everything = (each for each in gc.get_objects() if type(each).__name__ == "_RecvInfo")
            kept = [each.buffer for each in everything if each.buffer is not None and not each.buffer.is_meta]
            reported, held = (sum(each.numel() for each in tensors) for tensors in (engine.receiving, kept))
            seen.append((mine[0].tensors["text"].shape[1], reported, held))
    return seen


def test_a_pipeline_has_receive_buffers_of_one_length_only(directory: Path) -> None:
    plan = compiled(directory, merged(RECIPE, LAYOUTS["pipeline 2"]))
    for rank in on_ranks(plan, held_buffers, plan):
        assert {length for length, *_ in rank} == set(BUCKETS)
        for length, reported, held in rank:
            assert reported == held == 4 * (length - 1) * 16  # 4 microbatches of one row


@pytest.mark.parametrize(
    "ways",
    [
        ("single", "single"),
        ("pipeline 2", "context 2"),
        pytest.param(("ddp 2", "fsdp 2"), marks=pytest.mark.long),
        pytest.param(("sequence 2", "zero bubble 2"), marks=pytest.mark.long),
    ],
)
def test_a_killed_run_goes_on(directory: Path, ways: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    log = SampleLog(directory / "samples", monkeypatch)
    straight = go(directory, RECIPE)
    samples = log.take()
    before, after = (LAYOUTS.get(way, {}) for way in ways)
    first = go(directory, RECIPE, before, max_steps=13)
    shutil.rmtree(first.run_dir / "checkpoints" / "step_00000013")  # as a kill leaves it
    assert log.take() == {step: samples[step] for step in range(1, 14)}
    again = go(directory, RECIPE, after, resume=str(first.run_dir))
    assert (straight.code, first.code, again.code) == (0, 0, 0)
    assert log.take() == {step: samples[step] for step in range(11, 34)}
    losses = [{event.step: event.loss for event in run.of(StepDone)} for run in (straight, again)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-10)
    wanted, given = ({event.step: event.values for event in run.of(EvaluationDone)} for run in (straight, again))
    assert list(wanted) == list(given) == [11, 22, 33]
    for step, values in wanted.items():
        assert given[step] == pytest.approx(values, rel=1e-10)
    close = {} if before == after else {"rtol": 1e-9, "atol": 1e-12}
    assert_same_tensors(last_tensors(straight.run_dir), last_tensors(again.run_dir), **close)


def test_processes_make_the_same_batches(directory: Path) -> None:
    plan = compiled(directory, RECIPE)
    other = compiled(directory, merged(RECIPE, {"data": {"workers": 1}}))
    here, there = (TrainingBatches(each.data, each.batch, 0, open_sets(each.data)) for each in (plan, other))
    for (one,), (two,) in zip(here.iterate(1, 13), there.iterate(1, 13), strict=True):
        assert one.tensors.keys() == two.tensors.keys()
        assert all((tensor == two.tensors[name]).all() for name, tensor in one.tensors.items())


def codes(directory: Path, *changes: dict[str, Any]) -> set[str]:
    recipe = RECIPE
    for change in changes:
        recipe = merged(recipe, change)
    loaded = load(str(write_recipe(directory, recipe)))
    found = list(loaded.diagnostics)
    if loaded.recipe is not None:
        found += compile_plan(loaded.recipe)[1]
    return {each.code for each in found}


def field(**keys: Any) -> dict[str, Any]:
    return {"data": {"fields": {"text": keys}}}


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("D029", field(length={"buckets": [1, 17, 33]})),
        ("D006", field(pack="best_fit")),
        ("P113", merged(field(length={"buckets": [9, 17, 35]}), on_axes(2, context=2))),
        ("P115", merged(field(length={"buckets": [11, 17, 33]}), on_axes(2, context=2))),
        ("P115", merged(field(length={"buckets": [10, 17, 33]}), on_axes(2, tensor=SEQUENCE))),
        ("O107", {"model": {"graph": {"counts": None}}, "objective": {"loss": {"mask": None}}}),
        ("O107", {"objective": {"metrics": {"accuracy": {"of": None, "input": "lm", "target": "next"}}}}),
    ],
)
def test_lint_names_what_cannot_be(directory: Path, code: str, change: dict[str, Any]) -> None:
    assert code in codes(directory, change)


def test_a_set_that_is_read_in_blocks_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert codes(directory) == set()
    monkeypatch.setattr(build_spec, "max_held_bytes", lambda *_: 0)
    assert codes(directory) == set()  # a set that is read row by row is not
    made = TextRows.__init__

    def with_blocks(self: TextRows, *words: Any, **keys: Any) -> None:
        made(self, *words, **keys)
        self.blocks = np.array([0, 30, 53])

    monkeypatch.setattr(TextRows, "__init__", with_blocks)
    assert "D028" in codes(directory)
