"""Export formats `huggingface`, `timm` and `torchvision`: write a trained block as the library stores its models.

huggingface, timm  config.json, and tensors in safetensors (large models in shards with an index)
torchvision        file of a state dict

The folder also has the files of the run's tokenizer, and a model card with the recipe. Adapters are merged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from declarative_train.inference.trained import Trained
from declarative_train.packs.export.export_errors import ExportFailure
from declarative_train.packs.export.model_card import card
from declarative_train.packs.export.program import Base
from declarative_train.packs.pretrained.formats import names_without_head, tensor_map
from declarative_train.packs.pretrained.published import (
    CONFIG,
    TORCHVISION,
    TRANSFORMERS,
    PublishedError,
    architecture_of,
    config_of,
    family_of,
    is_of_timm,
)
from declarative_train.packs.text.chat import template_text
from declarative_train.packs.text.tokenizer import (
    BYTES,
    TEMPLATE,
    TokenizerError,
    make_published_files,
    tokenizer_of,
)
from declarative_train.plan.checkpoint_files import PLAN
from declarative_train.plan.codec import to_masked_json
from declarative_train.plan.output_semantics import meanings
from declarative_train.plan.plan import PartPlan, PublishedPlan, TensorMapPlan
from declarative_train.plan.tensor_maps import parts_in

MakeTensor = Callable[[], torch.Tensor]

_CACHED = re.compile(r"/models--([\w.-]+?)--([\w.-]+)/snapshots/[^/]+/?$")  # path in the cache of huggingface-hub
SHARD_BYTES = 5_000_000_000
_NOT_KEPT = (
    "torch_dtype",
    "quantization_config",
)  # keys of a published config that an export omits: its weights are not quantized
STATE_DICT = "model.pth"
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json"),
    *("generation_config.json", "preprocessor_config.json"),
)


def find_published_base(trained: Trained) -> Base | None:
    """Return the published model with which training began, if it is a model of transformers and all its parameters
    were loaded. Otherwise return None. (PEFT's adapters use the names of such a model.)"""
    files = [each for each in trained.plan.weights if each.tensors is None or not each.tensors.alone]
    found = next((each for each in trained.plan.published if files and each.node == files[0].node), None)
    if found is None or found.config is None or len(files) > 1 or files[0].tensors is None:
        return None
    if is_of_timm(found.config) or files[0].exclude or files[0].drawn:
        return None
    folder = os.path.dirname(files[0].path)
    tied = {str(item.tie) for item in trained.plan.parameters if item.tie is not None}
    cached = _CACHED.search(folder)
    return Base(found, folder if cached is None else f"{cached[1]}/{cached[2]}", frozenset(tied))


def write_published(
    trained: Trained, found: PublishedPlan, library: str, folder: Path, dtype: torch.dtype | None
) -> None:
    """Write the trained node `found.node` as a model in the format of `library`, with all files that the library needs.
    `found`: the published model that the node corresponds to. Raises ExportFailure if the library has no such model or
    cannot describe this one, or if the files, when read back, differ from the model."""
    family = family_of(found.block)
    assert family is not None
    try:
        names = tensor_map(found, library)
    except PublishedError as problem:
        raise ExportFailure(f"{problem}; help: {problem.hint}") from None
    module = trained.module().get_submodule(found.node)
    params = dict(found.params)
    tied = [item for item in trained.plan.parameters if item.tie is not None and item.name.startswith(f"{found.node}.")]
    if "tie" in params and params.get("head") in (None, "masked_lm"):  # other heads have no weight to tie
        params["tie"] = bool(tied)
    held = dict(module.state_dict())
    sized = {**family.sizes, **{param: (at,) for param, at in family.follows.items()}}
    for param, at in ((param, at) for param, places in sized.items() for at in places):
        if at.parameter in held:
            params[param] = held[at.parameter].shape[at.dim]
    wanted = next(module.parameters()).dtype if dtype is None else dtype
    try:
        config = None if library == TORCHVISION else config_of(family, params, found.config, library)
    except PublishedError as problem:
        raise ExportFailure(f"{problem}; help: {problem.hint}") from None
    has_head = any(name in held for name in family.head) or not family.head
    if config is not None and library == TRANSFORMERS:
        kind = family.kinds[str(config["model_type"])]
        if not has_head and kind.base is None:
            raise ExportFailure(f"{kind.architecture} has a head, and `{found.node}` has none")
        called = architecture_of(kind, params) if has_head else kind.base
        has_head = has_head and not (kind.heads and called == kind.architecture)
        name = str(wanted).removeprefix("torch.")
        config = {key: value for key, value in config.items() if key not in _NOT_KEPT} | {"dtype": name}
        config["architectures"] = [called]
        config |= _labels(classes_learned(trained, found.node), config)
        names = tensor_map(found, library, config)
    if not has_head:
        names = names_without_head(names)
    tensors = dict(_tensors(module, found, names, {item.name for item in tied}, wanted))
    (folder / PLAN).write_text(to_masked_json(trained.plan), encoding="utf-8")
    if config is None:
        torch.save({name: made().clone() for name, made in tensors.items()}, folder / STATE_DICT)
        _check_state_dict(folder, tensors)
        (folder / "README.md").write_text(card(trained, found, library, None, []), encoding="utf-8")
        return
    _write_shards(folder, tensors)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    copied = tokenizer_files(trained, found.folder, folder)
    (folder / "README.md").write_text(card(trained, found, library, config, copied), encoding="utf-8")
    _check(folder, tensors)


def classes_learned(trained: Trained, node: str) -> tuple[str, ...]:
    """Return the names of the classes for which the node computes scores. Return () if no loss reads the scores, or if
    the names are only numbers."""
    for each in meanings(trained.plan):
        if each.kind == "class" and each.output in (node, f"{node}.logits") and each.class_axis == 0 and not each.items:
            return () if each.classes == tuple(map(str, range(len(each.classes)))) else each.classes
    return ()


def _labels(classes: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any]:
    if not classes or len(config.get("id2label") or ()) != len(classes):
        return {}
    return {
        "id2label": {str(number): name for number, name in enumerate(classes)},
        "label2id": {name: number for number, name in enumerate(classes)},
    }


def _tensors(
    module: nn.Module, found: PublishedPlan, tensors: TensorMapPlan, tied: set[str], dtype: torch.dtype
) -> Iterator[tuple[str, MakeTensor]]:
    """Yield (name, function that returns the tensor) for each tensor that a block has in the files of a published
    model. `tensors`: map from the block's parameters to these tensors. `tied`: parameters that are left out, because
    they are tied to others. Buffers are written in at least float32, because training changes the bias of experts by
    less than the precision of 16-bit floats."""
    sliced: dict[str, list[tuple[PartPlan, MakeTensor]]] = {}
    for name, parameter in module.state_dict(keep_vars=True).items():
        if f"{found.node}.{name}" in tied:
            continue
        parts = parts_in(tensors, name)
        if not parts:
            raise ExportFailure(f"no published model has a parameter like `{found.node}.{name}`")
        first, shares = 0, sum(part.share for part in parts)
        written = dtype if isinstance(parameter, nn.Parameter) else torch.promote_types(dtype, torch.float32)
        for part in parts:
            rows = parameter.shape[0] * part.share // shares
            made = _cut(parameter, first, rows, part, written)
            first += rows
            if part.count:
                sliced.setdefault(part.name, []).append((part, made))
                continue
            yield part.name, made
            head, is_mean, _ = part.name.partition(".running_mean")
            if is_mean:  # torch's BatchNorm also has a count, which it only reads if momentum is None
                yield f"{head}.num_batches_tracked", lambda: torch.zeros((), dtype=torch.int64)
    yield from ((name, partial(_join_slices, slices)) for name, slices in sliced.items())


def _join_slices(slices: Sequence[tuple[PartPlan, MakeTensor]]) -> torch.Tensor:
    """Return one tensor of the file, which consists of several parameters of the model. `slices`: for each parameter,
    its position in the tensor, and a function that returns its values."""
    part, made = slices[0]
    like = made()
    whole = like.new_empty(part.count, *like.shape[:-1], like.shape[-1] * part.step)
    for part, made in slices:
        whole[part.index][..., part.first :: part.step] = made()
    return whole


def _cut(parameter: torch.Tensor, first: int, rows: int, part: PartPlan, dtype: torch.dtype) -> MakeTensor:
    def make() -> torch.Tensor:
        rows_of = parameter.detach()[first : first + rows]
        rows_of = (rows_of.T if part.transpose else rows_of).contiguous()
        shape = rows_of.shape[-part.ones :] if part.ones < 0 else (1,) * part.ones + rows_of.shape
        return rows_of.reshape(shape).to(dtype)

    return make


def _write_shards(folder: Path, tensors: Mapping[str, MakeTensor]) -> None:
    """Write the tensors to one file, or to several with an index. Only one shard at a time is in memory."""
    from safetensors.torch import save_file

    sizes = {name: made().nbytes for name, made in tensors.items()}
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if filled and filled + size > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    weight_map: dict[str, str] = {}
    for place, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{place:05}-of-{len(shards):05}.safetensors"
        held = {name: tensors[name]().clone() for name in names}
        save_file(held, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(weight_map.items()))}
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _check(folder: Path, tensors: Mapping[str, MakeTensor]) -> None:
    """Read the written `.safetensors` files in `folder`. Raises ExportFailure if one of `tensors` is missing or
    differs."""
    from safetensors import safe_open

    read: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        file: Any = safe_open(str(path), framework="pt")
        for name in file.keys():  # noqa: SIM118 (no mapping)
            read.add(name)
            if not torch.equal(file.get_tensor(name), tensors[name]()):
                raise ExportFailure(f"{path.name}: {name} differs from the model when it is loaded back")
    if read != set(tensors):
        raise ExportFailure(f"the files lack {sorted(set(tensors) - read)[0]} when they are loaded back")


