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
    """Initial values of parameters, from a file or from a run."""

    path: str
    """A safetensors or torch file, the index of several files (`model.safetensors.index.json`), or a run directory. Of
    a run, the best checkpoint is used, else the last.
    """
    format: Format = None
    """Format of a published model, if the node is the matching block. `huggingface`: `path` is the model's folder
    (config.json and model.safetensors or its shards, from transformers or timm), or its hub id in the cache of
    huggingface-hub. `timm` and `torchvision`: `path` is a file of tensors that have the names of that library.
    """
    rename: dict[str, str] = {}
    """{prefix of names in the file: its replacement, or `drop` to leave these tensors out}, such as {"encoder.blocks.":
    "layers.", "head.": drop}. A key with `*` or `{a,b}` is a selector: {"h.*.attention": "layers.*.attn"} keeps the
    rest of the name, and {"{query,key,value}": qkv} joins tensors by rows.
    """
    exclude: tuple[str, ...] = ()
    """Selectors of parameters that keep their own start values, by names below the node, such as [logits] for a head of
    another size. Their tensors in the file are not read.
    """
    statistics: Literal["run", "data"] = "run"
    """Origin of the statistics and class numbers of the fields that these parameters read, and of the targets. `run`:
    the run that trained the weights (a file of tensors has none). `data`: computed from the training rows.
    """


class ModelSection(Section):
    """The model: its graph, its blocks, start values, and settings of its parameters."""

    graph: dict[str, Any]
    """Nodes by name. A node without `input` reads the node above it."""
    blocks: dict[str, Any] = {}
    """Blocks by name: graphs that nodes can use like a layer."""
    weights: dict[str, WeightsSection] = {}
    """Start values from files or runs, by node: `{backbone: PATH}`, or `{backbone: {path: PATH, ...}}`. A path alone,
    or a mapping with `path`, is for the whole model.
    """
    parameters: dict[str, ParameterSettings] = {}
    """Settings for the parameters that a selector matches. If several selectors set the same key, the last one counts.
    """
