"""Folder of adapters that the library PEFT wrote (`adapter_config.json`, `adapter_model.safetensors`).

Its tensors have the names of the model that PEFT adapted. One linear map in dtrain may be several maps in that model,
joined by rows (`qkv`: `q_proj`, `k_proj`, `v_proj`). Each of these keeps its own A and its own rows of B, so that
outputs and gradients are the same. https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from declarative_train.core.untrusted import parse_json
from declarative_train.files.weight_files import read_header
from declarative_train.packs.pretrained.adapters import A
from declarative_train.packs.pretrained.published import PublishedError

T = TypeVar("T")

FILE, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
_NOT_BUILT = {  # key of the config -> function: whether this value is unsupported
    "lora_bias": bool,
    "megatron_config": bool,
    "alora_invocation_tokens": bool,
    "trainable_token_indices": bool,
    "target_parameters": bool,
}


class Slice(NamedTuple):
    """Rows `first` to `last` (exclusive) of a linear map in dtrain. In the model that PEFT adapted, these rows are a
    separate linear map, named `module`."""

    module: str
    first: int
    last: int


@dataclass(frozen=True)
class PeftFolder:
    """Opened folder of adapters that PEFT wrote. `shapes`: {name of a tensor: its shape}; the names lack PREFIX, with
    which all names in PEFT's file begin."""

    path: str
    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def file(self) -> str:
        return os.path.join(self.path, FILE)

    def find_adapted(self, slices: Sequence[Slice]) -> list[Slice]:
        """Return those of `slices` for which the folder has an adapter."""
        return [each for each in slices if f"{each.module}.{A}" in self.shapes]

    def adapter_of(self, slices: Sequence[Slice], kind: str, make: Callable[..., T], dropout: float) -> T | None:
        """Return the adapter of one linear map of dtrain, or None if the folder has none for it. `slices`: parts of
        this map that are separate linear maps in the model that PEFT adapted. `kind`: the adapter's type in the recipe,
        `lora` or `dora`. `make`: creates the adapter from the folder's settings. Raises PublishedError if its type is
        not `kind`, or if the slices differ in rank or alpha."""
        present = self.find_adapted(slices)
        if not present:
            return None
        ranks = {self.shapes[f"{each.module}.{A}"][0] for each in present}
        alphas = {self._alpha(each.module) for each in present}
        if len(ranks) > 1 or len(alphas) > 1:
            listed = ", ".join(each.module for each in present)
            what = "rank" if len(ranks) > 1 else "alpha"
            problem = f"{self.path}: {listed} have adapters of more than one {what}, and are one map here"
            hint = f"train them with the same {what}, or merge them into the base model (`merge_and_unload` of PEFT)"
            raise PublishedError(problem, hint)
        if kind != (name := "dora" if self.config.get("use_dora") else "lora"):
            raise PublishedError(f"{self.path} holds adapters of the type `{name}`", f"write `type: {name}`")
        split = None if len(slices) == 1 else tuple((each.first, each.last) for each in present)
        return make(
            rank=ranks.pop(),
            alpha=alphas.pop(),
            rslora=bool(self.config.get("use_rslora")),
            dropout=dropout,
            split=split,
        )

    def _alpha(self, module: str) -> float:
        """Return the LoRA alpha of the module with the path `module`: the value of the first key of `alpha_pattern`
        that matches the end of the path, else `lora_alpha`. The keys are regular expressions, as in PEFT."""
        patterns = self.config.get("alpha_pattern") or {}
        found = next((each for each in patterns if re.match(rf"(.*\.)?({each})$", module)), None)
        return float(patterns[found] if found is not None else self.config.get("lora_alpha", 8))


def peft_folder(path: str) -> PeftFolder:
    """Open a folder of adapters that PEFT wrote. Raises PublishedError."""
    names = [os.path.join(path, name) for name in (CONFIG, FILE)]
    for name in names:
        if not os.path.exists(name):
            hint = "`save_pretrained` of PEFT and `dtrain export --to peft` write such a folder"
            raise PublishedError(f"there is no {os.path.basename(name)} in {path}", hint)
    return _read(path, *(os.stat(name).st_mtime_ns for name in names))


@lru_cache(maxsize=8)
def _read(path: str, *changed: int) -> PeftFolder:
    try:
        with open(os.path.join(path, CONFIG), encoding="utf-8") as file:
            config = parse_json(file.read())
        header = read_header(os.path.join(path, FILE))
    except (OSError, ValueError) as problem:
        raise PublishedError(f"the adapters in {path} cannot be read: {problem}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        found = config.get("peft_type") if isinstance(config, dict) else None
        raise PublishedError(f"{path} holds adapters of the type `{found}`; only LORA can be loaded")
    odd = next((key for key, asks in _NOT_BUILT.items() if asks(config.get(key))), None)
    if odd is not None:
        raise PublishedError(f"{path}: `{odd}` of its {CONFIG} is not supported")
    short = sorted({dtype for _, dtype in header.values()} - {"F64", "F32", "F16", "BF16"})
    if short:
        raise PublishedError(f"{path}: it has tensors of {', '.join(short)}, which are not weights")
    return PeftFolder(path, config, {name.removeprefix(PREFIX): shape for name, (shape, _) in header.items()})
