"""Converter for Gemma: soft caps, attention windows in most layers, and different rotary positions for layers with and
without a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declarative_train.packs.pretrained.converters import Converter
from declarative_train.packs.pretrained.converters.language import (
    read_activation,
    read_rotary,
    write_activation,
    write_rotary,
)
from declarative_train.recipe.model.tree import PublishedError

_USUAL_PATTERN = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}  # every n-th layer has no window
_IDLE_WINDOW = 4096  # a width for transformers, which makes a mask that no layer uses
_FULL, _SLIDING = "full_attention", "sliding_attention"


def _read(config: Mapping[str, Any]) -> dict[str, object]:
    kind = config["model_type"]
    if config.get("use_bidirectional_attention"):
        raise PublishedError("its `use_bidirectional_attention` is true, which is not supported")
    if kind == "gemma":  # old configs have gelu, but transformers uses the tanh formula for it, too
        updated = {**config, "hidden_act": "gelu_pytorch_tanh"} if config.get("hidden_act") == "gelu" else config
        of_all = {"window": None, "global_every": 1, "attn_cap": None, "logit_cap": None}
        rotary = read_rotary(config)
        own = {"local_rotary_base": rotary["rotary_base"], "attn_scalar": float(config["head_dim"])}
        return {**read_activation(updated), **rotary, **of_all, **own}
    return {
        **read_activation(config, "hidden_activation"),
        **(_read_rotaries(config) if kind == "gemma3_text" else _read_rotary(config)),
        **read_windows(config),
        "attn_scalar": float(config["query_pre_attn_scalar"]),
        "attn_cap": config.get("attn_logit_softcapping"),
        "logit_cap": config.get("final_logit_softcapping"),
    }


def _write(config: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    if config["model_type"] == "gemma":
        return write_rotary(write_activation(config, params), params)
    scalar = float(str(params["attn_scalar"]))
    written = write_rotary(write_activation(config, params, "hidden_activation"), params) | {
        **write_windows(params),
        "query_pre_attn_scalar": int(scalar) if scalar.is_integer() else scalar,
        "attn_logit_softcapping": params["attn_cap"],
        "final_logit_softcapping": params["logit_cap"],
    }
    if config["model_type"] == "gemma3_text":
        local = params["local_rotary_base"]
        written["rope_local_base_freq"] = local
        written["rope_parameters"] = {
            _FULL: written["rope_parameters"],
            _SLIDING: {"rope_type": "default", "rope_theta": local},
        }
    return written


def _read_rotary(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the params of the rotary positions in layers with an attention window. (These are never scaled.)"""
    found = read_rotary(config)
    if found["rotary_scaling"] is not None:
        raise PublishedError("its rotary positions are scaled in layers with a window too, which is not supported")
    return {**found, "local_rotary_base": found["rotary_base"]}


def _read_rotaries(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the params of the rotary positions for each type of layer. New configs have them in `rope_parameters`, old
    ones in `rope_theta`, `rope_scaling` and `rope_local_base_freq`."""
    by_type = config.get("rope_parameters")
    if by_type is None:
        by_type = {
            _FULL: {"rope_theta": config.get("rope_theta", 1e6), **(config.get("rope_scaling") or {})},
            _SLIDING: {"rope_theta": config.get("rope_local_base_freq", 1e4)},
        }
    every, local = ({"rope_theta": base, **(by_type.get(kind) or {})} for kind, base in ((_FULL, 1e6), (_SLIDING, 1e4)))
    found = read_rotary({**config, "rope_parameters": every})
    own = read_rotary({**config, "rope_parameters": local})
    if own["rotary_scaling"] is not None:
        raise PublishedError("the rotary positions of its layers with a window are scaled, which is not supported")
    return {**found, "local_rotary_base": own["rotary_base"]}


def read_windows(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the params of the attention window, for models in which every n-th layer has full attention and all others
    have a window. Raises PublishedError for another order of layers."""
    layers, usual = int(config["num_hidden_layers"]), _USUAL_PATTERN[config["model_type"]]
    usual = config.get("sliding_window_pattern") or usual
    types = config.get("layer_types") or _types(usual, layers)
    first = next((place + 1 for place, each in enumerate(types) if each == _FULL), layers + 1)
    every = next((each for each in (usual, first) if _types(each, layers) == types), None)
    if every is None:
        raise PublishedError("its `layer_types` are not windows with full attention in every n-th layer")
    return {"window": None if every == 1 else config.get("sliding_window"), "global_every": every}


def write_windows(params: Mapping[str, object]) -> dict[str, object]:
    every, layers = int(str(params["global_every"])), int(str(params["layers"]))
    return {"sliding_window": _IDLE_WINDOW if every == 1 else params["window"], "layer_types": _types(every, layers)}


def _types(every: int, layers: int) -> list[str]:
    return [_SLIDING if (place + 1) % every else _FULL for place in range(layers)]


CONVERTERS: dict[str, Converter] = {
    "gemma": Converter(
        (
            *("activation", "rotary_base", "rotary_scaling", "local_rotary_base", "window", "global_every"),
            *("attn_scalar", "attn_cap", "logit_cap"),
        ),
        _read,
        _write,
    ),
}
