"""Recipe for the folder of a published model, generated from its config.json alone. It has synthetic data that fit the
model, one of four tasks, and the model as a block of dtrain or as a node of its library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import yaml

from declarative_train.packs.pretrained.published import (
    Family,
    PublishedError,
    families,
    family_of,
    find_published_folder,
    is_of_timm,
    kind_of,
    params_of,
    read_config,
)

Task = Literal["full", "lora", "qlora", "pretrain"]
TASKS: tuple[str, ...] = get_args(Task)
LENGTH = 4096  # tokens of a sample, if the model has as many positions
SIDE = 224  # of a picture, if the config has none
LORA = {"type": "lora", "rank": 16, "alpha": 32}
NET = "net"

Tree = dict[str, Any]


class TargetError(ValueError):
    """Error: no recipe can be made for a folder. `hint`: what the user can do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """Generated recipe for a published model. `through`: what computes the model (a block or a library). `length`:
    number of tokens of a sample. `notes`: what the recipe leaves out. `takes_adapters`: whether the tasks `lora` and
    `qlora` are possible."""

    text: str
    through: str
    length: int | None
    notes: tuple[str, ...]
    takes_adapters: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    """Inputs and targets of a published model, from which its recipe is generated. `input`: what the model reads.
    `target`: what it learns to predict, the next token or a label. `head`: the recipe adds an output layer, because the
    model has none. `is_decoder_fed`: the model has an encoder and a decoder, and the recipe gives the tokens to
    both."""

    input: Literal["tokens", "picture"]
    target: Literal["next", "label"]
    head: bool = False
    is_decoder_fed: bool = False


def target_of_folder(
    written: str, *, task: str, batch: int, length: int | None, precision: str, layout: Mapping[str, object]
) -> ModelTarget:
    """Return the recipe that trains a published model. `written`: the model's folder, or its hub id if it is in the
    cache. `task`: full, lora, qlora or pretrain. `batch`: samples of a step. `length`: tokens of a sample; None: a
    default. `precision`, `layout`: values of the recipe. Raises TargetError."""
    try:
        folder = find_published_folder(written, os.path.abspath(written))
        config = read_config(folder)
    except PublishedError as problem:
        raise TargetError(str(problem), problem.hint) from None
    block = None if is_of_timm(config) else _block_of(config)
    shape = _shape_of(config, block)
    node, through = _node(config, folder, block, shape)
    notes = []
    data, length = _data(config, shape, length, batch)
    graph: Tree = {NET: node}
    loss = NET
    if shape.head:
        is_pooled = block is not None and params_of(_family(block), config).get("head") == "pooler"
        if not is_pooled:
            graph |= {"pooled": {"type": "flatten"} if shape.input == "picture" else f"mean({NET}, dim=1)"}
        graph |= {"head": {"type": "linear", "out_features": _num_labels(config)}}
        loss = "head"
        notes.append("a linear head is planned in place of its own")
    if shape.input == "tokens" and any(key in config for key in ("vision_config", "audio_config")):
        notes.append("only texts are planned, without its encoders of pictures and sounds")
    model: Tree = {"graph": graph}
    if task in ("lora", "qlora"):
        if block is None:
            raise TargetError(
                f"`--task {task}` needs a model that a block of dtrain computes ({', '.join(families())}), and this is "
                f"{through}",
                "`--task full` plans it",
            )
        model["parameters"] = _adapters(task)
    recipe = {
        "name": os.path.basename(os.path.abspath(folder)) or "model",
        "data": data,
        "model": model,
        "objective": {"loss": {"type": "cross_entropy", "input": loss, "target": shape.target}},
        "training": {
            "steps": 1,
            "global_batch_size": batch,
            "precision": precision,
            "activation_checkpointing": "blocks",
            "optimizer": {"type": "adamw", "lr": 1e-4},
        },
        "parallelism": "auto",
        "layout": {"device": "cuda", **layout},
    }
    return ModelTarget(yaml.safe_dump(recipe, sort_keys=False), through, length, tuple(notes), block is not None)


def _block_of(config: Mapping[str, Any]) -> str | None:
    """Return the name of dtrain's block that computes a model with this config, or None if there is none."""
    for name in families():
        if kind_of(_family(name), config) is None:
            continue
        try:
            params_of(_family(name), config)
        except (PublishedError, TypeError, ValueError, ZeroDivisionError, AttributeError):
            return None
        return None if name == "clip" else name
    return None


def _family(block: str) -> Family:
    found = family_of(block)
    assert found is not None
    return found


def _shape_of(config: Mapping[str, Any], block: str | None) -> _Shape:
    """Return the inputs and targets of a model, from the name of its class in the config. `block`: the block of dtrain
    that computes the model, or None. Raises TargetError."""
    if is_of_timm(config) or block in ("vit", "resnet"):
        return _Shape("picture", "label")
    name = str(next(iter(config.get("architectures") or ()), ""))
    if block in ("deepseek", "gemma", "gpt", "gpt_oss", "llama", "mixtral"):
        return _Shape("tokens", "next")
    if "ImageClassification" in name:
        return _Shape("picture", "label")
    feeds = bool(config.get("is_encoder_decoder")) and "EncoderModel" not in name
    if any(
        word in name for word in ("ForCausalLM", "LMHead", "MaskedLM", "ForConditionalGeneration", "ForPreTraining")
    ):
        return _Shape("tokens", "next", is_decoder_fed=feeds)
    if "SequenceClassification" in name and not feeds:
        return _Shape("tokens", "label")
    return _base_shape(config, name, feeds)


