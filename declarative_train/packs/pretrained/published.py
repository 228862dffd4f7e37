"""Published models that dtrain's blocks can load: conversion between `config.json` and the params of a block, and the
names of tensors.

Each family of models has a file `families/BLOCK.yaml`; the first lines of llama.yaml explain its keys. Conversions that
need code are in `converters/`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from declarative_train.core.machine import install
from declarative_train.core.untrusted import parse_json
from declarative_train.packs.pretrained.converters import clip, experts, gemma, language, vision
from declarative_train.plan.plan import PartPlan
from declarative_train.recipe.model.tree import PublishedError as PublishedError

_FOLDER = Path(__file__).parent / "families"
TRANSFORMERS, TIMM, TORCHVISION = "huggingface", "timm", "torchvision"  # the first two have configs
CONFIG = "config.json"
WEIGHTS = ("model.safetensors.index.json", "model.safetensors")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PARAM = re.compile(r"\{\+?([a-z]\w*)\}")  # `{layers}` is its value, `{+layers}` adds it to the number of a copy


class ModelHead(NamedTuple):
    """Output layer (head) of a published model, which the param `head` of a block selects.

    architectures  class names of models with this head; dtrain writes the first one into configs
    tensors        {parameter of the block: names of the head's tensors}
    has_labels     whether `out_features` of the head is the number of labels in the config"""

    architectures: tuple[str, ...]
    tensors: Mapping[str, object]
    has_labels: bool


class ModelKind(NamedTuple):
    """Kind of model in a family: a `model_type` of transformers, or an `architecture` of timm. The fields are keys of
    the files in families/, which the first lines of families/llama.yaml explain.

    architecture  class name of the model; without its head if models of this kind may have several
    base          class name of the model without a head
    prefix        beginning of tensor names in files of a model with a head
    heads         heads that models of this kind may have, by name"""

    library: str
    architecture: str
    base: str | None
    config: Mapping[str, str]
    params: Mapping[str, object]
    absent: Mapping[str, object]
    converters: tuple[str, ...]
    prefix: str
    tensors: Mapping[str, object]
    heads: Mapping[str, ModelHead]


class TensorNames(NamedTuple):
    """Names that a library gives to the tensors of a family's models.

    tensors  names of tensors, by parameter of the block
    prefix   beginning of these names in files of a model with a head
    ignored  names of tensors that are not loaded
    params   params of the block that have the same value in all models of the library
    respelt  ending of a name in old files -> its current form"""

    tensors: Mapping[str, object]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    params: Mapping[str, object] = {}
    respelt: Mapping[str, str] = {}


class NameMap(NamedTuple):
    """Names of the tensors in a published model's files from which a block's parameters get their values.

    entries  {parameter of the block: tensors that form it}; `*` in a name: number of a repeated block
    prefix   beginning of all names in the files of a model with a head (output layer)
    ignored  names of tensors that are not loaded
    drawn    parameters of the head that get random values if a file lacks them
    respelt  {end of a name in old files: its present spelling}"""

    entries: dict[str, tuple[PartPlan, ...]]
    prefix: str
    ignored: list[str]
    drawn: list[str]
    respelt: Mapping[str, str]


class SizeSource(NamedTuple):
    """Source of the value of a block's param: the size of the dimension `dim` of the tensor `parameter`."""

    parameter: str
    dim: int


@dataclass(frozen=True, slots=True)
class Family:
    """Family of published models that one of dtrain's blocks can load.

    kinds    kinds of models, by `model_type` or `architecture`
    names    names of tensors, by library
    head     parameters of the head
    sizes    {param of the block: the dimensions of parameters whose size is the value of the param}
    follows  {size that the block takes from its inputs: the dimension of a parameter that has this size}
    """

    block: str
    kinds: Mapping[str, ModelKind]
    names: Mapping[str, TensorNames]
    head: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[SizeSource, ...]] = field(default_factory=dict)
    follows: Mapping[str, SizeSource] = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)

    def map(self, params: Mapping[str, object], library: str = TRANSFORMERS, kind: str | None = None) -> NameMap:
        """Return the NameMap of a model: for each parameter of the block, the names of its tensors in the files of
        `library`. `params`: params of the block. `kind`: name of the kind of model; None: the library's first kind."""
        names = self.names[library]
        own = next((each for each in self.kinds.values() if each.library == library), None)
        own = self.kinds[kind] if kind is not None else own
        prefix, heads, more = (names.prefix, {}, {}) if own is None else (own.prefix, own.heads, own.tensors)

        def parts(tensors: Mapping[str, object]) -> dict[str, tuple[PartPlan, ...]]:
            return {name: _parts(value, params, prefix) for name, value in tensors.items()}

        head = heads.get(str(params.get("head")))
        entries = parts({**names.tensors, **more, **({} if head is None else head.tensors)})
        used = {part.name for each in entries.values() for part in each}
        others = {part.name for each in heads.values() for found in parts(each.tensors).values() for part in found}
        ignored = [_fill(name, params, prefix) for name in names.ignored] + sorted(others - used)
        drawn = sorted({name for each in heads.values() for name in each.tensors})
        return NameMap(entries, prefix, ignored, drawn, names.respelt)


