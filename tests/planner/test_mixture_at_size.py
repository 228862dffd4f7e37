"""Plans of models of hundreds of billions of parameters on every axis: what `dtrain plan` costs, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import declarative_train as dt
from tests.planner.at_size import Cost, cost_of_plan, planned_cost

MOST_CPU_S, MOST_GB = 90.0, 2.0  # of processor time: a crowded machine needs several times the 15 s of an idle one
DEEPSEEK_V3 = {  # its published config.json, without its quantization
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32}
    | {"beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
RECIPE = """
name: v3
data:
  source: {type: synthetic, kind: tokens, rows: 4000000}
  window: {length: 4097, stride: 4096}
  fields: {tokens: {column: tokens, rows: ":-1"}, next: {column: tokens, rows: "1:"}}
model: {graph: {lm: {type: deepseek, from: base, input: tokens}}}
objective:
  losses:
    next:    {type: cross_entropy, input: lm, target: next, chunks: 8}
    balance: {type: mean, input: lm.balance, weight: 1e-4}
training:
  steps: 10
  global_batch_size: 512
  precision: bf16
  activation_checkpointing: blocks
  optimizer: {type: adamw, lr: 1e-4}
parallelism: {expert: 64, data: {shard: 8}}
layout: {nodes: 64, gpus_per_node: 8, hardware: h100-sxm}
"""


def write(folder: Path) -> Path:
    (folder / "base").mkdir()
    (folder / "base" / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    path = folder / "v3.yaml"
    path.write_text(RECIPE)
    return path


def check(cost: Cost) -> None:
    assert cost.processor_s < MOST_CPU_S
    assert cost.peak_gb < MOST_GB
    assert cost.memory.endswith("GB"), "it has a memory for each device"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_deepseek_v3_on_64_ranks_of_experts_is_planned_soon(tmp_path: Path) -> None:
    check(cost_of_plan(write(tmp_path)))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_llama_405b_on_three_axes_is_planned_soon(tmp_path: Path) -> None:
    axes = "{tensor: 8, pipeline: {stages: 16, microbatches: 32}, data: {shard: 128}}"
    check(planned_cost(tmp_path, parallelism=axes, layout="{nodes: 2048, gpus_per_node: 8, hardware: h100-sxm}"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_layer_with_experts_has_as_many_parameters_as_published(tmp_path: Path) -> None:
    """671 billion are 58 of these layers, 3 without experts, and two tables."""
    plan = dt.load(write(tmp_path), set={"model.graph.lm.layers": 4}).plan().plan
    sizes = {
        name: [each.num_elements for each in plan.parameters if each.name.startswith(f"lm.{name}.")]
        for name in ("layers", "dense", "embed", "logits", "norm")
    }
    assert [len(found) for found in sizes.values()] == [16, 36, 1, 1, 1]
    layer = sum(sizes.pop("layers"))
    assert 58 * layer + sum(map(sum, sizes.values())) == 671_026_404_352
