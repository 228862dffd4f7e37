"""Small random models of transformers and timm, as nodes of recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LLAMA = SIZES | {"model_type": "llama", "vocab_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA | {"architectures": ["LlamaForCausalLM"]},
    "qwen3": LLAMA
    | {"model_type": "qwen3", "head_dim": 8, "architectures": ["Qwen3ForCausalLM"]}
    | {"tie_word_embeddings": True},
    "bert": SIZES
    | NO_DROPOUT
    | {"model_type": "bert", "vocab_size": 64, "max_position_embeddings": 32}
    | {"architectures": ["BertForSequenceClassification"], "num_labels": 3},
    "vit": SIZES
    | NO_DROPOUT
    | {"model_type": "vit", "image_size": 32, "patch_size": 8, "num_channels": 3}
    | {"architectures": ["ViTForImageClassification"], "num_labels": 3},
    "t5": {"model_type": "t5", "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}
    | {"num_heads": 4, "dropout_rate": 0.0, "architectures": ["T5ForConditionalGeneration"]}
    | {"decoder_start_token_id": 0, "pad_token_id": 0},
}
TIMM: dict[str, dict[str, Any]] = {
    "test_vit": {"name": "test_vit", "options": {"img_size": 32}},
    "test_resnet": {"name": "test_resnet", "over": "4 samples"},
    "test_efficientnet": {"name": "test_efficientnet", "over": "4 samples"},
}
ROWS, TOKENS = 40, 8


def write_data(folder: Path) -> None:
    random = np.random.default_rng(0)
    ids = random.integers(0, 64, (2, ROWS, TOKENS))
    np.savez(
        folder / "made.npz",
        tokens=ids[0],
        next=ids[1],
        keep=np.arange(TOKENS) < random.integers(2, TOKENS + 1, (ROWS, 1)),
        label=random.integers(0, 3, ROWS),
        picture=random.normal(size=(ROWS, 3, 32, 32)).astype(np.float32),
    )


def node_of(name: str) -> tuple[dict[str, Any], str]:
    """A node that starts at random, and the target of its loss."""
    if name in TIMM:
        return {"type": "timm", "classes": 3, "input": "picture", **TIMM[name]}, "label"
    node: dict[str, Any] = {"type": "transformers", "config": CONFIGS[name]}
    if name == "vit":
        return node | {"input": "picture"}, "label"
    if name == "t5":
        return node | {"inputs": {"input_ids": "tokens", "decoder_input_ids": "next"}}, "tokens"
    if name == "bert":
        return node | {"inputs": {"input_ids": "tokens", "attention_mask": "keep"}}, "label"
    return node | {"input": "tokens"}, "next"


def recipe(node: dict[str, Any], target: str, **more: Any) -> dict[str, Any]:
    fields = {
        "tokens": {"column": "tokens", "dtype": "int64"},
        "next": {"column": "next", "dtype": "int64"},
        "keep": {"column": "keep", "dtype": "bool"},
        "label": {"type": "category", "column": "label", "num_classes": 3},
        "picture": {"column": "picture"},
    }
    read = {str(each) for each in (node.get("input"), *node.get("inputs", {}).values()) if each} | {target}
    return {
        "name": "library",
        "data": {"source": {"type": "npy", "path": "made.npz"}, "fields": {k: fields[k] for k in fields if k in read}},
        "model": {"graph": {"net": node}},
        "objective": {"loss": {"type": "cross_entropy", "input": "net", "target": target}},
        "training": {"steps": 3, "global_batch_size": 16, "optimizer": {"type": "sgd", "lr": 0.05}},
        "layout": {"device": "cpu"},
        "logging": {"dir": "runs", "every": "1 step"},
        **more,
    }


def publish(name: str, folder: Path, **save: Any) -> Any:
    """Write the folder of a model of transformers and return the model; every parameter is drawn, so that no zero hides
    one."""
    import transformers

    told = CONFIGS[name] if name in CONFIGS else CONVERTED[name] | {"model_type": name}
    config = transformers.CONFIG_MAPPING[told["model_type"]].from_dict(dict(told))
    torch.manual_seed(0)
    model = getattr(transformers, told["architectures"][0])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder, **save)
    return model


# -- models whose files and parameters have other names, or are joined or cut when the library reads them

_MIXTURE = LLAMA | {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
CONVERTED: dict[str, dict[str, Any]] = {
    "gpt_neox": SIZES | {"vocab_size": 64, "max_position_embeddings": 32, "architectures": ["GPTNeoXForCausalLM"]},
    "mixtral": LLAMA | {"num_local_experts": 4, "architectures": ["MixtralForCausalLM"]},
    "qwen3_moe": _MIXTURE | {"num_experts": 4, "head_dim": 8, "architectures": ["Qwen3MoeForCausalLM"]},
    "deepseek_v3": _MIXTURE
    | _LATENT
    | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4}
    | {"architectures": ["DeepseekV3ForCausalLM"]},
    "vit": CONFIGS["vit"],
    "dinov2": SIZES
    | {"image_size": 32, "patch_size": 8, "num_labels": 3, "architectures": ["Dinov2ForImageClassification"]},
    "llama": CONFIGS["llama"],
    "bert": CONFIGS["bert"],
    "gpt2": {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    | {"architectures": ["GPT2LMHeadModel"]},
}


def begin_at(name: str) -> tuple[dict[str, Any], str]:
    """A node that starts from the folder of this name, and the target of its loss."""
    node: dict[str, Any] = {"type": "transformers", "path": name}
    if name in ("vit", "dinov2"):
        return node | {"input": "picture"}, "label"
    return node | {"input": "tokens"}, "label" if name == "bert" else "next"