def _parts(value: object, params: Mapping[str, object], prefix: str) -> tuple[PartPlan, ...]:
    if isinstance(value, str):
        return (PartPlan(_fill(value, params, prefix)),)
    if isinstance(value, dict):
        if "each" in value:
            names = (value["name"].replace("{each}", str(at)) for at in range(int(str(params[value["each"]]))))
            return tuple(part for name in names for part in _parts(name, params, prefix))
        name = _fill(value["name"], params, prefix)
        if "slices" in value:
            count, (first, step) = int(str(params[value["slices"]])), value.get("every", (0, 1))
            slices = PartPlan(name, 1, bool(value.get("transpose")), 0, count, 0, first, step)
            return tuple(replace(slices, index=index) for index in range(count))
        share = int(str(params[value["share"]])) if "share" in value else 1
        return (PartPlan(name, share, bool(value.get("transpose")), value.get("ones", 0)),)
    assert isinstance(value, list)
    return tuple(part for each in value for part in _parts(each, params, prefix))


def _fill(name: str, params: Mapping[str, object], prefix: str) -> str:
    """Return `name` with `{prefix}` and each `{param}` in it replaced by their values."""
    return _PARAM.sub(
        lambda place: f"{{+{params[place[1]]}}}" if place[0][1] == "+" else str(params[place[1]]),
        name.replace("{prefix}", prefix),
    )


def families() -> tuple[str, ...]:
    """Return the names of the blocks that can load published models."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def family_of(block: str) -> Family | None:
    path = _FOLDER / f"{block}.yaml"
    if not path.exists():
        return None
    import yaml

    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    libraries = {TRANSFORMERS: found, **found.get("libraries", {})}
    return Family(
        block,
        {name: kind for library, each in libraries.items() for name, kind in _kinds(library, each)},
        {library: _names(each) for library, each in libraries.items()},
        tuple(found.get("head", ())),
        {name: _places(at) for name, at in found.get("sizes", {}).items()},
        {name: _follows(at) for name, at in found.get("follows", {}).items()},
        hints=found.get("hints", {}),
    )


def _kinds(library: str, data: Mapping[str, Any]) -> Iterator[tuple[str, ModelKind]]:
    """Yield (name, kind) for each entry of `models` in `data`, the section of a library in a YAML file of `families`.
    The other keys of `data`, such as `config`, are defaults for all entries."""
    for name, kind in data.get("models", {}).items():
        config, params, absent = ({**data.get(key, {}), **kind.get(key, {})} for key in ("config", "params", "absent"))
        yield (
            name,
            ModelKind(
                library,
                kind.get("architecture", name),
                kind.get("base"),
                config,
                params,
                absent,
                (*data.get("converters", ()), *kind.get("converters", ())),
                kind.get("prefix", data.get("prefix", "")),
                kind.get("tensors", {}),
                {name: _head(head) for name, head in kind.get("heads", {}).items()},
            ),
        )


def _names(data: Mapping[str, Any]) -> TensorNames:
    given = (data.get("prefix", ""), tuple(data.get("ignored", ())), data.get("params", {}), data.get("respelt", {}))
    return TensorNames(data["tensors"], *given)


def _head(found: Mapping[str, Any]) -> ModelHead:
    return ModelHead(tuple(found["architectures"]), found.get("tensors", {}), bool(found.get("labels")))


def _places(at: Any) -> tuple[SizeSource, ...]:
    return tuple(_follows(each) for each in (at if isinstance(at, list) else [at]))


def _follows(at: Any) -> SizeSource:
    return SizeSource(at, 0) if isinstance(at, str) else SizeSource(at["parameter"], at["dim"])


# -- the folder of a model


def find_published_folder(written: str, absolute: str) -> str:
    """Return the folder of a published model: the path `absolute` if it is a folder, otherwise the folder in
    huggingface-hub's cache for the hub id `written` (`org/name`). `written`: the text in the recipe. Nothing is
    downloaded. Raises PublishedError."""
    if "://" in absolute:
        raise PublishedError(f"`{written}` is not on this machine", "copy the folder, and give its path")
    if os.path.isdir(absolute):
        if os.path.exists(os.path.join(absolute, CONFIG)):
            return absolute
        raise PublishedError(f"there is no {CONFIG} in the folder `{written}`", "give the folder of a published model")
    if not _HUB_ID.fullmatch(written):
        raise PublishedError(f"there is no folder `{written}`", "give the folder of a published model, or its hub id")
    try:
        hub = import_module("huggingface_hub")
    except ImportError:
        message = f"there is no folder `{written}`, and a hub id needs the package huggingface-hub"
        raise PublishedError(message, install("transformers")) from None
    found = hub.try_to_load_from_cache(written, CONFIG)
    if not isinstance(found, str):
        message = f"`{written}` is neither a folder nor in the cache of huggingface-hub; nothing is downloaded"
        raise PublishedError(message, f"`hf download {written}` puts it there")
    return os.path.dirname(found)


def read_config(folder: str) -> dict[str, Any]:
    """Return the content of the config in a model's folder. Raises PublishedError."""
    path = os.path.join(folder, CONFIG)
    try:
        with open(path, encoding="utf-8") as file:
            found = parse_json(file.read())
    except (OSError, ValueError) as problem:
        raise PublishedError(f"{path} cannot be read: {problem}") from None
    if not isinstance(found, dict):
        raise PublishedError(f"{path} does not hold a mapping")
    return found


