"""`model`: the graph and what it is made of. Blocks and nodes are opened by `recipe/model/expand.py`."""

from typing import Any, Literal

from declarative_train.recipe.sections.parameters import ParameterSettings
from declarative_train.recipe.sections.section import Section

DROP = "drop"
"""In the place of a name: leave these tensors of the file out."""


class WeightsSection(Section):
    """Start values from a file or from a run."""

    path: str
    """A safetensors or torch file, the index of several (`model.safetensors.index.json`), or a run directory: its best
    checkpoint, else its last."""
    format: Literal["huggingface", "timm", "torchvision"] | None = None
    """Of a published model, for a node of the block that it is. `huggingface`: `path` is its folder (config.json,
    model.safetensors or its shards; transformers' or timm's), or its hub id in the cache of huggingface-hub. `timm` and
    `torchvision`: `path` is a file with its tensors, by the names that they have there."""
    rename: dict[str, str] = {}
    """Beginnings of names in the file, and what they become here, or `drop` to leave them out:
    {"encoder.blocks.": "layers.", "head.": drop}. With `*` or `{a,b}` a selector: {"h.*.attention": "layers.*.attn"}
    keeps what stands below, and {"{query,key,value}": qkv} joins tensors by rows."""
    exclude: tuple[str, ...] = ()
    """Selectors of parameters, by names below the node, that start anew: [logits] for a head of another size. What the
    file has for them is not read."""
    statistics: Literal["run", "data"] = "run"
    """Where the fields that these parameters read, and their targets, have their statistics and class numbers from:
    `run`, the one whose weights they are (a file of tensors has none); `data`: made anew of the training rows."""


class ModelSection(Section):
    """The graph, the blocks that it is made of, and settings for its parameters."""

    graph: dict[str, Any]
    """Nodes by name; the order is the default wiring."""
    blocks: dict[str, Any] = {}
    """Components written in the recipe language, by name."""
    weights: dict[str, WeightsSection] = {}
    """Start values by the node that they belong to: `{backbone: PATH}`, or a mapping with `path` below the node. A path
    alone, or a mapping with `path`: for the whole model."""
    parameters: dict[str, ParameterSettings] = {}
    """Settings for the parameters that a selector finds; later entries win key by key."""
