"""`training.channels_last`: what `auto` makes of it on each device, what the plan shows, and where it means nothing."""

from __future__ import annotations

import pytest

from declarative_train.plan.channels_last import ImageLayout, ReorderedElements
from declarative_train.plan.plan import Plan
from declarative_train.planner.text.describe import describe

IMAGES = """
data: {{source: {{features: 64}}, fields: {{x: {{shape: [1, 8, 8]}}}}}}
model: {{graph: {{
  conv: {{type: conv2d, out_channels: 8, kernel_size: 3, padding: 1, input: x}},
  norm: {norm},
  conv2: {{type: conv2d, out_channels: 8, kernel_size: 3, padding: 1}},
  flat: {{type: flatten}},
  hidden: {{input: flat}},
}}}}
training: {{precision: {precision}, channels_last: {word}}}
parallelism: {mode}
layout: {layout}
"""
NORMS = {"batch": "{type: batch_norm, over: 12 samples}", "group": "{type: group_norm, num_groups: 4}"}
GPU = "{gpus: 1, hardware: h100-sxm}"


def said(plan: Plan) -> str:
    (line,) = [line for line in describe(plan).splitlines() if line.strip().startswith("channels last")]
    return line.partition("channels last")[2].strip()


def recipe(**more: str) -> str:
    values = {"norm": NORMS["batch"], "precision": "fp32", "word": "auto", "mode": "single", "layout": GPU} | more
    return IMAGES.format(**values)


@pytest.mark.parametrize(
    ("device", "precision", "turned", "last"),
    [
        ("cpu", "fp32", ReorderedElements(10, 0), True),
        ("cpu", "bf16", ReorderedElements(10, 4, is_slower=True), False),
        ("cuda", "fp32", ReorderedElements(10, 0), False),
        ("cuda", "bf16", ReorderedElements(10, 9, is_slower=True), True),
        ("cuda", "fp16", ReorderedElements(10, 10, is_slower=True), False),
        ("mps", "fp32", ReorderedElements(10, 0), False),
        ("cpu", "fp32", ReorderedElements(0, 10), False),
    ],
)
def test_auto_counts_what_is_turned_around(device: str, precision: str, turned: ReorderedElements, last: bool) -> None:
    images = ImageLayout("auto", turned, precision, has_plugins=False)
    assert images.decide(device, is_plain=True)[0] is last
    assert images.decide(device, is_plain=False)[0] is False
    assert ImageLayout("auto", turned, precision, has_plugins=True).decide(device, is_plain=True)[0] is False


def test_what_convolutions_and_norms_move_is_counted_in_blocks(planned) -> None:
    from declarative_train.plan.channels_last import count_reordered

    plan = planned(recipe(norm=NORMS["group"]))
    found = count_reordered(plan.graph)
    assert found == ReorderedElements(64 * (1 + 8 + 8 + 8), 64 * (8 + 8), is_slower=True)


def test_the_plan_weighs_it_on_a_gpu(planned) -> None:
    steps = {}
    for word in ("auto", "true", "false"):
        plan = planned(recipe(precision="bf16", word=word))
        assert plan.estimate is not None
        steps[word] = plan.estimate.compute_s
    assert steps["auto"] == steps["true"] < steps["false"]
    sharded = planned(recipe(precision="bf16", mode="fsdp", layout="{gpus: 2, hardware: h100-sxm}"))
    assert said(sharded) == "no, shards and stages use the default memory format"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"layout": "{device: cpu}"}, "yes, operations after the convolutions are faster with it"),
        ({"layout": "{device: cpu}", "norm": NORMS["group"]}, "no, norms over groups of channels are slower with it"),
        ({}, "no, it is not faster in fp32"),
        ({"precision": "bf16"}, "yes, convolutions in bf16 compute with it, without reordering"),
        ({"word": "true"}, "yes, set in the recipe"),
        (
            {"layout": "{gpus: 1}"},
            "on the CPU: yes, operations after the convolutions are faster with it; "
            "on GPUs: no, it is not faster in fp32",
        ),
    ],
)
def test_the_plan_says_what_and_why(changes: dict[str, str], wanted: str, planned) -> None:
    assert said(planned(recipe(**changes))) == wanted


@pytest.mark.parametrize("word", ["true", "false"])
def test_without_images_it_means_nothing(word: str, compiled) -> None:
    plan, diagnostics = compiled("", f"training.channels_last={word}")
    assert plan is None
    (found,) = [each for each in diagnostics if each.is_error]
    assert found.code == "G023"


@pytest.mark.parametrize("mode", ["fsdp", "{pipeline: {stages: 2, microbatches: 2}}", "{data: {shard: 2}}"])
def test_of_shards_and_stages_it_is_refused(mode: str, compiled) -> None:
    with pytest.raises(AssertionError, match="P022"):
        compiled(recipe(word="true", mode=mode, layout="{gpus: 2, device: cpu}"))


def test_auto_does_not_take_a_mode_that_it_is_refused_in(planned) -> None:
    plan = planned(recipe(word="true", mode="auto", layout="{gpus: 2, device: cpu}"))
    assert plan.choice is not None
    verdicts = {each.parallelism: each.verdict for each in plan.choice.candidates}
    assert verdicts["fsdp"].startswith("P022")
    assert plan.layout.mode == "ddp"