def _base_shape(config: Mapping[str, Any], name: str, feeds: bool) -> _Shape:
    """Return the input and the target of a model whose output layer is missing or unknown. The target is a label. The
    input is tokens if the main input in transformers is `input_ids`, and a picture if it is `pixel_values`. Raises
    TargetError for another main input. `name`: the class of the model, or "" if unknown. `feeds`: whether the model has
    a decoder, which reads the same tokens as the encoder."""
    main = _main_input(config, name)
    if main == "input_ids":
        return _Shape("tokens", "label", head=True, is_decoder_fed=feeds)
    if main == "pixel_values":
        return _Shape("picture", "label", head=True)
    what = name or f"a model of type `{config.get('model_type')}`"
    raise TargetError(f"{what} reads `{main}`, and only models of tokens or pictures are planned from a folder",
                      "write a recipe with its data, and give that")  # fmt: skip


def _main_input(config: Mapping[str, Any], name: str) -> str:
    try:
        import transformers
        from transformers import CONFIG_MAPPING, MODEL_MAPPING
    except ImportError:
        raise TargetError("a model that no block of dtrain computes needs the package transformers") from None
    found: Any = getattr(transformers, name, None)
    if found is None:
        kind = str(config.get("model_type"))
        known = MODEL_MAPPING.get(CONFIG_MAPPING[kind], None) if kind in CONFIG_MAPPING else None
        found = known[0] if isinstance(known, tuple) else known
    return str(getattr(found, "main_input_name", "input_ids"))


def _node(config: Mapping[str, Any], folder: str, block: str | None, shape: _Shape) -> tuple[Tree, str]:
    """Return (node of the model as a YAML tree, what computes the model). The second value is `timm`, `transformers` or
    `block <name>`. `block`: dtrain's block for this model; None if it has none. `shape`: the inputs of the model."""
    if is_of_timm(config):
        return {"type": "timm", "path": folder, "input": "picture"}, "timm"
    if block is not None:
        node: Tree = {"type": block, "from": folder, "input": shape.input}
        if block in ("vit", "resnet"):
            node["out_features"] = _num_labels(config)
        return node, f"block {block}"
    node = {"type": "transformers", "path": folder, "pretrained": False}
    if shape.is_decoder_fed:
        node["inputs"] = {"input_ids": shape.input, "decoder_input_ids": shape.input}
    else:
        node["input"] = shape.input
    return node, "transformers"


def _data(config: Mapping[str, Any], shape: _Shape, length: int | None, batch: int) -> tuple[Tree, int | None]:
    """Return the section `data` with synthetic data for a model, and the number of tokens in a sample (None for a model
    of pictures). `config`: config of the model. `length`: wanted number of tokens in a sample; None: a default.
    `batch`: number of samples, enough for one step. Raises TargetError if `length` is more than the model can read."""
    if shape.input == "picture":
        label = {"type": "category", "column": "label", "num_classes": _num_labels(config)}
        side, channels = _side(config), _channels(config)
        source = {"type": "synthetic", "kind": "images", "rows": batch, "channels": channels, "size": side}
        source["classes"] = _num_labels(config)
        return {"source": source, "fields": {"picture": {"column": "image"}, "label": label}}, None
    most = _positions(config)
    if length is not None and most is not None and length > most:
        raise TargetError(f"the model has {most:,} positions, and --length is {length:,}", f"--length {most} or less")
    length = length or min(LENGTH, most or LENGTH)
    vocabulary = _text(config).get("vocab_size") or 256
    source = {"type": "synthetic", "kind": "tokens", "rows": length + batch, "vocabulary": int(vocabulary)}
    data: Tree = {"source": source, "window": {"length": length + 1, "stride": 1}}
    if shape.target == "next":
        fields: Tree = {"tokens": {"column": "tokens", "rows": ":-1"}, "next": {"column": "tokens", "rows": "1:"}}
    else:
        label = {"type": "category", "column": "tokens", "rows": -1, "num_classes": _num_labels(config), "unknown": 0}
        fields = {"tokens": {"column": "tokens", "rows": ":-1"}, "label": label}
    data["fields"] = fields
    return data, length


def _adapters(task: str) -> Tree:
    """Return the section `model.parameters` for the task `lora` or `qlora`: an adapter on every linear map of the
    model's blocks, all other parameters frozen. With `qlora`, the adapted weights are stored in 4 bits."""
    storage = {"storage": "nf4"} if task == "qlora" else {}
    return {f"{NET}.*": {"storage": "bf16"}, f"{NET}.layers": {**storage, "adapter": LORA}}


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("text_config")
    return found if isinstance(found, Mapping) else config


def _positions(config: Mapping[str, Any]) -> int | None:
    text = _text(config)
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    found = next((text[name] for name in names if isinstance(text.get(name), int) and text[name] > 0), None)
    if found is not None and str(config.get("model_type")) in ("roberta", "xlm-roberta", "camembert"):
        return int(found) - 2  # positions begin after the padding token
    return found


def _num_labels(config: Mapping[str, Any]) -> int:
    return max(2, int(config.get("num_classes") or len(config.get("id2label") or ()) or config.get("num_labels") or 2))


def _side(config: Mapping[str, Any]) -> int:
    """Return the side of a square image in pixels, which is `image_size` (transformers) or `input_size` (timm) of the
    config."""
    given = config.get("image_size") or (config.get("pretrained_cfg") or {}).get("input_size") or SIDE
    return int(given[-1] if isinstance(given, list) else given)


def _channels(config: Mapping[str, Any]) -> int:
    given = (config.get("pretrained_cfg") or {}).get("input_size")
    return int(given[0] if given else config.get("num_channels") or 3)
