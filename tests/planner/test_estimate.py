"""The estimate of a step, compared with the same formulas by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.gpu_models import jobs, recipe
from declarative_train import recipe as recipe_room
from declarative_train.components.hardware import HARDWARE
from declarative_train.plan.codec import from_json, sign, to_json
from declarative_train.plan.plan import Plan
from declarative_train.plan.predictions import EstimatePlan
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.planner.estimate.constants import DEFAULT, Machine
from declarative_train.planner.estimate.replay import StageTime, pipeline_s
from declarative_train.planner.estimate.step_time import LOSS_PASSES
from declarative_train.planner.text.describe import describe, summary

H100 = HARDWARE["h100-sxm"]
MACHINE = Machine(H100)
WIDTH, BATCH = 4096, 768
WIDE = f"""
model: {{graph: {{
  hidden: {{out_features: {WIDTH}}},
  next: {{type: linear, out_features: {WIDTH}, input: act}},
  logits: {{input: next}},
}}}}
training: {{global_batch_size: {BATCH}, precision: bf16, optimizer: {{type: adam, lr: 0.01}}}}
"""
DEEP = f"""
model: {{graph: {{
  hidden: {{out_features: {WIDTH}}},
  layers: {{type: linear, out_features: {WIDTH}, repeat: 8, input: act}},
  logits: {{input: layers}},
}}}}
training: {{global_batch_size: {BATCH}, precision: bf16, optimizer: {{type: sgd, lr: 0.01}}}}
"""


def estimate_of(plan: Plan) -> EstimatePlan:
    assert plan.estimate is not None
    return plan.estimate


def sizes(plan: Plan) -> int:
    return sum(item.num_elements for item in plan.parameters)


def sent(plan: Plan) -> dict[str, tuple[str, int]]:
    return {each.what: (each.link, each.bytes_sent) for each in estimate_of(plan).transfers}


def product_s(flops: float, elements: float) -> float:
    """A product in bf16."""
    rate = H100.peak_flops["bf16"] * H100.reached
    return max(flops / rate + DEFAULT.product_ramp_s, 2 * elements / MACHINE.memory_per_s)


def node_s(*seconds: float) -> float:
    """A pass through a node: its kernels, or the calls of the host."""
    return max(sum(seconds), len(seconds) * DEFAULT.call_s)


def test_one_device_computes_and_updates(planned) -> None:
    plan = planned(WIDE + "layout: {gpus: 1, hardware: h100-sxm}")
    found = estimate_of(plan)
    W, B = WIDTH, BATCH
    layers = [(20, W, 1), (W, W, 2), (W, 10, 2)]  # in, out, gradients: nothing goes back into the data
    seconds = 0.0
    for fan_in, fan_out, gradients in layers:
        flops, held = 2 * fan_in * fan_out * B, fan_in * fan_out
        product = product_s(flops, held + (fan_in + fan_out) * B)
        bias_s = 2 * fan_out * (B + 1) / MACHINE.memory_per_s
        seconds += node_s(product_s(flops, held + (fan_in + fan_out) * B + fan_out))
        seconds += node_s(*[product] * gradients, bias_s)
    one_s = 2 * W * B / MACHINE.memory_per_s
    seconds += node_s(2 * one_s) + node_s(3 * one_s)  # the relu
    seconds += max(LOSS_PASSES * 4 * 10 * B / MACHINE.memory_per_s, 10 * DEFAULT.call_s)
    assert found.compute_s == pytest.approx(seconds, rel=1e-3)
    update_s = (3 + 2 * 2) * sizes(plan) * 4 / MACHINE.memory_per_s + DEFAULT.step_s
    assert found.update_s == pytest.approx(update_s)
    assert (found.exposed_s, found.bubble_s, found.transfers) == (0.0, 0.0, ())
    assert found.step_s == pytest.approx(seconds + update_s, rel=1e-3)
    assert found.low_s is not None
    assert found.high_s is not None
    assert found.low_s * found.high_s == pytest.approx(found.step_s**2)
    flops = BATCH * (2 * 20 * W * 2 + 2 * W * W * 3 + 2 * W * 10 * 3)
    assert plan.flops.model * BATCH == flops
    assert found.mfu == found.hfu == pytest.approx(flops / H100.peak_flops["bf16"] / found.step_s)


def test_compiled_layers_move_less_and_start_fewer_kernels(planned) -> None:
    layout = "layout: {gpus: 1, hardware: h100-sxm}"
    eager, compiled = (estimate_of(planned(WIDE + layout, f"training.compile={word}")) for word in ("false", "true"))
    assert compiled.compute_s is not None
    assert eager.compute_s is not None
    assert compiled.compute_s < eager.compute_s


def test_a_replayed_pipeline_is_as_slow_as_its_slowest_stage() -> None:
    stages = [StageTime(1, 2, 1), StageTime(2, 4, 2), StageTime(1, 2, 1)]
    found_s = pipeline_s("1f1b", 3, stages, 12)
    assert found_s == 1 + 12 * 6 + 1 + 2  # before the slow stage; it waits once for the first backward; after it
    later = [replace(each, onward_s=0.5, back_s=0.5) for each in stages]
    assert pipeline_s("1f1b", 3, later, 12) > found_s
    long_s, more_s = (pipeline_s("1f1b", 3, stages, number) for number in (100, 101))
    assert more_s - long_s == pytest.approx(6)  # extrapolated


def test_ddp_averages_gradients_in_fp32_on_the_link_of_the_node(planned) -> None:
    plan = planned(WIDE + "parallelism: ddp\nlayout: {gpus: 8, hardware: h100-sxm}")
    bytes_sent = round(2 * 7 / 8 * sizes(plan) * 4)
    assert sent(plan) == {"gradients, all-reduce": ("node", bytes_sent)}
    (transfer,) = estimate_of(plan).transfers
    units = transfer.num_calls
    link = bytes_sent / MACHINE.link_per_s("node") + units * MACHINE.latency_s(8)
    assert transfer.seconds == pytest.approx(link)


def test_dp_sends_the_model_out_and_the_gradients_back_in_every_step(planned) -> None:
    plan = planned(WIDE + "parallelism: dp\nlayout: {gpus: 4, hardware: h100-sxm}")
    found = estimate_of(plan)
    assert sent(plan) == {"parameters and gradients, by the first device": ("node", 3 * 2 * 4 * sizes(plan))}
    assert found.exposed_s == pytest.approx(found.transfers[0].seconds)  # nothing hides it
    assert found.mfu is not None
    assert found.mfu < estimate_of(planned(WIDE + "parallelism: ddp\nlayout: {gpus: 4, hardware: h100-sxm}")).mfu


def test_between_nodes_it_goes_over_all_adapters_of_a_node(planned) -> None:
    plan = planned(
        WIDE + "parallelism: ddp\nlayout: {nodes: 2, gpus_per_node: 4, hardware: a100-pcie-80gb}",
    )
    (transfer,) = estimate_of(plan).transfers
    assert transfer.link == "network"
    machine = Machine(HARDWARE["a100-pcie-80gb"])
    by_hand = transfer.bytes_sent / (4 * machine.link_per_s("network")) + transfer.num_calls * machine.latency_s(4, 2)
    assert transfer.seconds == pytest.approx(by_hand)
    found = estimate_of(plan)
    assert found.exposed_s is not None
    assert 0 < found.exposed_s < by_hand  # a part hides behind the backward


def test_fsdp_gathers_for_every_pass_and_reduces_once(planned) -> None:
    plan = planned(
        WIDE + "parallelism: fsdp\nlayout: {gpus: 4, hardware: h100-sxm}", "training.gradient_accumulation_steps=2"
    )
    P = sizes(plan)
    assert sent(plan) == {
        "parameters, all-gather": ("node", pytest.approx(2 * 2 * 3 / 4 * P * 2, rel=1e-6)),  # padded by a few numbers
        "gradients, reduce-scatter": ("node", pytest.approx(3 / 4 * P * 4, rel=1e-6)),
    }
    assert plan.layout.sharding is not None
    assert plan.layout.sharding.keeps_gradients  # 0.07 GB of them


def test_hybrid_shards_average_between_nodes(planned) -> None:
    layout = "layout: {nodes: 3, gpus_per_node: 4, hardware: h100-sxm}"
    plan = planned(WIDE + "parallelism: {data: {shard: all, replicate: 3}}\n" + layout)
    P = sizes(plan)
    found = sent(plan)
    assert found["gradients, reduce-scatter"] == ("node", pytest.approx(3 / 4 * P * 4, rel=1e-6))
    assert found["gradients, all-reduce"] == (
        "network",
        pytest.approx(2 * 2 / 3 * P, rel=1e-3),
    )  # 4 bytes over 4 shards


def test_a_pipeline_sends_activations_and_stands_idle(planned) -> None:
    plan = planned(
        DEEP + "parallelism: {pipeline: {stages: 4, microbatches: 8}}\nlayout: {gpus: 4, hardware: h100-sxm}"
    )
    rows = BATCH // 8
    found = estimate_of(plan)
    link, bytes_sent = sent(plan)["stage to stage"]
    assert (link, bytes_sent) == ("node", 2 * WIDTH * rows * 2 * 8)  # of a rank in the middle: one wire each way
    assert found.compute_s is not None
    assert found.bubble_s is not None
    assert 0 < found.bubble_s < found.compute_s / 8 * 3  # that of equal stages: here one computes more than the others


def test_frozen_parameters_and_recomputation_change_the_operations(planned) -> None:
    whole = planned(DEEP)
    frozen = planned(
        DEEP.replace("model: {", "model: {parameters: {layers: {frozen: true, init: {type: normal, std: 0.02}}}, ")
    )
    again = planned(DEEP.replace("training: {", "training: {activation_checkpointing: blocks, "))
    layers = 8 * 2 * WIDTH * WIDTH
    assert frozen.flops.forward == whole.flops.forward
    assert whole.flops.backward - frozen.flops.backward == layers
    assert (again.flops.model, again.flops.recomputed) == (whole.flops.model, layers)
    assert again.flops.hardware == whole.flops.model + layers


@pytest.mark.parametrize(
    ("layout", "precision", "why"),
    [("hardware: cpu", "fp32", "its speed"), ("hardware: v100-sxm-32gb", "bf16", "bf16")],
)
def test_without_a_figure_there_are_no_times(planned, layout: str, precision: str, why: str) -> None:
    plan = planned(f"parallelism: ddp\nlayout: {{gpus: 2, {layout}}}\ntraining: {{precision: {precision}}}")
    found = estimate_of(plan)
    assert (found.step_s, found.mfu) == (None, None)
    assert found.transfers
    assert found.memory_bytes
    text = describe(plan)
    assert f"the {why} of {found.hardware} is unknown, so times are not estimated" in text
    assert " utilisation " not in text


def test_without_hardware_nothing_is_estimated(planned) -> None:
    plan = planned("parallelism: ddp\nlayout: {gpus: 2}")
    assert plan.estimate is None
    assert "estimated\n  operations" not in describe(plan)
    assert plan.flops.model == 2 * 20 * 32 * 2 + 2 * 32 * 10 * 3


def test_hardware_is_no_part_of_what_a_checkpoint_must_match(planned) -> None:
    plan = planned("parallelism: ddp\nlayout: {gpus: 2}")
    other = planned("parallelism: ddp\nlayout: {gpus: 2, hardware: l4}")
    assert plan.fingerprint == other.fingerprint
    assert plan.identity != other.identity
    assert other.layout.hardware == "l4"
    assert from_json(to_json(other)) == other
    assert sign(other) == other


def test_the_text_adds_up(planned) -> None:
    plan = planned(
        DEEP + "parallelism: {pipeline: {stages: 4, microbatches: 8}}\nlayout: {gpus: 4, hardware: h100-sxm}"
    )
    found, text = estimate_of(plan), describe(plan)
    parts = (found.compute_s, found.exposed_s, found.bubble_s, found.update_s)
    assert found.step_s == pytest.approx(sum(each for each in parts if each is not None))
    section = text.partition("step on h100-sxm, estimated\n")[2].partition("\n\n")[0]
    for word in ("operations", "memory", "stage to stage", "pipeline idle", "MFU", "assumed: h100-sxm, bf16"):
        assert word in section
    assert "estimate  " in summary(plan)
    assert "step on" not in describe(replace(plan, estimate=None))


def test_a_mode_that_does_not_fit_is_told(compiled) -> None:
    large = "model: {graph: {hidden: {out_features: 200000000}}}\nparallelism: ddp\nlayout: {gpus: 2, hardware: l4}"
    plan, diagnostics = compiled(large)
    assert plan is not None  # it is an estimate
    (found,) = diagnostics
    assert (found.code, found.is_error) == ("P108", False)
    assert "ddp needs about" in found.message
    assert "parallelism: auto" in str(found.help)


@pytest.mark.long
@pytest.mark.parametrize(
    ("hardware", "compile", "measured_ms"),
    [("h200-sxm", False, 56.9), ("h200-sxm", True, 41.6), ("a100-sxm-80gb", False, 103.6)],
)
def test_steps_of_resnet_50_as_measured(tmp_path: Path, hardware: str, compile: bool, measured_ms: float) -> None:
    """On an H200 by `make bench-gpu`; on an A100 2,470 images/s by NVIDIA (DeepLearningExamples, 2021)."""
    job = next(each for each in jobs(tiny=False) if each.name == "resnet_50")
    data, path = tmp_path / "data.npz", tmp_path / "recipe.yaml"
    np.savez_compressed(data, x=np.zeros((job.rows, 3, 224, 224), np.float32), y=np.arange(job.rows))
    layout = {"device": "cuda", "hardware": hardware}
    path.write_text(yaml.safe_dump(recipe(job, data, compiled=compile, layout=layout)))
    loaded = recipe_room.load(str(path)).recipe
    assert loaded is not None
    plan, _ = compile_plan(loaded)
    assert plan is not None
    assert plan.estimate is not None
    assert plan.estimate.step_s is not None
    assert 0.8 < plan.estimate.step_s * 1e3 / measured_ms < 1.2


def test_a_divided_table_has_as_many_rows_as_its_field_has_classes(tmp_path: Path) -> None:
    text = """
name: table
data:
  source: {type: synthetic, kind: classification, rows: 64, features: 4}
  fields: {y: {type: category, column: y, num_classes: 10}}
model: {graph: {table: {type: embedding, embedding_dim: 4, input: y}, logits: {type: linear, out_features: 10}}}
objective: {loss: {type: cross_entropy, input: logits, target: y}}
training: {epochs: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
parallelism: {tensor: 2}
layout: {gpus: 2, device: cpu}
"""
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = recipe_room.load(str(tmp_path / "recipe.yaml")).recipe
    assert recipe is not None
    plan, diagnostics = compile_plan(recipe)
    assert plan is not None, diagnostics
    assert plan.layout.cuts is not None
    assert plan.layout.cuts.nodes["table"].kind == "vocabulary"
