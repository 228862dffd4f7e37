"""`dtrain export --to huggingface`: a trained block -> the folder of a published model, as transformers writes it.

config.json, tensors in safetensors (shards with an index where they are large), the tokenizer's files of the model that
the run began with, and a model card with the recipe. Adapters are merged into the weights that they adapt.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from declarative_train.components.datasets.files import masked
from declarative_train.components.published import CONFIG, PublishedError, config_of, family_of
from declarative_train.components.texts.tokenizer import BYTES, TokenizerError, published_files, tokenizer
from declarative_train.diagnostics.suggest import did_you_mean
from declarative_train.inference.export.program import Base
from declarative_train.inference.export.trouble import ExportFailure
from declarative_train.inference.trained import Trained, UsageError
from declarative_train.plan.codec import to_json
from declarative_train.plan.plan import PublishedPlan
from declarative_train.plan.published import parts_in, tensor_map
from declarative_train.plan.run_folder import PLAN

Made = Callable[[], torch.Tensor]

_CACHED = re.compile(r"/models--([\w.-]+?)--([\w.-]+)/snapshots/[^/]+/?$")  # of huggingface-hub
SHARD_BYTES = 5_000_000_000
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json"),
    *("generation_config.json", "preprocessor_config.json"),
)


def published_node(trained: Trained, wanted: str | None) -> PublishedPlan:
    """The node that is exported: the only one of a block that published models are, or the one named. Raises
    UsageError."""
    known = {each.node: each for each in trained.plan.published}
    if wanted is not None and wanted not in known:
        raise UsageError(f"`{wanted}` is no block that published models are; help: {did_you_mean(wanted, known)}")
    if not known:
        raise UsageError(
            "no node of this run is of a block that published models are; help: --to safetensors has its tensors"
        )
    if wanted is None and len(known) > 1:
        raise UsageError(f"several nodes can be exported; help: --output with one of {', '.join(known)}")
    return known[wanted or next(iter(known))]


def published_base(trained: Trained) -> Base | None:
    """The published model that the run began with, all of whose parameters were its own then."""
    files = [each for each in trained.plan.weights if each.tensors is None or not each.tensors.alone]
    found = next((each for each in trained.plan.published if files and each.node == files[0].node), None)
    if found is None or found.config is None or len(files) > 1 or files[0].tensors is None:
        return None
    folder = os.path.dirname(files[0].path)
    tied = {str(item.tie) for item in trained.plan.parameters if item.tie is not None}
    cached = _CACHED.search(folder)
    return Base(found, folder if cached is None else f"{cached[1]}/{cached[2]}", frozenset(tied))


def write_published(trained: Trained, found: PublishedPlan, folder: Path, dtype: torch.dtype | None) -> None:
    """All files. Raises ExportFailure where no config says what the block is, and where what is read back differs."""
    family = family_of(found.block)
    assert family is not None
    module = trained.module().get_submodule(found.node)
    params = dict(found.params)
    tied = [item for item in trained.plan.parameters if item.tie is not None and item.name.startswith(f"{found.node}.")]
    if "tie" in params:
        params["tie"] = bool(tied)
    for param, parameter in family.sizes.items():
        params[param] = module.get_parameter(parameter).shape[0]
    try:
        config = config_of(family, params, found.config)
    except PublishedError as problem:
        raise ExportFailure(f"{problem}; help: {problem.hint}") from None
    wanted = next(module.parameters()).dtype if dtype is None else dtype
    name = str(wanted).removeprefix("torch.")
    config = {key: value for key, value in config.items() if key != "torch_dtype"} | {"dtype": name}
    config["architectures"] = [family.kinds[str(config["model_type"])].architecture]
    tensors = dict(_tensors(module, found, {item.name for item in tied}))
    _write_shards(folder, tensors, wanted)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    copied = _copy_beside(found, folder) if not (own := _own_tokenizer(trained, folder)) else own
    (folder / "README.md").write_text(_card(trained, found, config, copied), encoding="utf-8")
    (folder / PLAN).write_text(masked(to_json(trained.plan)), encoding="utf-8")
    _check(folder, tensors, wanted)


def _tensors(module: nn.Module, found: PublishedPlan, tied: set[str]) -> Iterator[tuple[str, Made]]:
    """What makes each tensor of the file, by its name there; of tied parameters the first."""
    tensors = tensor_map(found)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if f"{found.node}.{name}" in tied:
            continue
        parts = parts_in(tensors, name)
        if not parts:
            raise ExportFailure(f"no published model has a parameter like `{found.node}.{name}`")
        first, shares = 0, sum(part.share for part in parts)
        for part in parts:
            rows = parameter.shape[0] * part.share // shares
            yield part.name, _cut(module, name, first, rows, part.transpose)
            first += rows


def _cut(module: nn.Module, name: str, first: int, rows: int, transpose: bool) -> Made:
    def made() -> torch.Tensor:
        part = module.get_parameter(name).detach()[first : first + rows]
        return (part.T if transpose else part).contiguous()

    return made


def _write_shards(folder: Path, tensors: Mapping[str, Made], dtype: torch.dtype) -> None:
    """One file, or several with an index. A shard is in memory while it is written, no more."""
    from safetensors.torch import save_file

    sizes = {name: made().numel() * dtype.itemsize for name, made in tensors.items()}
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
        held = {name: tensors[name]().to(dtype).clone() for name in names}
        save_file(held, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(weight_map.items()))}
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _check(folder: Path, tensors: Mapping[str, Made], dtype: torch.dtype) -> None:
    """What is read back is what was written, to the bit."""
    from safetensors import safe_open

    read: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        file: Any = safe_open(str(path), framework="pt")
        for name in file.keys():  # noqa: SIM118 (no mapping)
            read.add(name)
            if not torch.equal(file.get_tensor(name), tensors[name]().to(dtype)):
                raise ExportFailure(f"{path.name}: {name} differs from the model when it is loaded back")
    if read != set(tensors):
        raise ExportFailure(f"the files lack {sorted(set(tensors) - read)[0]} when they are loaded back")


def _copy_beside(found: PublishedPlan, folder: Path) -> list[str]:
    """The files of the tokenizer, of the model that the run began with."""
    if found.folder is None:
        return []
    names = [name for name in _TOKENIZER if os.path.exists(os.path.join(found.folder, name))]
    for name in names:
        shutil.copyfile(os.path.join(found.folder, name), folder / name)
    return names


def _own_tokenizer(trained: Trained, folder: Path) -> list[str]:
    """The files of the tokenizer that the run's texts went through; none where its tokens came from elsewhere."""
    components = [field.component for field in trained.plan.data.fields] + [trained.plan.data.source]
    path = next((str(each["tokenizer"]) for each in components if each.get("tokenizer", BYTES) != BYTES), None)
    if path is None:
        return []
    try:
        found = tokenizer(path)
        files = published_files(found)
    except TokenizerError as problem:
        raise ExportFailure(f"the run's tokenizer: {problem}") from None
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return list(files)


