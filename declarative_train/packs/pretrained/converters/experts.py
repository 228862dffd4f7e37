"""Converters for mixtures of experts: the number of experts, attention windows, and errors for variants that dtrain's
block cannot compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declarative_train.packs.pretrained.converters import Converter
from declarative_train.packs.pretrained.converters.gemma import read_windows, write_windows
from declarative_train.recipe.model.tree import PublishedError


def _require(config: Mapping[str, Any], usual: Mapping[str, tuple[object, ...]]) -> None:
    """Raise PublishedError if the config has a value that is not supported. `usual`: {key: supported values}."""
    odd = next((key for key, values in usual.items() if key in config and config[key] not in values), None)
    if odd is not None:
        raise PublishedError(f"its `{odd}` is {config[odd]}, which is not supported")


def _read_mixtral(config: Mapping[str, Any]) -> dict[str, object]:
    _require(config, {"router_jitter_noise": (0, None)})
    return {"window": config.get("sliding_window")}


def _write_mixtral(config: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    return {**config, "sliding_window": params["window"]}


def _read_qwen3(config: Mapping[str, Any]) -> dict[str, object]:
    _require(config, {"mlp_only_layers": ([], None), "decoder_sparse_step": (1, None)})
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    return {"experts": config.get("num_experts", config.get("num_local_experts", 128)), "window": window}


def _write_qwen3(config: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    window, kept = params["window"], {key: value for key, value in config.items() if key != "num_local_experts"}
    return {
        **kept,
        "num_experts": params["experts"],
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }


_OF_DEEPSEEK = {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)}


def _read_deepseek(config: Mapping[str, Any]) -> dict[str, object]:
    _require(config, {**_OF_DEEPSEEK, "num_key_value_heads": (config["num_attention_heads"], None)})
    groups = config["n_group"] or 1
    return (
        dict.fromkeys(("groups", "top_groups"))
        if groups == 1
        else {
            "groups": groups,
            "top_groups": config["topk_group"],
        }
    )


def _write_deepseek(config: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    return {
        **config,
        "num_key_value_heads": params["heads"],
        "n_group": params["groups"] or 1,
        "topk_group": params["top_groups"] or 1,
    }


def _read_gpt_oss(config: Mapping[str, Any]) -> dict[str, object]:
    _require(config, {"swiglu_alpha": (1.702,), "hidden_act": ("silu",)})
    return read_windows(config)


def _write_gpt_oss(config: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    return {**config, **write_windows(params)}


CONVERTERS: dict[str, Converter] = {
    "deepseek": Converter(("groups", "top_groups"), _read_deepseek, _write_deepseek),
    "gpt_oss": Converter(("window", "global_every"), _read_gpt_oss, _write_gpt_oss),
    "mixtral": Converter(("window",), _read_mixtral, _write_mixtral),
    "qwen3_moe": Converter(("experts", "window"), _read_qwen3, _write_qwen3),
}