# -- config.json <-> params


def params_of(family: Family, config: Mapping[str, Any]) -> dict[str, object]:
    """Return the params of dtrain's block for a model with the published `config`. Raises PublishedError."""
    kind = _kind(family, config)
    if (config.get("quantization_config") or {"quant_method": "mxfp4"}).get("quant_method") != "mxfp4":
        raise PublishedError(
            "its weights are quantized in another format than mxfp4", "use the model without quantization"
        )
    data = {**config.get("model_args", {}), **config} if kind.library == TIMM else config
    # null may be a value: a Mistral without attention window has `sliding_window: null`
    seen = {**kind.absent, **{key: value for key, value in data.items() if value is not None or key in kind.absent}}
    params = {param: seen[key] for param, key in kind.config.items() if seen.get(key) is not None}
    lacking = next((key for param, key in kind.config.items() if key not in seen and param in _NEEDED), None)
    if lacking is not None:
        raise PublishedError(f"its {CONFIG} has no `{lacking}`")
    params |= {**kind.params, **_head_of(kind, config)}
    try:
        for name in kind.converters:
            params |= _CONVERTERS[name].read(seen)
    except PublishedError as problem:
        raise PublishedError(str(problem), problem.hint or library_hint(config)) from None
    return params


def kind_of(family: Family, config: Mapping[str, Any]) -> str | None:
    """Return the name of the kind of model that a config describes, according to its `model_type` or timm's
    `architecture`; None if the family has no such kind."""
    name = config["architecture"] if is_of_timm(config) else config.get("model_type")
    return name if isinstance(name, str) and name in family.kinds else None


def is_of_timm(config: Mapping[str, Any]) -> bool:
    return "model_type" not in config and "architecture" in config


def library_hint(config: Mapping[str, Any]) -> str | None:
    """Return a hint for a model that dtrain's blocks cannot load: to use a node of timm or transformers. Return None if
    the model needs code of its own, which these nodes do not run."""
    if is_of_timm(config):
        return "`{type: timm, path: FOLDER, pretrained: true}` loads it with timm"
    is_known = "model_type" in config and not config.get("auto_map")
    return "`{type: transformers, path: FOLDER}` loads it with transformers" if is_known else None


def config_of(
    family: Family,
    params: Mapping[str, object],
    published: Mapping[str, Any] | None = None,
    library: str = TRANSFORMERS,
) -> dict[str, Any]:
    """Return a config that describes a model with the settings `params`. If `published` is a config of `library`, only
    the values that differ are changed in it. Otherwise, the config is of the first kind of model in `library` that can
    have these settings. Raises PublishedError if no config can describe them."""
    known = None if published is None else kind_of(family, published)
    if published is not None and known is not None and family.kinds[known].library == library:
        if _describes(family, published, params):
            return dict(published)
        kinds = [known]
    else:
        kinds = [name for name, kind in family.kinds.items() if kind.library == library]
        published, kinds = None, sorted(kinds, key=lambda name: -len(_list_implied(family.kinds[name], params)))
    for name in kinds:
        kind = family.kinds[name]
        begin = {"model_type": name, "architectures": [architecture_of(kind, params)]}
        config = {**(published or {}), **({"architecture": name} if library == TIMM else begin)}
        config |= {key: params[param] for param, key in kind.config.items() if param in params}
        if library == TIMM:  # omit what follows from the architecture
            config = {key: value for key, value in config.items() if key not in _list_implied(kind, params)}
        config |= _labels_of(kind, params)
        for converter in kind.converters:
            config = _CONVERTERS[converter].write(config, params)
        if _describes(family, config, params):
            return config
    listed = ", ".join(kinds)
    raise PublishedError(f"no config of {listed} can describe this `{family.block}`", "export it as safetensors")