def _card(trained: Trained, found: PublishedPlan, config: Mapping[str, Any], copied: list[str]) -> str:
    """https://huggingface.co/docs/hub/model-cards"""
    lines = ["---", "library_name: transformers", "tags: [dtrain]", "---", "", f"# {trained.plan.name}", ""]
    lines += [f"`{config['architectures'][0]}`, trained by dtrain: step {trained.step} of `{masked(trained.name)}`."]
    if trained.values:
        lines += ["", "| metric | value |", "|---|---|"]
        lines += [f"| {name} | {value:.6g} |" for name, value in trained.values.items()]
    has_head = config["architectures"][0].endswith(("ForCausalLM", "LMHeadModel"))
    auto = "AutoModelForCausalLM" if has_head else "AutoModel"
    lines += ["", "## How it is loaded", "", "```python", f"from transformers import {auto}", ""]
    lines += [f'model = {auto}.from_pretrained("THIS FOLDER")', "```"]
    lines += ["", "In a recipe of dtrain:", "", "```yaml", "model:", "  graph:"]
    lines += [f"    lm: {{type: {found.block}, from: THIS FOLDER, input: tokens}}"]
    lines += ["  weights: {lm: {path: THIS FOLDER, format: huggingface}}", "```"]
    if "tokenizer.json" not in copied and "tokenizer_config.json" not in copied:
        lines += ["", "There is no tokenizer beside it: the run began with none."]
    if trained.recipe:
        lines += ["", "## Recipe", "", "```yaml", masked(trained.recipe).rstrip(), "```"]
    return "\n".join([*lines, ""])
