"""The loop: evaluations, what they decide, the guard, the time limit, what the logs say."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.step.load_weights import open_source
from declarative_train.engine.step.step_runner import StepRunner
from declarative_train.graph import check_objective
from declarative_train.graph.build import build
from declarative_train.plan.plan import Plan
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.recipe import load
from declarative_train.run.event import (
    CheckpointSaved,
    EpochDone,
    EvaluationDone,
    Notice,
    Progress,
    RunEnded,
    RunStarted,
    StepDone,
)
from declarative_train.run.launch import run
from declarative_train.run.sinks.jsonl import read_events
from tests.engine.made_recipes import DIGITS, compiled, merged, on_pipeline, write_data, write_recipe
from tests.kept import Kept


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def go(directory: Path, *changes: Mapping[str, Any], wanted: int = 0, **how: Any) -> tuple[Kept, Plan]:
    recipe = DIGITS
    for change in changes:
        recipe = merged(recipe, change)
    plan, sink = compiled(directory, recipe), Kept()
    assert run(plan, sinks=lambda _: (sink,), **how) == wanted
    assert sink.is_closed
    return sink, plan


def test_the_story_of_a_run(directory: Path) -> None:
    sink, plan = go(directory, {"checkpoint": {"background": False}})
    kinds = [type(event).__name__ for event in sink.events if not isinstance(event, Progress)]
    one_epoch = ["StepDone", "EvaluationDone", "ClassesPredicted", "CheckpointSaved", "EpochDone"]
    assert kinds == ["RunStarted", *one_epoch, "StepDone", *one_epoch, "RunEnded"]
    assert [event.step for event in sink.of(Progress)] == list(range(1, 15))
    assert [event.epoch for event in sink.of(Progress)] == [1] * 7 + [2] * 7
    started = sink.of(RunStarted)[0]
    assert started.num_parameters == 20 * 32 + 32 + 32 * 10 + 10
    assert started.hyperparameters["optimizer"] == "sgd"
    assert started.hyperparameters["lr"] == 0.1
    assert "single" in started.plan_text
    step = sink.of(StepDone)[0]
    assert step.lr == {"lr": 0.1}
    assert step.grad_norm > 0
    assert step.samples_per_s > 0
    assert step.memory_bytes > 1e6
    assert step.tokens_per_s is None
    assert set(step.metrics) == {"accuracy"}
    ended = sink.of(RunEnded)[0]
    assert set(ended.values) == {"validation/loss", "validation/accuracy", "best/validation/accuracy"}
    assert plan.batch.steps_per_epoch == 7


def test_evaluation_is_exact_over_an_uneven_set(directory: Path) -> None:
    sink, plan = go(directory, {"evaluation": {"batch_size": 7}})
    event = sink.of(EvaluationDone)[-1]
    assert event.num_samples == 40
    values = open_sets(plan.data)["validation"].gather(np.arange(40))
    module = build(plan.graph)
    whole, _ = CheckpointStore(str(newest(directory) / "checkpoints")).entries()
    module.load_state_dict(open_source(whole[0].path).all())
    (logits,) = module.eval()(values["x"])
    assert event.values["validation/loss"] == pytest.approx(F.cross_entropy(logits, values["y"]).item(), rel=1e-5)
    assert event.values["validation/accuracy"] == (logits.argmax(1) == values["y"]).double().mean().item()


@pytest.mark.parametrize("mode", ["dp", pytest.param("ddp", marks=pytest.mark.long), "fsdp"])
def test_evaluation_is_the_same_in_every_mode(directory: Path, mode: str) -> None:
    metrics = {"accuracy": {}, "auroc": {}, "f1": {}}  # means, rows of all ranks, counts of all ranks
    exact = {"training": {"precision": "fp64"}, "evaluation": {"batch_size": 7}, "objective": {"metrics": metrics}}
    sink, _ = go(directory, exact)
    wanted = sink.of(EvaluationDone)
    recipe = merged(merged(DIGITS, exact), {"parallelism": mode, "layout": {"gpus": 2}})
    assert run(compiled(directory, recipe), quiet=True) == 0
    found = [e for e in read_events(newest(directory) / "events.jsonl") if isinstance(e, EvaluationDone)]
    assert [event.num_samples for event in found] == [event.num_samples for event in wanted]
    for one, other in zip(wanted, found, strict=True):
        assert one.values == pytest.approx(other.values, rel=1e-12)


CONTRAST: dict[str, Any] = {
    "data": {"last_batch": "drop"},
    "model": {
        "graph": {
            "act": None,
            "logits": None,
            "hidden": {"type": "linear", "out_features": 6, "input": "x"},
            "other": {"type": "linear", "out_features": 6, "input": "x"},
        }
    },
    "objective": {
        "loss": {"type": "info_nce", "input": "hidden", "target": "other", "over": "6 samples", "symmetric": False},
        "metrics": None,
    },
    "checkpoint": {"best": None},
    "training": {"precision": "fp64"},
}


def test_groups_of_an_evaluation_are_those_of_the_set(directory: Path) -> None:
    """40 samples: six groups of 6 and one of 4, whatever the layout and the batches."""
    sink, plan = go(directory, CONTRAST)
    x = open_sets(plan.data)["validation"].gather(np.arange(40))["x"].double()
    saved, _ = CheckpointStore(str(newest(directory) / "checkpoints")).entries()
    module = build(plan.graph).double()
    module.load_state_dict(open_source(saved[0].path).all())
    a, b = (F.normalize(view, dim=1) for view in module(x))
    groups = [slice(first, first + 6) for first in range(0, 40, 6)]
    each = [F.cross_entropy(a[g] @ b[g].T / 0.1, torch.arange(len(a[g])), reduction="sum") for g in groups]
    wanted = sum(each).item() / 40
    assert sink.of(EvaluationDone)[-1].values["validation/loss"] == pytest.approx(wanted, rel=1e-12)
    for way in (
        {"evaluation": {"batch_size": 5}},
        {"evaluation": {"batch_size": 7}, "parallelism": "ddp", "layout": {"gpus": 2}},
        on_pipeline(2, "1f1b", 2),
    ):
        assert run(compiled(directory, merged(merged(DIGITS, CONTRAST), way)), quiet=True) == 0
        found = [e for e in read_events(newest(directory) / "events.jsonl") if isinstance(e, EvaluationDone)][-1]
        assert found.values["validation/loss"] == pytest.approx(wanted, rel=1e-9), way


def newest(directory: Path) -> Path:
    return max((directory / "runs" / "made").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_evaluation_max_takes_that_many(directory: Path) -> None:
    sink, _ = go(directory, {"evaluation": {"max": "13 samples"}})
    assert [event.num_samples for event in sink.of(EvaluationDone)] == [13, 13]


def test_named_sets_and_test_once_on_the_best_weights(directory: Path) -> None:
    changes = {
        "data": {"split": {"validation": 0.2, "other": 0.1, "test": 0.1}},
        "training": {"epochs": 4},
        "checkpoint": {"best": {"metric": "other/loss", "mode": "max"}},  # so that the end is not the best
    }
    sink, _ = go(directory, changes)
    evaluations = sink.of(EvaluationDone)
    assert [event.set for event in evaluations] == ["validation", "other"] * 4 + ["test"]
    others = [event.values["other/loss"] for event in evaluations if event.set == "other"]
    best = [event.step for event in evaluations if event.set == "other"][others.index(max(others))]
    assert best == evaluations[0].step
    assert any(f"evaluated with the best weights, those of step {best}" in event.message for event in sink.of(Notice))
    ended = sink.of(RunEnded)[0]
    assert ended.values["best/other/loss"] == max(others)
    assert (ended.value_steps["best/other/loss"], ended.value_steps["test/loss"]) == (best, best)
    assert ended.value_steps["other/loss"] == ended.step
    weights = open_source(str(newest(directory) / "checkpoints" / f"step_{best:08d}")).all()
    assert weights  # the best one was kept


def test_test_on_the_last_weights_is_said(directory: Path) -> None:
    changes = {"data": {"split": {"validation": 0.2, "test": 0.1}}, "checkpoint": {"best": None}}
    sink, _ = go(directory, changes)
    assert any("evaluated with the last weights" in event.message for event in sink.of(Notice))
    assert sink.of(EvaluationDone)[-1].set == "test"


def test_early_stop(directory: Path) -> None:
    changes = {
        "training": {
            "epochs": 50,
            "optimizer": {"type": "sgd", "lr": 0.0},
            "early_stop": {"metric": "validation/loss", "mode": "min", "patience": "3 epochs"},
        },
    }
    sink, plan = go(directory, changes)
    ended = sink.of(RunEnded)[0]
    # the first evaluation is the best one: nothing is learned with lr 0
    assert (ended.status, ended.step) == ("early_stop", 4 * plan.batch.steps_per_epoch)
    assert sink.of(CheckpointSaved)[-1].step == ended.step


def test_a_run_that_has_done_all_its_steps_is_finished_however_patient(directory: Path) -> None:
    early_stop = {"metric": "validation/loss", "mode": "min", "patience": "1 epoch"}
    sink, plan = go(
        directory, {"training": {"epochs": 2, "optimizer": {"type": "sgd", "lr": 0.0}, "early_stop": early_stop}}
    )
    ended = sink.of(RunEnded)[0]
    assert (ended.status, ended.step) == ("finished", 2 * plan.batch.steps_per_epoch)


def test_max_time_saves_and_exits_75(directory: Path) -> None:
    changes = {"training": {"epochs": None, "steps": 10**6, "max_time": "0.01 minutes"}}
    sink, _ = go(directory, changes, wanted=75)
    ended = sink.of(RunEnded)[0]
    assert ended.status == "stopped"
    assert 0.3 <= ended.seconds < 10  # max_time counts from a little before the first step
    assert sink.of(CheckpointSaved)[-1].step == ended.step


def test_lr_follows_the_schedule(directory: Path) -> None:
    changes = {
        "training": {"lr_schedule": {"type": "cosine", "warmup": "5 steps"}},
        "logging": {"every": "1 step"},
    }
    sink, _ = go(directory, changes)
    rates = [event.lr["lr"] for event in sink.of(StepDone)]
    assert len(rates) == 14
    assert rates[:6] == pytest.approx([0.1 * step / 6 for step in range(1, 7)])
    assert max(rates) == pytest.approx(0.1)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] < 0.01


def test_the_log_holds_means_over_its_window_and_the_epoch(directory: Path) -> None:
    each, _ = go(directory, {"logging": {"every": "1 step"}})
    fives, _ = go(directory)
    losses = [event.loss for event in each.of(StepDone)]
    for event in fives.of(StepDone):
        first = (event.step - 1) // 5 * 5
        assert event.loss == pytest.approx(np.mean(losses[first : event.step]), rel=1e-6)
    for number, event in enumerate(fives.of(EpochDone)):
        assert event.values["training/loss"] == pytest.approx(np.mean(losses[number * 7 : number * 7 + 7]), rel=1e-6)
        accuracies = [step.metrics["accuracy"] for step in each.of(StepDone)[number * 7 : number * 7 + 7]]
        rows = [24] * 6 + [16]
        assert event.values["training/accuracy"] == pytest.approx(np.average(accuracies, weights=rows), rel=1e-9)
        assert "validation/accuracy" in event.values


def test_the_closing_values_know_their_step(directory: Path) -> None:
    """Evaluations are made at the ends of epochs, after steps 7 and 14; the run is stopped between them, and again."""
    sink, _ = go(directory, max_steps=9)
    assert sink.of(RunEnded)[0].value_steps == {
        "validation/loss": 7,
        "validation/accuracy": 7,
        "best/validation/accuracy": 7,
    }
    sink, _ = go(directory, max_steps=2, resume="auto")
    assert sink.of(RunEnded)[0].step == 11
    assert sink.of(RunEnded)[0].value_steps["validation/loss"] == 7


def test_the_window_of_a_log_goes_on_where_a_run_broke_off(directory: Path) -> None:
    """Broken off after 9 steps of a window that ends with the tenth."""
    straight, _ = go(directory)
    broken, _ = go(directory, max_steps=9)
    assert [event.step for event in broken.of(StepDone)] == [5, 9]
    resumed, _ = go(directory, resume="auto")
    assert [event.step for event in resumed.of(StepDone)] == [10, 14]
    for one, other in zip(straight.of(StepDone)[-2:], resumed.of(StepDone), strict=True):
        assert (one.step, one.loss, one.terms) == (other.step, other.loss, other.terms)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-12)


# class 3 is not counted, and the rows stand in the order of the file: 160 of training, 40 of validation
IGNORES: dict[str, Any] = {
    "data": {"shuffle": False, "split": {"validation": {"type": "last", "fraction": 0.2}}},
    "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y", "ignore_index": 3}},
    "logging": {"every": "1 step"},
    "checkpoint": {"best": None},
}


def without_items(directory: Path, *rows: slice) -> None:
    data = dict(np.load(directory / "data.npz"))
    data["y"][data["y"] == 3] = 4
    for each in rows:
        data["y"][each] = 3
    np.savez(directory / "data.npz", **data)


def test_a_step_without_a_valid_item_is_told_and_does_not_count(directory: Path) -> None:
    without_items(directory, slice(24, 48), slice(72, 96))  # all of the second and the fourth of 7 batches
    sink, _ = go(directory, IGNORES)
    told = [event.message for event in sink.of(Notice) if "no item was valid" in event.message]
    assert len(told) == 1
    assert "at step 2" in told[0]
    losses = [event.loss for event in sink.of(StepDone)]
    assert [step for step, loss in enumerate(losses, 1) if math.isnan(loss)] == [2, 4, 9, 11]
    counted = [loss for loss in losses[:7] if not math.isnan(loss)]
    assert sink.of(EpochDone)[0].values["training/loss"] == pytest.approx(np.mean(counted), rel=1e-12)


def test_a_run_without_a_valid_item_fails_at_the_end_of_its_first_epoch(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lint tells it of the rows that it looks at; of larger data it may not see all."""
    without_items(directory, slice(0, 160))
    loaded = load(str(write_recipe(directory, merged(DIGITS, IGNORES))))
    assert loaded.recipe is not None
    assert [item.code for item in compile_plan(loaded.recipe)[1]] == ["G014"]
    told = check_objective.mask_without_items
    monkeypatch.setattr(
        check_objective, "mask_without_items", lambda *where, is_certain: told(*where, is_certain=False)
    )
    sink, _ = go(directory, IGNORES, wanted=3)
    assert capsys.readouterr().err.startswith("dtrain: the run failed: step 7: no item was valid in 7 steps")
    assert not sink.of(CheckpointSaved)
    assert len([event for event in sink.of(Notice) if "no item was valid" in event.message]) == 1