def _check_state_dict(folder: Path, tensors: Mapping[str, MakeTensor]) -> None:
    read = torch.load(folder / STATE_DICT, weights_only=True)
    differs = next((name for name, made in tensors.items() if not torch.equal(read[name], made())), None)
    if differs is not None:
        raise ExportFailure(f"{STATE_DICT}: {differs} differs from the model when it is loaded back")


def tokenizer_files(trained: Trained, begun: str | None, folder: Path) -> list[str]:
    """Write the files of the run's tokenizer to `folder`, and return their names. If the run has none, copy the
    tokenizer of the published model with which training began (folder `begun`). Return [] if there is no tokenizer.
    Raises ExportFailure."""
    if own := _own_tokenizer(trained, folder):
        return own
    if begun is None:
        return []
    names = [name for name in _TOKENIZER if os.path.exists(os.path.join(begun, name))]
    for name in names:
        shutil.copyfile(os.path.join(begun, name), folder / name)
    return names


def _own_tokenizer(trained: Trained, folder: Path) -> list[str]:
    """Write the files of the tokenizer with which the run read its texts. Return their names; [] if the run has no
    tokenizer. Raises ExportFailure."""
    components = [field.component for field in trained.plan.data.fields] + [trained.plan.data.source]
    with_files = [each for each in components if each.get("tokenizer", BYTES) != BYTES]
    if not with_files:
        return []
    named = next((each for each in with_files if each.get("vocabulary")), with_files[0])
    try:
        found = tokenizer_of(named)
        files = make_published_files(found)
        if isinstance(named.get("template"), str):
            files[TEMPLATE] = template_text(str(named["template"]), found).encode()
    except TokenizerError as problem:
        raise ExportFailure(f"the run's tokenizer: {problem}") from None
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return list(files)
