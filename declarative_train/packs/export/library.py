"""Export of a node that is a model of transformers or timm, in the format of the library (`--to huggingface`, `--to
timm`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from declarative_train.graph.graph import Graph
from declarative_train.graph.read import is_library
from declarative_train.inference.trained import Trained
from declarative_train.packs.export.export_errors import ExportFailure
from declarative_train.packs.export.model_card import card_of, no_tokenizer
from declarative_train.packs.export.published import classes_learned, tokenizer_files
from declarative_train.packs.pretrained.libraries.modules.to_library import find_difference, library_model
from declarative_train.packs.pretrained.published import TIMM
from declarative_train.plan.checkpoint_files import PLAN
from declarative_train.plan.codec import to_masked_json


class LibraryModel(NamedTuple):
    """Node that is a model of a library: the path of the node, the name of the library, and the fields of the node's
    component."""

    node: str
    library: str
    fields: dict[str, object]


def library_models(graph: Graph, prefix: str = "") -> Iterator[LibraryModel]:
    for node in graph.nodes:
        if node.graph is not None:
            yield from library_models(node.graph, f"{prefix}{node.name}.")
        elif node.component is not None and is_library(node.component):
            yield LibraryModel(f"{prefix}{node.name}", str(node.component["type"]), node.component)


def write_library_model(trained: Trained, found: LibraryModel, folder: Path, dtype: torch.dtype | None) -> None:
    """Write all files of a node's model with the library's own code. Raises ExportFailure if the library cannot write
    the model, or if the model differs after loading the files."""
    node: Any = trained.module().get_submodule(found.node)
    layer = node._dtrain_layer
    model = library_model(node, next(node.parameters()).dtype if dtype is None else dtype)
    try:
        layer.save(model, node._dtrain_inputs, str(folder), classes_learned(trained, found.node))
        odd = find_difference(model, layer.load(str(folder), model))
    except Exception as problem:  # libraries raise many kinds of exceptions
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise ExportFailure(f"{found.library} cannot write `{found.node}`, or read it back: {reason}") from problem
    if odd is not None:
        raise ExportFailure(f"{odd} differs from the model when {found.library} loads it back")
    (folder / PLAN).write_text(to_masked_json(trained.plan), encoding="utf-8")
    (folder / "README.md").write_text(_card(trained, found, type(model).__name__, folder), encoding="utf-8")


def _card(trained: Trained, found: LibraryModel, kind: str, folder: Path) -> str:
    begun = found.fields.get("path")
    if found.library == TIMM:
        code = ["import timm", "", 'model = timm.create_model("local-dir:THIS FOLDER", pretrained=True)']
        node = "{type: timm, path: THIS FOLDER, pretrained: true, input: image}"
        note = "Prepare pictures as the recipe does: `mean` and `std` in config.json are timm's defaults."
        kind = str(found.fields["name"])
    else:
        code = [f"from transformers import {kind}", "", f'model = {kind}.from_pretrained("THIS FOLDER")']
        node = "{type: transformers, path: THIS FOLDER, input: tokens}"
        copied = tokenizer_files(trained, None if begun is None else str(begun), folder)
        note = no_tokenizer(copied)
    return card_of(trained, kind, found.library, code, ["model:", "  graph:", f"    net: {node}"], note)
