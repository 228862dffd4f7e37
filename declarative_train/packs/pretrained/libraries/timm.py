"""Models of the library timm as a layer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import ShapeError
from declarative_train.packs.pretrained.libraries.files import (
    Files,
    match,
    reject_leftovers,
    several,
    tensor_origin,
    tensors_in,
)
from declarative_train.packs.pretrained.libraries.layer import Inputs, LibraryLayer
from declarative_train.packs.pretrained.libraries.problem import LibraryError

if TYPE_CHECKING:
    import torch
    from torch import nn


class Timm(LibraryLayer):
    """A model of the library timm (`pip install 'declarative_train[timm]'`): pictures (B, C, H, W) to scores of classes
    or features. A pipeline keeps it in one stage.

    The number of channels is that of the input `x`. Parameters have timm's names. Those that start at random are
    initialised by timm, with random numbers that depend on `seed` and the node's name.
    """

    library: ClassVar[str] = "timm"

    type: Literal["timm"] = "timm"
    name: Annotated[str, Field(min_length=1)] | None = None
    """The model, as `timm.create_model` takes it; by default the one in the config.json of `path`."""
    path: Annotated[str, Field(min_length=1)] | None = None
    """A folder as timm publishes it (config.json, model.safetensors), relative to the recipe, or a hub id (`timm/name`)
    in the cache of huggingface-hub. Nothing is downloaded."""
    pretrained: bool | Annotated[str, Field(min_length=1)] = False
    """`true`: start from the weights of `path`; or a `.safetensors` file. Each rank reads the rows that it holds."""
    classes: Annotated[int, Field(ge=0)] | None = None
    """Number of scores of the head; 0 leaves the head out and gives the pooled features. By default timm's number for
    the model."""
    output: Literal["logits", "features"] = "logits"
    """`logits`: the output of the model; `features`: the input of its pooling (B, C, H, W), or (B, T, D)."""
    options: dict[str, Any] = {}
    """Further arguments of `timm.create_model`, such as `img_size`, `drop_path_rate`, `global_pool`."""

    @property
    def is_pretrained(self) -> bool:  # type: ignore[override]
        return bool(self.pretrained)

    def check_inputs(self, inputs: Inputs) -> ShapeError | None:
        from declarative_train.packs.pretrained.libraries.modules.node import bare, foreign_batch_norms

        x = inputs["x"]
        if len(x.shape) != 3 or not x.is_floating:
            return ShapeError(f"`timm` takes pictures (B, C, H, W) of floats, and `x` is {x}", port="x")
        module = bare(self, inputs)
        files = self.files(module)
        if files is not None and files.missing:
            message = f"{several(files.missing)}: not in the files of `pretrained`, and start at random"
            return ShapeError(
                message, field="pretrained", help="to start all of them at random: `pretrained: false`", is_warning=True
            )
        foreign = foreign_batch_norms(module)
        if foreign:
            message = f"the running statistics of {several(foreign)} depend on the layout: timm has its own class"
            return ShapeError(message, field="name", is_warning=True)
        return None

    def make(self, inputs: Inputs, *, draws: bool) -> nn.Module:
        import timm

        name = self.name
        if name is None:
            raise LibraryError("neither `name` nor a `path` says which model it is", "`name: resnet18`")
        if not timm.is_model(name):
            close = get_close_matches(name.partition(".")[0], timm.list_models(), 1)
            raise LibraryError(
                f"the installed timm has no model `{name}`",
                f"did you mean {close[0]}?" if close else None,
                field="name",
            )
        given: dict[str, Any] = json.loads(json.dumps(self.options))
        taken = {"in_chans": "the channels of `x`", "num_classes": "`classes`", "pretrained": "`pretrained`"}
        for key, ours in taken.items():
            if key in given:
                raise LibraryError(f"`{key}` is {ours} here", f"remove `options.{key}`", field=f"options.{key}")
        if self.classes is not None:
            given["num_classes"] = self.classes
        if inputs:
            given["in_chans"] = inputs["x"].shape[0]
        try:
            made: nn.Module = timm.create_model(name, pretrained=False, **given)
        except Exception as problem:  # timm may raise anything for a wrong argument
            reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            raise LibraryError(
                f"`{name}` cannot be created: {reason}", field="options" if self.options else "name"
            ) from None
        return made

    def call(
        self, module: nn.Module, forward: Callable[..., Any], values: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        of: Any = module
        found: torch.Tensor = of.forward_features(values[0]) if self.output == "features" else forward(values[0])
        return found

    def save(self, model: nn.Module, inputs: Inputs, folder: str, classes: Sequence[str]) -> None:
        from timm.models import save_for_hf

        of: Any = model
        args: dict[str, Any] = json.loads(json.dumps(self.options)) | {"in_chans": inputs["x"].shape[0]}
        config = {"label_names": list(classes)} if len(classes) == of.num_classes else {}
        save_for_hf(of, folder, model_config=config, model_args=args, safe_serialization=True)
        place = os.path.join(folder, "config.json")
        with open(place, encoding="utf-8") as stream:
            written = json.load(stream)
        written["pretrained_cfg"]["input_size"] = list(inputs["x"].shape)  # size of the training images
        with open(place, "w", encoding="utf-8") as stream:
            json.dump(written, stream, indent=2)

    def load(self, folder: str, model: nn.Module) -> nn.Module:
        import timm

        found: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True)
        return found

    def files(self, module: nn.Module) -> Files | None:
        if self.pretrained is False:
            return None
        if self.pretrained is True and self.path is None:
            raise LibraryError(
                "`pretrained: true` takes the weights of a `path`, and there is none",
                f"`path: timm/{self.name or 'NAME'}` for a hub id, or `pretrained: FILE.safetensors`",
                field="pretrained",
            )
        place = self.path if self.pretrained is True else str(self.pretrained)
        assert place is not None
        if not os.path.isdir(place) and not place.endswith(".safetensors"):
            raise LibraryError(f"{place} is not a `.safetensors` file", "save it as one", field="pretrained")
        of: Any = module
        head: Any = of.get_classifier() if hasattr(of, "get_classifier") else None
        own = {id(each) for each in head.parameters()} if hasattr(head, "parameters") else set()
        heads = [name for name, each in module.named_parameters() if id(each) in own]
        origins = {name: tensor_origin(name, header) for name, header in tensors_in(place).tensors.items()}
        found = match(module, origins, sorted(origins.keys() - module.state_dict().keys()), heads)
        odd = [name for name in found.missing if name not in heads]
        if odd:
            raise LibraryError(f"the files are not of this model: they lack {several(odd)}", field="pretrained")
        reject_leftovers(found, str(self.name), "give the files of this model", field="pretrained")
        return found
