"""Small models that transformers makes, in folders as they are published, and recipes that take them in."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch

from declarative_train.plan.tensor_maps import parts_in

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
MOE: dict[str, Any] = SIZES | {"num_experts_per_tok": 2}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 8} | {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 24}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GEMMA: dict[str, Any] = SIZES | {"head_dim": 12}
GEMMA2: dict[str, Any] = GEMMA | {"query_pre_attn_scalar": 20, "sliding_window": 5, "attn_logit_softcapping": 0.5}
GEMMA2 |= {"final_logit_softcapping": 1.5, "attn_implementation": "eager"}  # no other of transformers caps
GEMMA3_ROTARY: dict[str, Any] = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA3: dict[str, Any] = GEMMA | {"query_pre_attn_scalar": 20, "sliding_window": 4, "attention_bias": True}
GEMMA3 |= {"rope_parameters": GEMMA3_ROTARY, "layer_types": ["sliding_attention", "full_attention"] * 2}
DEEPSEEK: dict[str, Any] = MOE | {"num_key_value_heads": 4, "moe_intermediate_size": 12, "n_routed_experts": 8}
DEEPSEEK |= {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "q_lora_rank": 10, "kv_lora_rank": 14}
DEEPSEEK |= {"qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_shared_experts": 2}
GPT_OSS: dict[str, Any] = MOE | {"num_local_experts": 6, "head_dim": 12, "sliding_window": 5}
GPT_OSS |= {"rope_parameters": YARN | {"truncate": False}, "attn_implementation": "eager"}
MSCALE = YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> (model_type, what its config says)
    "deepseek": ("deepseek_v3", DEEPSEEK | {"rope_parameters": MSCALE}),
    "deepseek_plain": (
        "deepseek_v3",
        DEEPSEEK
        | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "norm_topk_prob": False}
        | {"attention_bias": True, "rope_interleave": False, "rope_parameters": YARN | {"truncate": False}},
    ),
    "gemma": ("gemma", GEMMA),
    "gemma2": ("gemma2", GEMMA2),
    "gemma3": ("gemma3_text", GEMMA3 | {"num_hidden_layers": 4}),
    "gpt2": ("gpt2", GPT2),
    "gpt2_untied": ("gpt2", GPT2 | {"n_inner": 40, "activation_function": "gelu", "tie_word_embeddings": False}),
    "gpt_oss": ("gpt_oss", GPT_OSS),
    "gpt_oss_plain": (
        "gpt_oss",
        GPT_OSS
        | {"attention_bias": False, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
        | {"swiglu_limit": 0.1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "gpt_oss_wide": ("gpt_oss", GPT_OSS | {"num_hidden_layers": 1, "intermediate_size": 64}),
    "llama": ("llama", SIZES | {"head_dim": 12}),
    "llama3": ("llama", SIZES | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama_biases": ("llama", SIZES | {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"}),
    "mixtral": ("mixtral", MOE | {"num_local_experts": 6, "sliding_window": 5, "rope_parameters": LLAMA3}),
    "mistral": ("mistral", SIZES | {"sliding_window": 5}),
    "qwen2": ("qwen2", SIZES | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen2_yarn": ("qwen2", SIZES | {"rope_parameters": YARN}),
    "qwen3": ("qwen3", SIZES | {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen3_moe": ("qwen3_moe", MOE | {"num_experts": 6, "moe_intermediate_size": 12, "head_dim": 8}),
    "qwen3_moe_normalised": (
        "qwen3_moe",
        MOE | {"num_experts": 4, "moe_intermediate_size": 12, "norm_topk_prob": True, "attention_bias": True},
    ),
}
BLOCKS = {"deepseek_v3": "deepseek", "gpt_oss": "gpt_oss", "gemma": "gemma", "gemma2": "gemma", "gemma3_text": "gemma"}
BLOCKS |= {"gpt2": "gpt", "llama": "llama", "mistral": "llama", "qwen2": "llama", "qwen3": "llama"}
BLOCKS |= {"mixtral": "mixtral", "qwen3_moe": "mixtral"}
TOKENS = 12


def make(name: str, folder: Path, **save: Any) -> Any:
    """The model, in evaluation mode, with its folder written. Every parameter is drawn, so that no zero hides one."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, told = CONFIGS[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **told)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.05)
    model.save_pretrained(folder, **save)
    return model


def recipe(folder: Path, block: str, more: str = "", node: str = "") -> str:
    """Trains on made tokens, `TOKENS` of them in a row."""
    return f"""
name: tuned
data:
  source: {{type: text, path: {folder / "story.txt"}}}
  window: {{length: {TOKENS + 1}}}
  fields: {{tokens: {{column: tokens, rows: ":-1"}}, next: {{column: tokens, rows: "1:"}}}}
model:
  graph:
    ids: tokens - tokens // 96 * 96
    lm: {{type: {block}, from: {folder / "published"}, input: ids{node}}}
    goal: next - next // 96 * 96
  weights: {{path: {folder / "published"}, format: huggingface}}
objective: {{loss: {{type: cross_entropy, input: lm, target: goal}}}}
training: {{steps: 2, global_batch_size: 4, optimizer: {{type: sgd, lr: 1e-2}}}}
layout: {{device: cpu}}
logging: {{dir: {folder / "runs"}}}
{more}
"""


def write(folder: Path, name: str, more: str = "", node: str = "", **save: Any) -> Any:
    """(the model, the path of a recipe that tunes it)."""
    model = make(name, folder / "published", **save)
    (folder / "story.txt").write_text("a token after another, over and over again. " * 20)
    path = folder / "tuned.yaml"
    path.write_text(recipe(folder, BLOCKS[CONFIGS[name][0]], more, node))
    return model, path


def theirs_as_ours(model: Any, plan: Any, *, grad: bool) -> dict[str, torch.Tensor]:
    """Values or gradients of a model of transformers by the names of ours, put together by the map."""
    weights, held = plan.weights[0], published_tensors(model, grad=grad)
    found = {}
    for parameter in plan.parameters:
        parts = parts_in(weights.tensors, parameter.name.removeprefix("lm."))
        tensors = [
            held[part.name][part.index][..., part.first :: part.step] if part.count else held[part.name]
            for part in parts
        ]
        if parameter.tie is None:
            found[parameter.name] = torch.cat(
                [t.T if part.transpose else t for t, part in zip(tensors, parts, strict=True)]
            )
    return found


def published_tensors(model: Any, *, grad: bool) -> dict[str, torch.Tensor]:
    """Return values or gradients by the names of files: transformers holds the experts of a layer in one tensor, and
    writes each by itself."""
    from safetensors.torch import load_file

    names = dict(model.named_parameters(remove_duplicate=False))
    if not any("experts" in name for name in names):
        return {name: item.grad if grad else item.detach() for name, item in names.items()}
    written = copy.deepcopy(model)
    if grad:
        for parameter, its in zip(written.parameters(), model.parameters(), strict=True):
            parameter.data = its.grad.clone()
    with tempfile.TemporaryDirectory() as folder:
        written.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")
