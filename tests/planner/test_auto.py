"""`parallelism: auto`: what it takes, what it says, and that nothing of it reaches the ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from declarative_train.components.hardware import HARDWARE
from declarative_train.plan.codec import from_json, to_json
from declarative_train.plan.plan import Plan
from declarative_train.plan.predictions import TAKEN, ChoicePlan
from declarative_train.planner.auto import target
from declarative_train.planner.auto.candidates import divisors
from declarative_train.planner.estimate.constants import Machine
from declarative_train.planner.estimate.memory import largest_bytes
from declarative_train.planner.estimate.model import facts_of
from declarative_train.planner.estimate.placement import placement_of
from declarative_train.planner.estimate.step_time import step_time
from declarative_train.planner.text.describe import describe, summary
from declarative_train.recipe import load

AUTO = "parallelism: auto\n"
TWO = AUTO + "layout: {gpus: 2, device: cpu}"
HUGE = """
model: {{graph: {{
  hidden: {{out_features: 16384}},
  layers: {{type: linear, out_features: 16384, repeat: {layers}, input: act}},
  logits: {{input: layers}},
}}}}
training: {{global_batch_size: {batch}, precision: bf16, optimizer: {{type: adam, lr: 0.01}}}}
"""


@contextmanager
def count_calls() -> Iterator[list[int]]:
    """Count the calls of Python functions, which are the same on a busy machine; a loop without calls ends by the
    test's time limit."""
    number = [0]

    def count(frame: object, kind: str, value: object) -> None:
        number[0] += kind == "call"

    sys.setprofile(count)
    try:
        yield number
    finally:
        sys.setprofile(None)


def choice_of(plan: Plan) -> ChoicePlan:
    assert plan.choice is not None
    return plan.choice


def verdicts(plan: Plan) -> dict[str, str]:
    return {each.parallelism: each.verdict for each in choice_of(plan).candidates}


def test_one_device_is_single(planned) -> None:
    plan = planned(AUTO + "layout: {gpus: 1, device: cpu}")
    assert plan.layout.mode == "single"
    assert choice_of(plan).reason == "single: there is only one device"


def test_without_figures_the_simplest_mode_that_fits(planned) -> None:
    plan = planned(TWO)
    assert plan.layout.mode == "ddp"
    assert plan.estimate is None
    assert choice_of(plan).reason == "ddp: the simplest that fits"
    (unknown, shared) = choice_of(plan).assumptions
    assert "the speed is unknown" in unknown
    assert "is shared by 2 ranks" in shared


def test_the_mode_is_compiled_as_if_it_had_been_written(planned) -> None:
    chosen, written = planned(TWO), planned("parallelism: ddp\nlayout: {gpus: 2, device: cpu}")
    assert chosen.fingerprint == written.fingerprint
    assert chosen.layout == written.layout
    assert replace(chosen, choice=None, identity="", files=(), recipe={}) == replace(
        written, identity="", files=(), recipe={}
    )
    assert from_json(to_json(chosen)) == chosen


def test_a_mapping_and_an_override_say_the_same(planned) -> None:
    layout = "layout: {gpus: 2, device: cpu}"
    plans = [
        planned(TWO),
        planned("parallelism: auto\n" + layout),
        planned("parallelism: {pipeline: {stages: 2, microbatches: 2}}\n" + layout, "parallelism=auto"),
    ]
    assert len({to_json(replace(plan, files=(), recipe={}, overrides=(), identity="")) for plan in plans}) == 1