def architecture_of(kind: ModelKind, params: Mapping[str, object]) -> str:
    """Return the library's class name, such as `LlamaForCausalLM`, for this kind of model with these params."""
    head = kind.heads.get(str(params.get("head")))
    return kind.architecture if head is None else head.architectures[0]


def _head_of(kind: ModelKind, config: Mapping[str, Any]) -> dict[str, object]:
    """Return the block's params `head` (type of output layer; `none` if unknown) and `out_features`, which follow from
    the model class in the config. Return {} if models of this kind cannot have different heads."""
    if not kind.heads:
        return {}
    named = set(config.get("architectures") or ())
    found = next((name for name, head in kind.heads.items() if named & set(head.architectures)), None)
    if found is None or not kind.heads[found].has_labels:
        return {"head": found or "none", "out_features": None}
    return {"head": found, "out_features": len(config.get("id2label") or ()) or config.get("num_labels") or 2}


def _labels_of(kind: ModelKind, params: Mapping[str, object]) -> dict[str, object]:
    head = kind.heads.get(str(params.get("head")))
    if head is None or not head.has_labels:
        return {}
    labels = [f"LABEL_{place}" for place in range(int(str(params["out_features"])))]
    return {"id2label": {str(i): label for i, label in enumerate(labels)}} | {
        "label2id": {label: i for i, label in enumerate(labels)}
    }


def _list_implied(kind: ModelKind, params: Mapping[str, object]) -> set[str]:
    """Return the keys that a config may leave out, because their default (`kind.absent`) is the value in `params`."""
    return {key for param, key in kind.config.items() if key in kind.absent and params.get(param) == kind.absent[key]}


def _describes(family: Family, config: Mapping[str, Any], params: Mapping[str, object]) -> bool:
    """Return whether the block that a config describes has the settings `params`. A setting that the config does not
    mention has its default. Return False if the config does not describe a block of `family`."""
    try:
        found = params_of(family, config)
    except PublishedError:
        return False
    has_heads = any(kind.heads for kind in family.kinds.values())
    known: set[str] = {"head", "out_features"} if has_heads else set()
    known |= set().union(*({**kind.config, **kind.params} for kind in family.kinds.values()))
    known |= {param for kind in family.kinds.values() for name in kind.converters for param in _CONVERTERS[name].params}
    return all(found.get(param, _default(param, found)) == params[param] for param in known if param in params)


def _default(param: str, found: Mapping[str, object]) -> object:
    """Return the default of a param that a config does not mention. `found`: the params that the config gives. Some
    defaults depend on them."""
    if "heads" not in found:
        return _ABSENT.get(param)
    width, heads = int(str(found["width"])), int(str(found["heads"]))
    derived: dict[str, object] = {"kv_heads": heads, "head_width": width // heads, "hidden": 4 * width}
    derived |= {"head_activation": found.get("activation")}
    return derived.get(param, _ABSENT.get(param))


def _kind(family: Family, config: Mapping[str, Any]) -> ModelKind:
    name = kind_of(family, config)
    if name is None:
        library = TIMM if is_of_timm(config) else TRANSFORMERS
        given = config.get("architecture" if library == TIMM else "model_type")
        listed = ", ".join(name for name, kind in family.kinds.items() if kind.library == library)
        other = next((block for block in families() if given in _family(block).kinds), None)
        hints = [f"`{family.block}` is {listed}" if listed else None, library_hint(config)]
        hint = f"`type: {other}`" if other else "; ".join(each for each in hints if each) or None
        raise PublishedError(f"it is a model of type `{given}`, which `{family.block}` is not", hint)
    return family.kinds[name]


def _family(block: str) -> Family:
    found = family_of(block)
    assert found is not None
    return found


_NEEDED = frozenset({"vocabulary", "layers", "width", "heads"})
_ABSENT: dict[str, object] = {
    "qkv_bias": False,
    "out_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
    "window_from": 0,
    "skip_padding": False,
}

_CONVERTERS = {**clip.CONVERTERS, **experts.CONVERTERS, **gemma.CONVERTERS, **language.CONVERTERS, **vision.CONVERTERS}