def test_an_evaluation_without_a_valid_item_is_told_once(directory: Path) -> None:
    without_items(directory, slice(160, 200))
    sink, _ = go(directory, IGNORES)
    assert [math.isnan(event.values["validation/loss"]) for event in sink.of(EvaluationDone)] == [True, True]
    told = [event.message for event in sink.of(Notice) if "no item was valid" in event.message]
    assert len(told) == 1
    assert told[0].startswith("validation: ")


def test_a_term_without_a_valid_item_adds_nothing_to_the_loss(directory: Path) -> None:
    without_items(directory, slice(24, 48))
    kind = IGNORES["objective"]["loss"]
    losses = {"kind": kind, "size": {"type": "mean", "input": "size", "weight": 0.5}}
    more = {
        "objective": {"loss": None, "losses": losses, "metrics": None},
        "model": {"graph": {"size": "mean(logits ** 2, dim=-1)"}},
    }
    sink, _ = go(directory, IGNORES, more)
    told = [event.message for event in sink.of(Notice) if "no item of loss term `kind`" in event.message]
    assert len(told) == 1
    second = sink.of(StepDone)[1]
    assert math.isnan(second.terms["kind"])
    assert second.loss == pytest.approx(0.5 * second.terms["size"])


@pytest.fixture
def nan_at_7(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, 7)


