"""Memory by trace: short chains tell of long ones, nothing of the pretended ranks stays, runs say what they needed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from declarative_train import recipe as recipe_room
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.plan import sharding
from declarative_train.plan.codec import from_json, to_json
from declarative_train.plan.plan import Plan
from declarative_train.plan.predictions import TAKEN, ChoicePlan, MemoryPlan
from declarative_train.planner.auto.candidates import Candidate
from declarative_train.planner.auto.choose import _list_untried, _make_fit_test
from declarative_train.planner.auto.judge import LayoutVerdict
from declarative_train.planner.auto.target import Target
from declarative_train.planner.compiler import MOST_TOO_LARGE, MOST_TRIED_S
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.planner.estimate import shortened as shortened_room
from declarative_train.planner.estimate.memory import MemoryScale
from declarative_train.planner.estimate.model import ModelFacts
from declarative_train.planner.estimate.shortened import MOST_RANKS, fewer_ranks, find_chains, shorten
from declarative_train.planner.estimate.tracing import TraceResult
from declarative_train.planner.footprint import forecast, forked_process
from declarative_train.planner.footprint.extrapolate import MemoryTrace, UnevenError, extrapolate
from declarative_train.planner.footprint.fake_rank import fake_step
from declarative_train.planner.footprint.forecast import Forecast
from declarative_train.planner.footprint.forked_process import ChildError, in_children
from declarative_train.planner.footprint.live_bytes import LOSS, LiveBytes
from declarative_train.planner.text.describe import describe
from declarative_train.planner.text.estimate import _describe_traces
from declarative_train.recipe.sections.parallelism import Axes
from declarative_train.run import launch
from tests.engine.made_recipes import DEEP, compiled, merged, write_data
from tests.planner.at_size import eight_ranks, many_ranks, whole
from tests.planner.footprint import footprint_of

DEEP_MODEL = """
name: deep
data:
  source: {{type: synthetic, kind: tokens, rows: 4000}}
  window: {{length: 33, stride: 32}}
  fields:
    tokens: {{column: tokens, rows: ":-1"}}
    next: {{column: tokens, rows: "1:"}}
model:
  graph:
    m: {{type: gpt, vocabulary: 256, layers: 12, width: 32, heads: 2, input: tokens}}
objective: {{loss: {{type: cross_entropy, input: m, target: next}}}}
training:
  steps: 4
  global_batch_size: {batch}
  gradient_accumulation_steps: {accumulation}
  activation_checkpointing: {checkpointing}
  optimizer: {{type: adamw, lr: 1e-3}}
parallelism: {parallelism}
layout: {{gpus: {gpus}, device: cpu}}
"""


def deep(
    folder: Path, parallelism: str, gpus: int, checkpointing: str = "none", accumulation: int = 1, batch: int = 16
) -> Plan:
    path = folder / "deep.yaml"
    values = {"parallelism": parallelism, "gpus": gpus, "checkpointing": checkpointing, "accumulation": accumulation}
    path.write_text(DEEP_MODEL.format(batch=batch, **values))
    recipe = recipe_room.load(str(path)).recipe
    assert recipe is not None
    plan, diagnostics = compile_plan(recipe)
    assert plan is not None, diagnostics
    return plan


@pytest.mark.parametrize(
    ("parallelism", "gpus", "checkpointing", "accumulation"),
    [
        pytest.param("single", 1, "none", 1, marks=pytest.mark.long),
        pytest.param("single", 1, "blocks", 2, marks=pytest.mark.long),
        pytest.param("fsdp", 2, "none", 2, marks=pytest.mark.long),
        ("fsdp", 2, "blocks", 1),
    ],
)
def test_three_and_four_blocks_tell_of_twelve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: str, gpus: int, checkpointing: str, accumulation: int
) -> None:
    plan = deep(tmp_path, parallelism, gpus, checkpointing, accumulation)
    (carried_on,) = Forecast().memory(plan).rows
    every = whole(plan)
    assert carried_on.is_traced
    assert carried_on.total == pytest.approx(every.total, rel=0.001)
    assert replace(carried_on, name="") == replace(every, name="")


STAGES = "{pipeline: {stages: 2, schedule: 1f1b, microbatches: 4}}"


@pytest.mark.long
def test_few_blocks_with_adapters_tell_of_twelve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a frozen embedding the first copy has less to do than those in the middle, and the last is another."""
    monkeypatch.setattr(
        sys.modules[__name__],
        "DEEP_MODEL",
        DEEP_MODEL.replace("objective:", "  parameters: {{layers: {{adapter: {{type: lora, rank: 2}}}}}}\nobjective:"),
    )
    plan = deep(tmp_path, "fsdp", 2)
    every = whole(plan)
    monkeypatch.setattr(forecast, "_memory_trace", _of_a_short_chain(forecast._memory_trace))
    (carried_on,) = Forecast().memory(plan).rows
    assert replace(carried_on, name="") == replace(every, name="")


