"""README of a published model: the model's name, code that loads the model, and the recipe that trained it.

https://huggingface.co/docs/hub/model-cards
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declarative_train.core.secrets import masked
from declarative_train.inference.trained import Trained
from declarative_train.packs.pretrained.published import TIMM, TORCHVISION, TRANSFORMERS
from declarative_train.plan.plan import PublishedPlan

_AUTO = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForImageClassification": "AutoModelForImageClassification",
}
_INPUTS = {"resnet": "image", "vit": "image"}


def card(
    trained: Trained, found: PublishedPlan, library: str, config: Mapping[str, Any] | None, copied: list[str]
) -> str:
    """Return the README of an exported block. `found`: the published model that the block corresponds to; `library`:
    name of the package that loads the model; `config`: content of the folder's config.json, or None; `copied`: names of
    the tokenizer's files in the folder."""
    name = _name(found, library, config)
    note = "" if _INPUTS.get(found.block) is not None else no_tokenizer(copied)
    return card_of(trained, name, _LIBRARY[library], _code(name, library), _recipe(found, library), note)


def card_of(trained: Trained, name: str, library: str, code: list[str], model: list[str], note: str) -> str:
    """Return a README. `code`: lines that load the model with the package `library`; `model`: lines of a recipe that
    uses the model; `note`: further text, may be ""."""
    lines = ["---", f"library_name: {library}", "tags: [dtrain]", "---", "", f"# {trained.plan.name}", ""]
    lines += [f"`{name}`, trained by dtrain: `{masked(trained.name)}`."]
    if trained.values:
        lines += ["", "| metric | value |", "|---|---|"]
        lines += [f"| {name} | {value:.6g} |" for name, value in trained.values.items()]
    lines += ["", "## How it is loaded", "", "```python", *code, "```"]
    lines += ["", "In a recipe of dtrain:", "", "```yaml", *model, "```"]
    if note:
        lines += ["", note]
    if trained.recipe:
        lines += ["", "## Recipe", "", "```yaml", masked(trained.recipe).rstrip(), "```"]
    return "\n".join([*lines, ""])


def no_tokenizer(copied: list[str]) -> str:
    """Return a note for the README that the export has no tokenizer; "" if it has one. `copied`: names of the
    tokenizer's files in the folder."""
    if "tokenizer.json" in copied or "tokenizer_config.json" in copied:
        return ""
    return "This folder has no tokenizer, as the run began without one."


_LIBRARY = {TRANSFORMERS: "transformers", TIMM: "timm", TORCHVISION: "torchvision"}


def auto_of(architecture: str) -> str:
    """Return the name of the class of transformers (`AutoModel...`) that loads models of the class `architecture`."""
    return next((auto for end, auto in _AUTO.items() if architecture.endswith(end)), "AutoModel")


def _name(found: PublishedPlan, library: str, config: Mapping[str, Any] | None) -> str:
    if config is None:
        return found.block
    return str(config["architecture"] if library == TIMM else config["architectures"][0])


def _code(name: str, library: str) -> list[str]:
    if library == TORCHVISION:
        load = 'load_state_dict(torch.load("THIS FOLDER/model.pth", weights_only=True))'
        return [
            "import torch",
            "",
            "# `model`: the model of torchvision with the sizes of the recipe below",
            f"model.{load}",
        ]
    if library == TIMM:
        return ["import timm", "", 'model = timm.create_model("local-dir:THIS FOLDER", pretrained=True)']
    auto = auto_of(name)
    return [f"from transformers import {auto}", "", f'model = {auto}.from_pretrained("THIS FOLDER")']


def _recipe(found: PublishedPlan, library: str) -> list[str]:
    given = _INPUTS.get(found.block, "tokens")
    node = "lm" if given == "tokens" else "net"
    if library == TORCHVISION:
        sizes = ", ".join(f"{key}: {_plain(value)}" for key, value in found.params.items() if value is not None)
        weights = "{path: THIS FOLDER/model.pth, format: torchvision}"
    else:
        sizes, weights = "from: THIS FOLDER", "{path: THIS FOLDER, format: huggingface}"
    return [
        "model:",
        "  graph:",
        f"    {node}: {{type: {found.block}, {sizes}, input: {given}}}",
        f"  weights: {{{node}: {weights}}}",
    ]


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
