"""`evaluation.samples`: the same texts in every mode, those of `dtrain generate`, and a training that knows nothing of
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from declarative_train.engine.step.load_weights import open_source
from declarative_train.inference.trained import open_trained
from declarative_train.packs.text.generation import Sampling, TextModel, generate
from declarative_train.run.event import StepDone, TextsWritten
from tests.engine.made_recipes import WAYS, merged, write_recipe
from tests.engine.runs import Done, go
from tests.linted import found_in

TEXT = "the cat sat on the mat and the dog sat on the log; "
SAMPLES: dict[str, Any] = {
    "evaluation": {"samples": {"prompts": ["the cat", "on", "and the dog sat"], "max_tokens": 20, "temperature": 0.8}}
}
RECIPE: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "text", "path": "made.txt"},
        "window": {"length": 33, "stride": 8},
        "fields": {"tokens": {"column": "tokens", "rows": ":-1"}, "next": {"column": "tokens", "rows": "1:"}},
        "split": {"validation": {"type": "last", "fraction": 0.2}},
    },
    "model": {
        "graph": {
            "gpt": {"type": "gpt", "vocabulary": 256, "layers": 4, "width": 32, "heads": 2, "input": "tokens",
                    "dropout": 0.1}
        }
    },
    "objective": {"loss": {"type": "cross_entropy", "input": "gpt", "target": "next"}},
    "training": {"steps": 24, "global_batch_size": 16, "optimizer": {"type": "adamw", "lr": 1e-2}},
    "evaluation": {"every": "12 steps"},
    "checkpoint": {"every": "24 steps", "keep": 1},
    "layout": {"device": "cpu"},
    "logging": {"dir": "runs", "every": "1 step"},
}  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "made.txt").write_text(TEXT * 40)
    return tmp_path


def losses(done: Done) -> list[float]:
    return [event.loss for event in done.of(StepDone)]


def tensors(done: Done) -> dict[str, Any]:
    (checkpoint,) = (done.run_dir / "checkpoints").iterdir()
    return open_source(str(checkpoint)).all()


def test_texts_are_those_of_generate_and_the_training_is_the_same_to_the_bit(directory: Path) -> None:
    without, done = go(directory, RECIPE), go(directory, RECIPE, SAMPLES)
    assert losses(done) == losses(without)
    before, after = tensors(without), tensors(done)
    assert before.keys() == after.keys()
    assert all(value.equal(after[name]) for name, value in before.items())
    events = done.of(TextsWritten)
    assert [event.step for event in events] == [12, 24]
    assert not without.of(TextsWritten)
    model = TextModel(open_trained(done.run_dir), "cpu")
    for number, (prompt, text) in enumerate(zip(events[-1].prompts, events[-1].texts, strict=True)):
        assert text == "".join(generate(model, prompt, 20, Sampling(0.8), 0, number))
    assert events[-1].texts != events[0].texts
    shown = texts_of_tensorboard(done.run_dir)
    assert [step for step, _ in shown["samples/1"]] == [12, 24]
    assert "the cat" in shown["samples/1"][1][1]
    assert events[-1].texts[0].strip().splitlines()[0] in shown["samples/1"][1][1]


@pytest.mark.parametrize(
    "way",
    [
        "pipeline 2",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("dp 2", "ddp 2", "fsdp 2", "fsdp 4", "hybrid 2 x 2", "interleaved 2", "zero bubble 2")
        ),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("pipeline 2 x ddp 2", "pipeline 2 x fsdp 2")),
    ],
)
def test_every_mode_writes_what_one_process_writes(directory: Path, way: str) -> None:
    still = {"model": {"graph": {"gpt": {**RECIPE["model"]["graph"]["gpt"], "dropout": 0.0}}}}
    drawn = merged(SAMPLES, {"evaluation": {"samples": {"top_k": 20, "seed": 3}}})
    alone = go(directory, RECIPE, still, drawn)
    others = go(directory, RECIPE, still, drawn, WAYS[way])
    assert others.code == 0
    wanted, found = ([event.texts for event in done.of(TextsWritten)] for done in (alone, others))
    assert found == wanted
    assert len(found) == 2


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("default")  # of torch's own compiler
@pytest.mark.parametrize(
    ("how", "way"),
    [
        *(
            ({"precision": each}, way)
            for each in ("bf16", "fp16")
            for way in ("single", "ddp 2", "fsdp 2", "pipeline 2")
        ),
        ({"compile": True}, "single"),
    ],
    ids=str,
)
def test_in_half_precision_and_compiled_the_training_is_the_same(
    directory: Path, how: dict[str, Any], way: str
) -> None:
    """And what is written is what the model of that precision takes for the likeliest."""
    likeliest = merged(SAMPLES, {"evaluation": {"samples": {"temperature": 0}}})
    ways = ({"training": how}, WAYS[way])
    without, done = go(directory, RECIPE, *ways), go(directory, RECIPE, likeliest, *ways)
    assert (without.code, done.code) == (0, 0)
    assert losses(done) == losses(without)
    before, after = tensors(without), tensors(done)
    assert all(value.equal(after[name]) for name, value in before.items())
    events = done.of(TextsWritten)
    assert [event.step for event in events] == [12, 24]
    model = TextModel(open_trained(done.run_dir), "cpu")
    for prompt, text in zip(events[-1].prompts, events[-1].texts, strict=True):
        model.begin(given := model.words.encode(prompt))
        for token in model.words.tokenizer.encode(text) if text.isascii() else ():
            near = model.logits.max() - model.logits[token]
            assert near < (1e-3 if "compile" in how else 0.3), (prompt, text, near)
            model.feed([token])
        assert given


def test_the_moving_average_writes_where_it_is_evaluated(directory: Path) -> None:
    average = {"training": {"ema": {"decay": 0.9}}, "evaluation": {"weights": "ema"}}
    plain, done = go(directory, RECIPE, SAMPLES), go(directory, RECIPE, SAMPLES, average)
    assert losses(done) == losses(plain)
    (_, event), (_, other) = done.of(TextsWritten), plain.of(TextsWritten)
    assert event.texts != other.texts
    trained = open_trained(done.run_dir, weights="ema")
    assert event.texts[0] == "".join(generate(TextModel(trained, "cpu"), "the cat", 20, Sampling(0.8), 0))


def texts_of_tensorboard(run_dir: Path) -> dict[str, list[tuple[int, str]]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, list[tuple[int, str]]] = {}
    for path in run_dir.glob("events.out.*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag.startswith("samples/"):
                    text = value.tensor.string_val[0].decode()
                    found.setdefault(value.tag.removesuffix("/text_summary"), []).append((event.step, text))
    return found


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"evaluation": {"samples": {"prompts": ["a" * 40]}}}, "has 40 tokens, but the model's context is 32"),
        ({"objective": {"loss": {"type": "mean", "input": "gpt"}}}, "no `cross_entropy` reads logits"),
    ],
)
def test_what_cannot_be_written_is_said(directory: Path, changes: dict[str, Any], says: str) -> None:
    path = write_recipe(directory, merged(merged(RECIPE, SAMPLES), changes))
    found = [each for each in found_in(str(path)) if each["code"] == "R109"]
    assert len(found) == 1
    assert says in str(found[0]["message"])


def test_samples_need_no_set_to_evaluate(directory: Path) -> None:
    done = go(directory, RECIPE, SAMPLES, {"data": {"split": None}, "training": {"steps": 12}})
    assert [event.step for event in done.of(TextsWritten)] == [12]
    assert json.loads((done.run_dir / "events.jsonl").read_text().splitlines()[-1])["event"] == "RunEnded"
