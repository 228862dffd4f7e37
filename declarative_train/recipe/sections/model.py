"""Section `model`: the graph and its blocks, start values, and settings of parameters. (`recipe/model/` reads the graph
and the blocks.)
"""

from typing import Any, Literal

from declarative_train.core.packs import find_packs
from declarative_train.recipe.sections.parameters import ParameterSettings
from declarative_train.recipe.sections.section import Section

_WORDS = tuple(sorted(word for pack in find_packs().values() for word in pack.formats))
Format: Any = Literal[_WORDS] | None if _WORDS else None
DROP = "drop"
"""Value in place of a name: leave these tensors of the file out."""


class WeightsSection(Section):
    """Start values from a file or from a run."""

    path: str
    """A safetensors or torch file, the index of several (`model.safetensors.index.json`), or a run directory: its best
    checkpoint, else its last."""
    format: Format = None
    """Format of a published model, for a node of the matching block. `huggingface`: `path` is its folder (config.json,
    model.safetensors or its shards; transformers' or timm's), or its hub id in the cache of huggingface-hub. `timm` and
    `torchvision`: `path` is a file with its tensors, under their names there.
    """
    rename: dict[str, str] = {}
    """Prefixes of names in the file, and their replacements, or `drop` to remove them:
    {"encoder.blocks.": "layers.", "head.": drop}. With `*` or `{a,b}` a selector: {"h.*.attention": "layers.*.attn"}
    keeps the rest of the name, and {"{query,key,value}": qkv} joins tensors by rows.
    """
    exclude: tuple[str, ...] = ()
    """Selectors of parameters, by names below the node, that keep their own start values: [logits] for a head of
    another size. Their tensors in the file are not read.
    """
    statistics: Literal["run", "data"] = "run"
    """Origin of the statistics and class numbers of the fields that these parameters read, and of their targets: `run`,
    the run of the weights (a file of tensors has none); `data`: computed from the training rows.
    """


class ModelSection(Section):
    """The model: its graph, its blocks, start values, and settings of its parameters."""

    graph: dict[str, Any]
    """Nodes by name; the order is the default wiring."""
    blocks: dict[str, Any] = {}
    """Components written in the recipe language, by name."""
    weights: dict[str, WeightsSection] = {}
    """Start values by node: `{backbone: PATH}`, or a mapping with `path` below the node. A path alone, or a mapping
    with `path`: for the whole model.
    """
    parameters: dict[str, ParameterSettings] = {}
    """Settings for the parameters that a selector matches; later entries win key by key."""
