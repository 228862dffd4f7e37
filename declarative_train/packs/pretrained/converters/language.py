"""Converters for published language models, between the config and the params of a block: activations, rotary positions
and attention windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declarative_train.packs.pretrained.converters import Converter
from declarative_train.recipe.model.tree import PublishedError

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def read_activation(config: Mapping[str, Any], key: str = "hidden_act") -> dict[str, object]:
    name = config.get(key, "silu")
    if name not in _ACTIVATIONS:
        raise PublishedError(f"its `{key}` is `{name}`; known are {', '.join(_ACTIVATIONS)}")
    return {"activation": _ACTIVATIONS[name]}


def write_activation(
    config: Mapping[str, Any], params: Mapping[str, object], key: str = "hidden_act"
) -> dict[str, Any]:
    name = next((name for name, ours in _ACTIVATIONS.items() if ours == params["activation"]), params["activation"])
    return {**config, key: name}


_OF_GPT2 = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def _read_gpt_activation(config: Mapping[str, Any]) -> dict[str, object]:
    odd = next((key for key, usual in _OF_GPT2.items() if config.get(key, usual) != usual), None)
    if odd is not None:
        raise PublishedError(f"its `{odd}` is {str(config[odd]).lower()}, which is not supported")
    return read_activation(config, "activation_function")


_OF_ENCODER = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}


def _read_encoder(config: Mapping[str, Any], key: str = "hidden_act") -> dict[str, object]:
    odd = next((name for name, usual in _OF_ENCODER.items() if config.get(name, usual) != usual), None)
    if odd is None and config.get("tie_word_embeddings") is False and _is_masked_lm(config):
        odd = "tie_word_embeddings"
    if odd is not None:
        raise PublishedError(f"its `{odd}` is {str(config[odd]).lower()}, which is not supported")
    return {**read_activation(config, key), "padding": config.get("pad_token_id")}


def _is_masked_lm(config: Mapping[str, Any]) -> bool:
    return any(str(name).endswith("ForMaskedLM") for name in config.get("architectures") or ())


def _write_encoder(config: Mapping[str, Any], params: Mapping[str, object], key: str = "hidden_act") -> dict[str, Any]:
    return {**write_activation(config, params, key), "pad_token_id": params["padding"]}


_SCALED = {  # key of the param `scaling` -> key of a config
    "factor": "factor",
    "original_length": "original_max_position_embeddings",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    **{key: key for key in ("attention_factor", "mscale", "mscale_all_dim", "truncate")},
}
_SCALINGS = {
    "linear": ("factor",),
    "llama3": ("factor", "original_length", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("factor", "original_length", "beta_fast", "beta_slow", "attention_factor"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
}


def read_rotary(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the params of the rotary positions. New configs have them in `rope_parameters`, old ones in `rope_theta`
    and `rope_scaling`."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    base = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    if scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise PublishedError("its rotary positions turn only a part of each head, which is not supported")
    if kind == "default":
        return {"rotary_base": float(base), "rotary_scaling": None}
    if kind not in _SCALINGS:
        raise PublishedError(f"its rotary positions are of the type `{kind}`; known are {', '.join(_SCALINGS)}")
    found: dict[str, object] = {"type": kind}
    found |= {key: scaling[_SCALED[key]] for key in _SCALINGS[kind] if scaling.get(_SCALED[key]) is not None}
    if "original_length" in _SCALINGS[kind] and "original_length" not in found:
        found["original_length"] = config.get("max_position_embeddings")
    if "factor" not in found:
        raise PublishedError(f"its rotary positions of type `{kind}` have no `factor`")
    return {"rotary_base": float(base), "rotary_scaling": found}


def write_rotary(config: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    """Return a copy of transformers' `config` with the rotary settings in `params`, under the new key
    (`rope_parameters`) and the old keys (`rope_theta`, `rope_scaling`). If the scaling differs from that in `config`,
    `max_position_embeddings` is changed too."""
    scaling, before = params["rotary_scaling"], read_rotary(config)["rotary_scaling"]
    scaled: dict[str, object] | None = None
    if isinstance(scaling, Mapping):
        scaled = {"rope_type": scaling["type"]} | {_SCALED[key]: scaling[key] for key in scaling if key != "type"}
    base = params["rotary_base"]
    current = {"rope_theta": base, **(scaled or {"rope_type": "default"})}
    config = {**config, "rope_theta": base, "rope_scaling": scaled, "rope_parameters": current}
    return config if scaled is None or scaling == before else {**config, **_length(config, scaled, before)}


def _length(config: Mapping[str, Any], scaling: Mapping[str, Any], before: object) -> dict[str, Any]:
    """Return {"max_position_embeddings": n} for a model that gets the rotary scaling `scaling`: n is its number of
    positions without scaling, times the factor of the scaling. Return {} if the number without scaling is unknown.
    `before`: the scaling that the number in `config` already includes, or None."""
    plain = config.get("max_position_embeddings")
    if isinstance(before, Mapping) and plain is not None:
        plain = before.get("original_length", plain / before["factor"])
    plain = scaling.get("original_max_position_embeddings", plain)
    return {} if plain is None else {"max_position_embeddings": round(plain * scaling["factor"])}


def _read_window(config: Mapping[str, Any]) -> dict[str, object]:
    return {"window": config.get("sliding_window"), "window_from": 0}


def _write_window(config: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    return {**config, "sliding_window": params["window"]}


def _read_late_window(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the params `window` and `window_from` of a model in which only later layers have an attention window:
    `window_from` is the first of them. Without windows, return None and 0. Raises PublishedError if a layer after
    `window_from` has full attention."""
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    layers, types = int(config["num_hidden_layers"]), config.get("layer_types")
    first = int(config.get("max_window_layers", 28))
    if types is not None:
        first = next((place for place, each in enumerate(types) if each != "full_attention"), layers)
        if any(each != "sliding_attention" for each in types[first:]):
            raise PublishedError("its `layer_types` are not full attention first, and windows from one layer on")
    return (
        {"window": None, "window_from": 0}
        if window is None or first >= layers
        else {
            "window": window,
            "window_from": first,
        }
    )


def _write_late_window(config: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    window, first, layers = params["window"], int(str(params["window_from"])), int(str(params["layers"]))
    types = ["sliding_attention" if window is not None and at >= first else "full_attention" for at in range(layers)]
    return {
        **config,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": first if window is not None else layers,
        "layer_types": types,
    }


CONVERTERS: dict[str, Converter] = {
    "activation": Converter(("activation",), read_activation, write_activation),
    "encoder": Converter(("activation", "padding"), _read_encoder, _write_encoder),
    "distilled_encoder": Converter(
        ("activation", "padding"),
        lambda config: _read_encoder(config, "activation"),
        lambda config, params: _write_encoder(config, params, "activation"),
    ),
    "gpt_activation": Converter(
        ("activation",),
        _read_gpt_activation,
        lambda config, params: write_activation(config, params, "activation_function"),
    ),
    "late_window": Converter(("window", "window_from"), _read_late_window, _write_late_window),
    "rotary": Converter(("rotary_base", "rotary_scaling"), read_rotary, write_rotary),
    "window": Converter(("window", "window_from"), _read_window, _write_window),
}
