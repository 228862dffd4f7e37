"""Converter for CLIP, whose config has three parts: `text_config`, `vision_config`, and values shared by both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declarative_train.packs.pretrained.converters import Converter
from declarative_train.packs.pretrained.converters.language import read_activation, write_activation
from declarative_train.packs.pretrained.converters.vision import read_image, write_image
from declarative_train.recipe.model.tree import PublishedError

_COMMON = {"num_hidden_layers": 12, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
_USUAL: dict[str, dict[str, Any]] = {  # transformers' defaults for keys that a part lacks
    "text": _COMMON
    | {"vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
    | {"max_position_embeddings": 77, "eos_token_id": 49407},
    "vision": _COMMON
    | {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    | {"num_channels": 3, "image_size": 224, "patch_size": 32},
}
_SIZES = {  # param of the block after `text_` or `image_` -> key of a part's config
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
}
_GREATEST = 2  # end token in old configs; transformers then reads the state at the greatest token id


def _part(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the config of CLIP's encoder `name` (`text` or `vision`), with default values for missing keys. If a
    config has both `NAME_config_dict` and `NAME_config`, the first is used, because the second may be incomplete."""
    made_of = config.get(f"{name}_config_dict")
    return _USUAL[name] | (made_of if made_of is not None else config.get(f"{name}_config") or {})


def _read(config: Mapping[str, Any]) -> dict[str, object]:
    text, vision = _part(config, "text"), _part(config, "vision")
    odd = next((key for key in ("hidden_act", "layer_norm_eps") if text[key] != vision[key]), None)
    if odd is not None:
        raise PublishedError(
            f"`{odd}` is {text[odd]} for text and {vision[odd]} for images, but `clip` has one value for both"
        )
    end = text["eos_token_id"]
    if not isinstance(end, int):
        raise PublishedError(f"its `eos_token_id` is {end}, but `clip` needs a single number")
    return {
        **{f"text_{param}": text[key] for param, key in _SIZES.items()},
        **{f"image_{param}": vision[key] for param, key in _SIZES.items()},
        **read_image(vision),
        "channels": vision["num_channels"],
        "activation": "quick_gelu" if text["hidden_act"] == "quick_gelu" else read_activation(text)["activation"],
        "eps": text["layer_norm_eps"],
        "vocabulary": text["vocab_size"],
        "max_length": text["max_position_embeddings"],
        "end": None if end == _GREATEST else end,
        "projection": config.get("projection_dim", 512),
        "start_scale": config.get("logit_scale_init_value", 2.6592),
    }


def _write(config: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    quick = params["activation"] == "quick_gelu"
    named = {"hidden_act": "quick_gelu"} if quick else write_activation({}, params)
    common = {**named, "layer_norm_eps": params["eps"], "projection_dim": params["projection"]}
    text = {**_part(config, "text"), **{key: params[f"text_{param}"] for param, key in _SIZES.items()}, **common}
    vision = {**_part(config, "vision"), **{key: params[f"image_{param}"] for param, key in _SIZES.items()}, **common}
    text |= {"vocab_size": params["vocabulary"], "max_position_embeddings": params["max_length"]}
    text["eos_token_id"] = _GREATEST if params["end"] is None else params["end"]
    vision["num_channels"] = params["channels"]
    kept = {key: value for key, value in config.items() if key not in ("text_config_dict", "vision_config_dict")}
    return {
        **kept,
        "text_config": {**text, "model_type": "clip_text_model"},
        "vision_config": {**write_image(vision, params), "model_type": "clip_vision_model"},
        "projection_dim": params["projection"],
        "logit_scale_init_value": params["start_scale"],
    }


CONVERTERS: dict[str, Converter] = {
    "clip": Converter(
        (
            *(f"{tower}_{param}" for tower in ("text", "image") for param in _SIZES),
            *("positions", "patch_size", "channels", "activation", "eps", "vocabulary", "max_length", "end"),
            *("projection", "start_scale"),
        ),
        _read,
        _write,
    ),
}