def test_the_memory_of_the_machine_is_shared_by_its_ranks(planned, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = HUGE.format(layers=8, batch=64) + AUTO + "layout: {gpus: 4, device: cpu}"
    monkeypatch.setattr(target, "memory_here", lambda: 100 * 10**9)
    plan = planned(deep)
    assert plan.layout.mode == "fsdp"
    assert verdicts(plan)["ddp"] == "does not fit into 22.5 GB"
    assert choice_of(plan).reason == "fsdp: the simplest that fits; ddp does not fit"
    monkeypatch.setattr(target, "memory_here", lambda: 10**12)
    assert planned(deep).layout.mode == "ddp"


def test_on_known_hardware_the_least_time_of_what_fits(planned) -> None:
    layout = AUTO + "layout: {gpus: 8, hardware: h100-sxm}"
    plan = planned(layout)
    assert plan.layout.mode == "ddp"
    assert plan.estimate is not None
    assert plan.estimate.step_s == choice_of(plan).candidates[0].step_s
    large = planned(HUGE.format(layers=20, batch=65536) + layout, "data.source.rows=100000")
    assert large.layout.mode == "fsdp"
    assert verdicts(large)["ddp"] == "does not fit into 77.3 GB"
    times = [each.step_s for each in choice_of(large).candidates if each.verdict not in ("does not fit into 77.3 GB",)]
    taken = next(each for each in choice_of(large).candidates if each.verdict == TAKEN)
    assert taken.step_s is not None
    assert taken.step_s <= 1.01 * min(each for each in times if each is not None)


def test_a_slow_network_makes_a_pipeline_worth_its_bubble(planned) -> None:
    plan = planned(
        HUGE.format(layers=16, batch=256) + AUTO + "layout: {nodes: 2, gpus_per_node: 4, hardware: a100-pcie-80gb}"
    )
    assert plan.layout.mode == "pipeline"
    assert plan.layout.pipeline is not None
    memory = next(each.memory_bytes for each in choice_of(plan).candidates if each.verdict == TAKEN)
    assert memory == largest_bytes(facts_of(plan), placement_of(plan.layout, plan.batch, tuple(facts_of(plan).nodes)))


def test_what_lint_refuses_is_not_taken(planned) -> None:
    """adafactor takes no shards (P013); 771 divides over 3 pipelines only, and not over 6 ranks (R003)."""
    plan = planned(
        AUTO
        + "layout: {gpus: 2, device: cpu}\ntraining: {optimizer: {type: adafactor, lr: 0.01}, global_batch_size: 99}"
    )
    assert plan.layout.mode == "pipeline"
    found = verdicts(plan)
    assert found["ddp"].startswith("R003: 99 cannot be divided evenly over 2 data-parallel ranks")
    assert found["fsdp"].startswith("P013: `adafactor` needs whole parameters")
    assert choice_of(plan).reason.endswith("; ddp is rejected (R003)")
    assert "rejected: ddp: R003" in describe(plan)


def test_nothing_fits(compiled) -> None:
    deep = HUGE.format(layers=16, batch=64) + AUTO + "layout: {gpus: 2, hardware: l4}"
    plan, diagnostics = compiled(deep)
    assert plan is None
    (found,) = diagnostics
    assert (found.code, found.is_error) == ("P108", True)
    assert found.message.startswith("no mode fits: ")
    ways = str(found.help)
    assert ways.startswith("these would fit: layout.gpus: ")
    number = int(ways.split("layout.gpus: ")[1].split()[0])
    enough, diagnostics = compiled(deep, f"layout.gpus={number}")
    assert enough is not None, diagnostics
    assert compiled(deep, f"layout.gpus={number // 2}")[0] is None


def test_a_way_out_that_costs_no_gpu_is_told_first_and_holds(compiled) -> None:
    deep = HUGE.format(layers=4, batch=200_000) + AUTO + "layout: {gpus: 1, hardware: a100-sxm-40gb}"
    plan, diagnostics = compiled(deep, "data.source.rows=400000")
    assert plan is None
    ways = str(diagnostics[-1].help)
    steps = ways.split("training.gradient_accumulation_steps: ")[1].split()[0]
    change = f"training.gradient_accumulation_steps={steps}"
    assert compiled(deep, "data.source.rows=400000", change)[0] is not None


def test_a_laptop_is_not_what_a_large_model_is_for(compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "memory_here", lambda: 10**9)
    plan, diagnostics = compiled(HUGE.format(layers=8, batch=64) + AUTO + "layout: {gpus: 4}")
    assert plan is not None
    (found,) = diagnostics
    assert (found.code, found.is_error) == ("P108", False)
    assert "layout.hardware" in str(found.help)
    assert choice_of(plan).reason.endswith("nothing fits, and this needs the least memory")


def test_nothing_is_left(compiled) -> None:
    plan, diagnostics = compiled(AUTO + "layout: {gpus: 2, device: cpu}", "training.microbatch_size=7")
    assert plan is None
    (found,) = diagnostics
    assert (found.code, found.related[0].message) == ("P109", "R003, for ddp")
    assert "96 cannot be divided evenly over 2 data-parallel ranks" in found.message


def test_the_gpus_of_this_machine_count_where_no_hardware_is_named(
    planned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card = tmp_path / "0000:01:00.0"
    card.mkdir()
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   3\n")
    monkeypatch.setattr(target, "DRIVER", tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    plan = planned(AUTO + "layout: {gpus: 2}")
    assert plan.layout.hardware is None
    assert plan.estimate is not None
    assert plan.estimate.hardware == "h200-sxm"
    assert choice_of(plan).assumptions[0] == "layout.hardware is not given: h200-sxm of this machine is assumed"
    (card / "information").write_text("Model: a GPU of next year\n")
    plan = planned(AUTO + "layout: {gpus: 2}")
    assert (plan.layout.mode, plan.estimate) == ("ddp", None)
    assert "the speed and memory of a GPU of next year, found here, are unknown" in choice_of(plan).assumptions[0]
    assert (
        planned(AUTO + "layout: {gpus: 4}")
        .choice.assumptions[0]
        .startswith(  # more than there are
            "layout.hardware is not given, and this machine lacks the GPUs"
        )
    )


def test_warnings_of_the_mode_that_is_taken_are_told(compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    from declarative_train.recipe.checks import layout_rules

    monkeypatch.setattr(layout_rules, "num_cores", lambda: 2)
    plan, diagnostics = compiled(TWO, "data.workers=3")
    assert plan is not None
    assert [each.code for each in diagnostics] == ["P014"]


@pytest.mark.long
def test_4096_gpus_and_a_deep_model_take_few_calls(planned) -> None:
    deep = HUGE.format(layers=128, batch=65536) + AUTO + "layout: {nodes: 512, gpus_per_node: 8, hardware: h100-sxm}"
    with count_calls() as calls:
        plan = planned(deep, "data.source.rows=200000", "training.gradient_accumulation_steps=2")
    assert calls[0] < 40_000_000  # 12,700,000 were seen
    assert len(plan.layout.ranks) == 4096
    assert choice_of(plan).num_considered > 100
    assert len(describe(plan).splitlines()) < 170
    assert f"auto  {choice_of(plan).reason}"[:40] in " ".join(summary(plan).split("  ")).replace("   ", "  ")


def test_the_recipe_is_still_shown_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "part.yaml"
    path.write_text("fragment: true\nparallelism: auto\nlayout: {gpus: 2}\n")
    loaded = load(str(path))
    assert not loaded.diagnostics


def test_divisors_between_bounds_take_no_time_for_large_numbers() -> None:
    assert divisors(36, 2, 12) == [2, 3, 4, 6, 9, 12]
    assert divisors(7, 2, 6) == []
    assert divisors(10**18, 3, 10) == [4, 5, 8, 10]


@pytest.mark.parametrize("change", ["training.global_batch_size=1000000000000000", "layout.gpus=1000000000000000"])
def test_absurd_sizes_are_judged_at_once(compiled, change: str) -> None:
    with count_calls() as calls:
        plan, diagnostics = compiled(TWO, change, "data.last_batch=drop")
    assert plan is None
    assert diagnostics
    assert calls[0] < 500_000  # 27,000 were seen


DIVIDED = """
model: {graph: {
  hidden: {out_features: 16384},
  logits: {input: act},
}}
training: {global_batch_size: 1, precision: bf16, optimizer: {type: adam, lr: 0.01}}
"""


def test_layers_are_divided_if_nothing_else_fits_and_with_the_figures_of_a_plan(planned) -> None:
    """One sample cannot be divided over 4 GPUs in any other way."""
    layout = "layout: {gpus: 4, hardware: h100-sxm}"
    plan = planned(DIVIDED + AUTO + layout)
    assert plan.layout.size("tensor") == 4
    (taken,) = (each for each in choice_of(plan).candidates if each.verdict == TAKEN)
    written = planned(DIVIDED + "parallelism: {tensor: 4}\n" + layout)
    assert taken.parallelism == "tensor 4"
    assert plan.estimate is not None
    assert plan.estimate == written.estimate
    assert taken.step_s == plan.estimate.step_s


def test_layers_are_divided_where_that_is_faster_than_a_layout_that_fits(planned) -> None:
    """One sample for each of 4 GPUs: gradients of the whole model are sent, or sums of 4 samples."""
    plan = planned(HUGE.format(layers=4, batch=4) + AUTO + "layout: {gpus: 4, hardware: h100-sxm}")
    found = {each.parallelism: each for each in choice_of(plan).candidates}
    assert plan.layout.size("tensor") == 4
    assert found["tensor 4"].step_s is not None
    assert found["tensor 4"].step_s < (found["ddp"].step_s or 0.0)
    assert found["fsdp"].verdict.endswith("x the time")


@pytest.mark.parametrize("size", [2, 4])
def test_the_time_of_divided_layers_is_at_least_its_bound(size: int, planned) -> None:
    layout = f"parallelism: {{tensor: {size}, data: {{shard: all}}}}\nlayout: {{gpus: 8, hardware: h100-sxm}}"
    plan = planned(DIVIDED.replace("size: 1", "size: 64") + layout)
    whole = facts_of(planned(DIVIDED + "layout: {hardware: h100-sxm}"))
    model = facts_of(plan)
    placement = placement_of(plan.layout, plan.batch, tuple(model.nodes))
    facts, machine = (model.with_kernels_of(whole), model), Machine(HARDWARE["h100-sxm"])
    bound, exact = (time.total_s for each in facts if (time := step_time(each, placement, machine)) is not None)
    assert 0.7 * exact < bound < exact