@pytest.mark.parametrize(
    ("parallelism", "gpus", "checkpointing"),
    [
        ("single", 1, "none"),
        pytest.param("single", 1, "blocks", marks=pytest.mark.long),
        pytest.param("ddp", 2, "selective", marks=pytest.mark.long),
        pytest.param("{data: {replicate: 2, shard: all}}", 4, "none", marks=pytest.mark.long),
    ],
)
def test_few_blocks_in_half_precision_tell_of_twelve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: str, gpus: int, checkpointing: str
) -> None:
    """A block more has its casts before the forward, too, where parameters are cast once a step."""
    plan = deep(tmp_path, parallelism, gpus, checkpointing)
    plan = replace(plan, training=replace(plan.training, precision="bf16"))
    every = whole(plan)
    monkeypatch.setattr(forecast, "_memory_trace", _of_a_short_chain(forecast._memory_trace))
    (carried_on,) = Forecast().memory(plan).rows
    assert replace(carried_on, name="") == replace(every, name="")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("schedule", "precision"), [("gpipe", "fp32"), ("1f1b", "bf16")])
def test_few_blocks_of_a_stage_tell_of_ten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str, precision: Any
) -> None:
    """A block more has operations in each forward and backward, and several of these follow each other."""
    monkeypatch.setattr(sys.modules[__name__], "DEEP_MODEL", DEEP_MODEL.replace("layers: 12", "layers: 20"))
    plan = deep(tmp_path, STAGES.replace("1f1b", schedule), 2)
    plan = replace(plan, training=replace(plan.training, precision=precision))
    with monkeypatch.context() as patch:
        patch.setattr(forecast, "LONG", 100)
        every = Forecast().memory(plan)
    monkeypatch.setattr(forecast, "_memory_trace", _of_a_short_chain(forecast._memory_trace))
    found = Forecast().memory(plan)
    assert (found.why_not, len(found.rows)) == ("", 2)
    assert found.rows == every.rows


def _of_a_short_chain(course: Callable[..., Any]) -> Callable[..., Any]:
    def tried(plan: Plan, *more: Any) -> Any:
        assert not any(item.name.startswith("m.layers.5.") for item in plan.parameters)
        return course(plan, *more)

    return tried


def test_a_shorter_plan_has_the_first_copies(tmp_path: Path) -> None:
    plan = deep(tmp_path, "single", 1)
    (run,) = find_chains(plan, 5)
    assert run.paths == tuple(f"m.layers.{number}" for number in range(12))
    short = shorten(plan, [run], [4])
    assert short.layout.units == tuple(unit for unit in plan.layout.units if unit not in run.paths[4:])
    names = {item.name for item in short.parameters}
    assert names == {
        item.name for item in plan.parameters if not item.name.startswith(tuple(f"{p}." for p in run.paths[4:]))
    }
    assert find_chains(short, 5) == []


def test_copies_that_are_set_apart_are_no_run(tmp_path: Path) -> None:
    plan = deep(tmp_path, "single", 1)
    apart = tuple(replace(item, frozen=item.name.startswith("m.layers.5.")) for item in plan.parameters)
    assert [len(run.paths) for run in find_chains(replace(plan, parameters=apart), 5)] == [5, 6]


def test_few_ranks_stand_for_many(tmp_path: Path) -> None:
    few = fewer_ranks(deep(tmp_path, "{data: {replicate: 4, shard: all}}", 512, batch=512))
    assert [axis.size for axis in few.layout.mesh] == [2, MOST_RANKS]
    assert len(few.layout.ranks) == 2 * MOST_RANKS


def test_steps_that_differ_in_more_than_a_copy_are_not_carried_on() -> None:
    zeros = torch.zeros((3, 7), dtype=torch.int64).numpy()
    with pytest.raises(UnevenError):
        extrapolate(MemoryTrace((("a", "b", "c"),), zeros), [MemoryTrace((("x", "y", "z"),), zeros)], [9])