def poison(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    right = StepRunner.run

    def poisoned(self: StepRunner, step: int, position: int, chunk: Any, *rest: Any) -> Any:
        if step == at:
            chunk = replace(chunk, tensors=chunk.tensors | {"x": chunk.tensors["x"] * math.nan})
        return right(self, step, position, chunk, *rest)

    monkeypatch.setattr(StepRunner, "run", poisoned)


@pytest.mark.usefixtures("nan_at_7")
def test_non_finite_stop_names_the_step_and_saves_nothing(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink, _ = go(directory, wanted=3)
    error = capsys.readouterr().err
    assert error.startswith("dtrain: the run failed: step 7: the loss is nan; help: lower training.optimizer.lr")
    assert not sink.of(CheckpointSaved)  # that of step 7 would have held nan


def test_non_finite_in_the_first_step_is_not_put_down_to_the_lr(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, 1)
    go(directory, wanted=3)
    error = capsys.readouterr().err
    assert error.startswith("dtrain: the run failed: step 1: the loss is nan; help: no update was made yet: check for")
    assert "lr" not in error.split("help:")[1]


@pytest.mark.usefixtures("nan_at_7")
def test_non_finite_is_told_without_a_rank(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The loss is that of all ranks; none of them is to blame."""
    changes = {"parallelism": "ddp", "layout": {"gpus": 2}, "logging": {"every": "4 steps"}}
    assert run(compiled(directory, merged(DIGITS, changes)), quiet=True) == 3
    error = capfd.readouterr().err
    assert "the run failed: step 7: the loss is nan; help:" in error
    assert error.count("step") == 1


@pytest.mark.usefixtures("nan_at_7")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_non_finite_skip_leaves_the_step_out_and_says_so(directory: Path, precision: str) -> None:
    sink, _ = go(directory, {"training": {"non_finite": "skip", "precision": precision}})
    assert any("nan at step 7" in event.message for event in sink.of(Notice))
    assert all(math.isfinite(event.loss) for event in sink.of(StepDone))
    assert sink.of(RunEnded)[0].status == "finished"
    assert sink.of(RunEnded)[0].values["validation/accuracy"] > 0.3


def test_no_host_synchronisation_between_logging_steps(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`item` and `tolist` are how a host waits for a device."""
    steps: list[int] = []
    waited: dict[int, list[str]] = {}
    right = StepRunner.run

    def counted(self: StepRunner, step: int, *rest: Any) -> Any:
        steps.append(step)
        return right(self, step, *rest)

    monkeypatch.setattr(StepRunner, "run", counted)
    for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
        original = getattr(torch.Tensor, name)

        def waits(self: torch.Tensor, *rest: Any, name: str = name, original: Any = original) -> Any:
            waited.setdefault(steps[-1] if steps else 0, []).append(name)
            return original(self, *rest)

        monkeypatch.setattr(torch.Tensor, name, waits)
    go(
        directory,
        {
            "training": {
                "clip_grad_norm": 1.0,
                "optimizer": {"type": "adamw", "lr": 1e-3},
                "gradient_accumulation_steps": 2,
            },
            "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y", "ignore_index": 3}},
        },
    )
    # the first step may make state, the third one reports on the first three
    assert not set(waited) - {0, 1, 3, 5, 7, 10, 14}


def test_a_batch_graph_is_computed_before_the_model(directory: Path) -> None:
    changes = {
        "model": {"graph": {"known": "y != 3"}},
        "objective": {
            "loss": {"type": "cross_entropy", "input": "logits", "target": "y", "mask": "known"},
            "metrics": None,
        },
        "checkpoint": {"best": None},
    }
    masked, plan = go(directory, changes)
    assert plan.batch_graph.nodes
    ignored, _ = go(
        directory,
        {
            "objective": {
                "loss": {"type": "cross_entropy", "input": "logits", "target": "y", "ignore_index": 3},
                "metrics": None,
            },
            "checkpoint": {"best": None},
        },
    )
    assert [event.loss for event in masked.of(StepDone)] == pytest.approx(
        [event.loss for event in ignored.of(StepDone)], rel=1e-6
    )


def test_a_loss_out_of_its_bounds_is_reported_once_in_each_set(directory: Path) -> None:
    """A loss that has no such values "falls" for ever: nll of scores that are no log-probabilities."""
    terms = {
        "kind": {"type": "cross_entropy", "input": "logits", "target": "y"},
        "raw": {"type": "nll", "input": "huge", "target": "y"},
    }
    objective = {"loss": None, "losses": terms, "metrics": {"accuracy": {"of": "kind"}}}
    sink, _ = go(directory, {"model": {"graph": {"huge": "logits + 100"}}, "objective": objective})
    found = [event.message for event in sink.of(Notice) if "loss term" in event.message]
    for message, where in zip(found, ("at step 1", "on `validation`"), strict=True):
        pattern = rf"loss term `raw` is -\d+\.\d+ {where}, but `nll` is 0 or more: its input"
        assert re.match(pattern, message), message


def test_a_loss_within_its_bounds_is_not_reported(directory: Path) -> None:
    sink, _ = go(directory)
    assert not [event for event in sink.of(Notice) if "or more" in event.message]


def test_a_metric_that_is_nan_is_reported_first_and_last(directory: Path) -> None:
    """Every `y` of the set is one class, so that its scores have no ranking."""
    yes = {"model": {"graph": {"one": "logits[:, 0]", "never": "x[:, 0] > 1000"}}}
    sink, _ = go(
        directory, yes, {"objective": {"metrics": {"auroc": {"input": "one", "target": "never"}, "accuracy": {}}}}
    )
    said = [event.message for event in sink.of(Notice) if "nan" in event.message]
    why = "validation/auroc is nan: all items are masked, the outputs contain nan, or all targets of the set are equal"
    assert said == [why, f"at the end, {why}"]
