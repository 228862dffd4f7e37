"""Converters between the configs of image models and dtrain's blocks: classes, sizes of images, keys of timm."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from declarative_train.packs.pretrained.converters import Converter
from declarative_train.recipe.model.tree import PublishedError


def _read_labels(config: Mapping[str, Any]) -> dict[str, object]:
    """Return `{"out_features": number of classes}`. The number is None if the model has no output layer, even if its
    config lists classes."""
    if not any(str(each).endswith("ForImageClassification") for each in config.get("architectures") or ("Any",)):
        return {"out_features": None}
    return {"out_features": len(config["id2label"]) if config.get("id2label") else config.get("num_labels", 2)}


def _write_labels(config: Mapping[str, Any], params: Mapping[str, object]) -> dict[str, Any]:
    """Return `config` with names for `params["out_features"]` classes. Names in `config` are kept if there are as many;
    otherwise the names are `LABEL_0`, `LABEL_1` and so on."""
    count = params["out_features"]
    if not isinstance(count, int) or len(config.get("id2label") or ()) == count:
        return dict(config)
    names = {str(each): f"LABEL_{each}" for each in range(count)}
    return {**config, "id2label": names, "label2id": {name: int(number) for number, name in names.items()}}


def _read_resnet(config: Mapping[str, Any]) -> dict[str, object]:
    usual = {"hidden_act": "relu", "downsample_in_first_stage": False, "downsample_in_bottleneck": False}
    _require(config, usual)
    width, sizes = config.get("embedding_size", 64), list(config.get("hidden_sizes", (256, 512, 1024, 2048)))
    wanted = _resnet_sizes(width, config["layer_type"], len(config["depths"]))
    if sizes != wanted:
        raise PublishedError(f"its `hidden_sizes` are {sizes}; `resnet` of `embedding_size` {width} has {wanted}")
    return {"width": width}


def _write_resnet(config: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the published `config` with the stage sizes of the block's `params`. If the number of stages has
    changed, keys that list stages, such as `stage_names`, are left out."""
    sizes = _resnet_sizes(params["width"], params["unit"], len(params["units"]))
    same = len(config.get("hidden_sizes", ())) == len(sizes)
    kept = {key: value for key, value in config.items() if same or key not in _OF_STAGES}
    return {**kept, "embedding_size": params["width"], "hidden_sizes": sizes}


_OF_STAGES = ("stage_names", "out_features", "out_indices")


def _resnet_sizes(width: int, unit: str, stages: int) -> list[int]:
    return [width * (4 if unit == "bottleneck" else 1) * 2**stage for stage in range(stages)]


def _require(config: Mapping[str, Any], usual: Mapping[str, object]) -> None:
    odd = next((key for key, value in usual.items() if config.get(key, value) != value), None)
    if odd is not None:
        found = config[odd]
        value = str(found).lower() if isinstance(found, bool) else found
        raise PublishedError(f"its `{odd}` is {value}, which is not supported")


def _positions(config: Mapping[str, Any], key: str) -> int:
    """Return the number of positions in an image: its patches and the class token. `key`: key of the config with the
    size of the image. Raises PublishedError."""
    height, width = _pair(config[key])
    rows, columns = _pair(config["patch_size"])
    if rows != columns:
        raise PublishedError(f"its patches are {rows} x {columns}, and those of `vit` are square")
    return height // rows * (width // columns) + 1


def _pair(size: Any) -> tuple[int, int]:
    first, second = size if isinstance(size, list | tuple) else (size, size)
    return int(first), int(second)


def read_image(config: Mapping[str, Any], key: str = "image_size") -> dict[str, object]:
    return {"positions": _positions(config, key), "patch_size": _pair(config["patch_size"])[0]}


def write_image(
    config: Mapping[str, Any], params: Mapping[str, Any], key: str = "image_size", usual: int = 224
) -> dict[str, Any]:
    """Return the config with an image size that gives the number of patches in `params`. The size in `config` (default
    `usual`) is kept if it gives this number; otherwise the image is a square. `key`: the config's key for the size.
    Raises PublishedError if no square gives this number."""
    config = {**config, "patch_size": params["patch_size"]}
    if params.get("positions") is None or _positions({key: usual, **config}, key) == params["positions"]:
        return config
    side = isqrt(params["positions"] - 1)
    if side * side != params["positions"] - 1:
        raise PublishedError(
            "its images are not square, which the config cannot express", "--to safetensors has its tensors"
        )
    return {**config, key: side * params["patch_size"]}


def _read_mlp_ratio(config: Mapping[str, Any]) -> dict[str, object]:
    return {"hidden": int(config["embed_dim"] * config.get("mlp_ratio", 4.0))}


def _write_mlp_ratio(config: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    ratio = params["hidden"] / params["width"]
    return dict(config) if ratio == config.get("mlp_ratio", 4.0) else {**config, "mlp_ratio": ratio}


_OF_TRAINING = {"drop_rate", "drop_path_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"}
_OF_TIMM = {"num_classes", "in_chans", "global_pool", "img_size", "scriptable", "pretrained_strict"} | _OF_TRAINING
_ARGUMENTS = {
    *("layers", "cardinality", "base_width", "in_chans"),
    *("embed_dim", "depth", "num_heads", "patch_size", "mlp_ratio", "qkv_bias", "img_size"),
}


def _read_timm(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the parameters of a shipped block that correspond to a config of timm
    (https://huggingface.co/docs/timm/hf_hub). Raises PublishedError if the config has arguments that change the
    computation."""
    odd = next((key for key in config.get("model_args") or {} if key not in _OF_TIMM | _ARGUMENTS), None)
    if odd is not None:
        raise PublishedError(f"its `model_args` have `{odd}`, which is not supported")
    usual = "token" if "embed_dim" in config else "avg"
    if config["num_classes"] and config.get("global_pool", usual) != usual:
        raise PublishedError(f"its `global_pool` is {config['global_pool']}, which is not supported")
    return {"out_features": config["num_classes"] or None}


def _write_timm(config: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config`, a config of timm, with the number of classes in `params`. Keys that are arguments of timm's
    models are moved to `model_args`."""
    count = params["out_features"] or 0
    old = dict(config.get("model_args") or {}) | ({"num_classes": count} if config.get("model_args") else {})
    args = {key: value for key, value in config.items() if key in _ARGUMENTS}
    kept = {key: value for key, value in config.items() if key not in _ARGUMENTS | {"block"}}
    pretrained = {**(config.get("pretrained_cfg") or {}), "num_classes": count}
    return {**kept, "num_classes": count, "model_args": {**old, **args}, "pretrained_cfg": pretrained}


CONVERTERS: dict[str, Converter] = {
    "image": Converter(("positions", "patch_size"), read_image, write_image),
    "labels": Converter(("out_features",), _read_labels, _write_labels),
    "mlp_ratio": Converter(("hidden",), _read_mlp_ratio, _write_mlp_ratio),
    "resnet": Converter(("width",), _read_resnet, _write_resnet),
    "timm": Converter(("out_features",), _read_timm, _write_timm),
    "timm_image": Converter(
        ("positions", "patch_size"),
        lambda config: read_image(config, "img_size"),
        lambda config, params: write_image(config, params, "img_size", 0),
    ),
}