def test_nothing_of_the_pretended_ranks_stays(tmp_path: Path) -> None:
    assert Forecast().memory(deep(tmp_path, "fsdp", 2)).rows
    assert not torch.distributed.is_initialized()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_70b_on_256_ranks_is_what_all_layers_and_ranks_say(tmp_path: Path) -> None:
    plan = many_ranks(tmp_path)
    (traced,) = in_children([lambda: footprint_of(fake_step(plan, 0)).total])
    assert Forecast().memory(plan).rows[0].total == pytest.approx(traced, rel=0.05)


def test_a_child_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_children([lambda: 3]) == [3]
    with pytest.raises(ChildError, match="ZeroDivisionError: integer division"):
        in_children([lambda: 1 // 0])
    with pytest.raises(ChildError, match="its process ended"):
        in_children([lambda: os._exit(1)])
    monkeypatch.setattr(forked_process, "MOST_S", 0.2)
    with pytest.raises(ChildError, match="used more than"):
        in_children([lambda: time.sleep(30)])


def test_children_work_at_the_same_time_and_answer_in_order() -> None:
    def after(seconds: float) -> tuple[float, float, bytes]:
        begun = time.monotonic()
        time.sleep(seconds)
        return begun, time.monotonic(), bytes(1 << 18)  # more than a pipe holds

    first, second = in_children([lambda: after(0.4), lambda: after(0.2)])
    assert max(first[0], second[0]) < min(first[1], second[1])
    assert first[1] - first[0] > second[1] - second[0]
    assert len(first[2]) == 1 << 18
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        in_children([lambda: 1, lambda: 1 // 0])


def test_a_child_that_computes_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's time, which other work on the machine does not use up."""

    def forever() -> int:
        while True:
            pass

    monkeypatch.setattr(forked_process, "LIMIT_S", 1.0)
    with pytest.raises(ChildError, match="1 s of CPU time"):
        in_children([forever])


class Tracer:
    """Says that ddp needs more than there is. Each try takes a second."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @property
    def spent_s(self) -> float:
        return float(len(self.asked))

    def memory(self, plan: Plan) -> TraceResult:
        self.asked.append(plan.layout.mode)
        size = 10**12 if plan.layout.mode == "ddp" else 10**9
        return TraceResult((MemoryPlan("each device", size, 0, 0, 0, 0, is_traced=True),))

    def scale(self, plan: Plan, model: ModelFacts) -> MemoryScale | None:
        return MemoryScale(4.0, 0.0, 0.0)


def test_auto_passes_over_what_does_not_fit_when_it_is_traced(tmp_path: Path) -> None:
    path = tmp_path / "auto.yaml"
    values = {"parallelism": "auto", "gpus": 2, "checkpointing": "none", "accumulation": 1, "batch": 16}
    path.write_text(DEEP_MODEL.format(**values).replace("device: cpu", "hardware: h100-sxm"))
    recipe = recipe_room.load(str(path)).recipe
    assert recipe is not None
    tracer = Tracer()
    plan, _ = compile_plan(recipe, tracer=tracer)
    assert plan is not None
    assert plan.choice is not None
    assert plan.layout.mode != "ddp"
    verdicts = {each.parallelism: (each.verdict, each.memory_bytes) for each in plan.choice.candidates}
    assert verdicts["ddp"][1] == 10**12
    assert "does not fit" in verdicts["ddp"][0]
    assert sum(verdict == TAKEN for verdict, _ in verdicts.values()) == 1
    assert tracer.asked[0] == "ddp"


@pytest.mark.parametrize(
    "ways", [pytest.param({}, marks=pytest.mark.long), {"parallelism": "ddp", "layout": {"gpus": 2}}]
)
def test_a_run_says_what_it_measured(tmp_path: Path, ways: dict[str, object]) -> None:
    write_data(tmp_path)
    plan = compiled(tmp_path, merged(DEEP, ways))
    plan = replace(plan, memory=Forecast().memory(plan).rows)
    launch.run(plan, max_steps=3, quiet=True)
    (log,) = (tmp_path / "runs").rglob("events.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (found,) = [each for each in events if "predicted" in each and "measured" in each]
    assert len(found["measured"]) == len(plan.layout.ranks)
    assert found["measured"] == pytest.approx(found["predicted"], rel=0.1)


@pytest.mark.long
def test_eight_ranks_of_an_8b_model_by_all_layers_and_by_a_few(tmp_path: Path) -> None:
    plan = eight_ranks(tmp_path, "blocks")
    (carried_on,) = Forecast().memory(plan).rows
    assert carried_on.total == pytest.approx(whole(plan).total, rel=0.02)


RECURRENT = """
name: recurrent
data:
  source: {{type: synthetic, kind: classification, rows: 64, features: 512, classes: 4}}
  fields: {{x: {{column: x, shape: [16, 32]}}, y: {{column: y}}}}
model:
  graph:
    net: {{type: lstm, hidden_size: 300, num_layers: 2, input: x}}
    last: mean(net, dim=1)
    logits: {{type: linear, out_features: 4}}
objective: {{loss: {{type: cross_entropy, input: logits, target: y}}}}
training: {{steps: 3, global_batch_size: 32, optimizer: {{type: adam, lr: 1e-3}}}}
parallelism: {parallelism}
layout: {{gpus: {gpus}, device: cpu}}
"""


def test_a_recurrent_model_needs_as_much_on_tensors_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch says there of the workspace of oneDNN's lstm, most of what a step keeps, that it is empty."""
    path = tmp_path / "recurrent.yaml"
    path.write_text(RECURRENT.format(parallelism="single", gpus=1))
    recipe = recipe_room.load(str(path)).recipe
    assert recipe is not None
    plan, diagnostics = compile_plan(recipe)
    assert plan is not None, diagnostics
    (real,) = Forecast().memory(plan).rows
    (fake,) = Forecast().memory(plan).rows
    assert fake.is_traced
    assert fake.activations == pytest.approx(real.activations, rel=0.02)
    assert fake.activations > 8 * 4 * 2 * 16 * 32 * 300  # eight numbers for each hidden one, step and layer


def test_a_trace_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the text of the plan and in what is saved; the figures are derived then."""

    def broken(*_: object, **__: object) -> LiveBytes:
        raise RuntimeError("a layer that has no values") from KeyError("its shape")

    monkeypatch.setattr(forecast, "fake_step", broken)
    path = tmp_path / "deep.yaml"
    values = {"parallelism": "fsdp", "gpus": 2, "checkpointing": "none", "accumulation": 1, "batch": 16}
    path.write_text(DEEP_MODEL.format(**values))
    recipe = recipe_room.load(str(path)).recipe
    assert recipe is not None
    plan, _ = compile_plan(recipe, tracer=Forecast(), traces_all=True)
    assert plan is not None
    assert not plan.memory[0].is_traced
    assert "KeyError: 'its shape'" in plan.not_traced
    assert from_json(to_json(plan)).not_traced == plan.not_traced
    text = describe(plan)
    assert "memory per device, estimated" in text
    assert f"not traced: {plan.not_traced}" in text


def test_what_would_take_too_long_says_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MOST_CALLS", 3)
    found = Forecast().memory(deep(tmp_path, "single", 1))
    assert found.rows == ()
    assert "calls of layers would take too long; the limit is 3" in found.why_not


@pytest.mark.parametrize("parallelism", [pytest.param("single", marks=pytest.mark.long), "fsdp"])
def test_one_chunk_with_gradients_there_tells_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: str
) -> None:
    monkeypatch.setattr(sharding, "KEPT_GRADIENT_BYTES", 0)
    plan = deep(tmp_path, parallelism, 2 if parallelism == "fsdp" else 1, "blocks", accumulation=2)
    (one,) = Forecast().memory(plan).rows
    monkeypatch.setattr(forecast, "_are_chunks_alike", lambda _: False)
    (both,) = Forecast().memory(plan).rows
    assert one.gradients > 0
    assert one.total == pytest.approx(both.total, rel=0.001)


@pytest.mark.long
def test_whole_gradients_do_not_shrink_with_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many ranks a few are tried; what is a share is scaled to theirs, what every rank holds whole is not."""
    plan = deep(tmp_path, "fsdp", 16)
    (of_few,) = Forecast().memory(plan).rows
    monkeypatch.setattr(shortened_room, "MOST_RANKS", 16)
    (of_all,) = Forecast().memory(plan).rows
    assert of_few.gradients == pytest.approx(of_all.gradients, rel=0.02)
    assert of_few.total == pytest.approx(of_all.total, rel=0.02)


def test_auto_traces_what_the_estimate_says_is_too_large(tmp_path: Path) -> None:
    """An estimate that is too high must not keep a faster mode out."""

    class High(Tracer):
        def memory(self, plan: Plan) -> TraceResult:
            self.asked.append(plan.layout.mode)
            return TraceResult((MemoryPlan("each device", 10**9, 0, 0, 0, 0, is_traced=True),))

        def scale(self, plan: Plan, model: ModelFacts) -> MemoryScale | None:
            return MemoryScale(1e9, 0.0, 0.0)

    path = tmp_path / "auto.yaml"
    values = {"parallelism": "auto", "gpus": 2, "checkpointing": "none", "accumulation": 1, "batch": 16}
    path.write_text(DEEP_MODEL.format(**values).replace("device: cpu", "hardware: h100-sxm"))
    recipe = recipe_room.load(str(path)).recipe
    assert recipe is not None
    tracer = High()
    plan, diagnostics = compile_plan(recipe, tracer=tracer)
    assert plan is not None, diagnostics
    assert plan.choice is not None
    (taken,) = (each for each in plan.choice.candidates if each.verdict == TAKEN)
    assert taken.memory_bytes == 10**9
    assert tracer.asked


class Sized(Tracer):
    """Says the same of every step that is tried, and another thing of all that are estimated."""

    def __init__(self, num_bytes: int, scale: float) -> None:
        super().__init__()
        self.num_bytes, self.estimated = num_bytes, scale

    def memory(self, plan: Plan) -> TraceResult:
        self.asked.append(plan.layout.mode)
        return TraceResult((MemoryPlan("each device", self.num_bytes, 0, 0, 0, 0, is_traced=True),))

    def scale(self, plan: Plan, model: ModelFacts) -> MemoryScale | None:
        return MemoryScale(self.estimated, 0.0, 0.0)


def auto_plan(folder: Path, tracer: Tracer) -> tuple[Plan | None, list[Diagnostic]]:
    path = folder / "auto.yaml"
    values = {"parallelism": "auto", "gpus": 8, "checkpointing": "none", "accumulation": 1, "batch": 64}
    path.write_text(DEEP_MODEL.format(**values).replace("device: cpu", "hardware: h100-sxm"))
    recipe = recipe_room.load(str(path)).recipe
    assert recipe is not None
    return compile_plan(recipe, tracer=tracer)


def test_auto_says_when_it_tried_no_more(tmp_path: Path) -> None:
    """Nothing fits by the estimate by far, and what is tried does not either: after so many it is an error."""
    tracer = Sized(10**12, 1e9)
    plan, diagnostics = auto_plan(tmp_path, tracer)
    assert plan is None
    assert [each.code for each in diagnostics if each.is_error] == ["P108"]
    assert len(tracer.asked) == MOST_TOO_LARGE


def test_auto_does_not_take_what_a_trace_says_is_too_large(tmp_path: Path) -> None:
    """All fit by the estimate and none by a trace: they are tried until the time for it is used up, and a few more;
    the last one tried is refused with what the trace says."""
    tracer = Sized(10**12, 0.0)
    plan, diagnostics = auto_plan(tmp_path, tracer)
    assert plan is None
    (error,) = (each for each in diagnostics if each.is_error)
    assert error.code == "P108"
    assert "1 TB" in error.message or "1000 GB" in error.message
    assert len(tracer.asked) == MOST_TRIED_S + MOST_TOO_LARGE


def test_the_plan_names_what_auto_left_untried() -> None:
    verdicts = [
        LayoutVerdict(Candidate(Axes(), name), None, needed, step_s, fits=needed < 10, least_bytes=1)
        for name, needed, step_s in (
            ("slow", 5, 9.0),
            ("fast", 11, 1.0),
            ("faster", 11, 0.5),
            ("too large by far", 50, 0.5),
            ("slower", 11, 20.0),
        )
    ]
    target = Target(None, 10, ())
    may_fit = _make_fit_test(verdicts, {"slow": 5}, target)
    assert list(_list_untried(filter(may_fit, verdicts), verdicts[0])) == ["faster", "fast"]
    choice = ChoicePlan("because", (), 4, (), num_traced=4, untried=("faster", "fast"))
    text = " ".join(_describe_traces(choice))
    assert "4 candidates" in text
    assert "faster and 1 more" in text


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_compiled_loss_of_a_gpu_keeps_no_scores(tmp_path: Path, device: Literal["cuda", "cpu"]) -> None:
    plan = deep(tmp_path, "single", 1)
    plan = replace(plan, layout=replace(plan.layout, device=device), training=replace(plan.training, precision="bf16"))

    def loss_bytes(compile: bool) -> int:
        moments = Forecast()._trace(replace(plan, training=replace(plan.training, compile=compile)), False)[0]
        return int(moments[:, LOSS].max())

    items = 16 * 32
    gradient = items * 256 * 2  # of the scores, in bf16
    if device == "cuda":
        assert gradient <= loss_bytes(compile=True) <= gradient + 4 * items + 8 * items + 64  # and class numbers
    else:  # where the compiler gets the blocks alone
        assert loss_bytes(compile=True) == loss_bytes(compile=False)
    assert loss_bytes(compile=False) >= 3 * gradient
