"""Small models of images that transformers, timm and torchvision make, in the files that these publish, and recipes
that take them in."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from declarative_train.plan.tensor_maps import parts_in, shape_of

CLASSES = 5
SIZE = 32
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 32], "depths": [1, 2, 1], "layer_type": "basic"}
_BOTTLENECK = {"embedding_size": 8, "hidden_sizes": [32, 64], "depths": [2, 1], "layer_type": "bottleneck"}
_VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": SIZE,
}


class Case(NamedTuple):
    """`node`: what the recipe says of the block; `make`: the model."""

    library: str
    node: str
    make: Callable[[], Any]


def _transformers(kind: str, **told: Any) -> Callable[[], Any]:
    def make() -> Any:
        from transformers import AutoConfig, AutoModelForImageClassification

        return AutoModelForImageClassification.from_config(AutoConfig.for_model(kind, num_labels=CLASSES, **told))

    return make


def _timm(name: str, **told: Any) -> Callable[[], Any]:
    def make() -> Any:
        import timm

        return timm.create_model(name, num_classes=CLASSES, **told)

    return make


def _torchvision_resnet(unit: str, units: list[int], **told: Any) -> Callable[[], Any]:
    def make() -> Any:
        from torchvision.models import resnet

        return resnet.ResNet(getattr(resnet, unit), units, num_classes=CLASSES, **told)

    return make


def _torchvision_vit(**told: Any) -> Callable[[], Any]:
    def make() -> Any:
        from torchvision.models import VisionTransformer

        return VisionTransformer(image_size=SIZE, num_classes=CLASSES, **told)

    return make


_SIZES = "norm: batch_norm, out_features: 5"
CASES = {
    "resnet": Case("huggingface", "type: resnet", _transformers("resnet", **_RESNET)),
    "resnet_bottleneck": Case("huggingface", "type: resnet", _transformers("resnet", **_BOTTLENECK)),
    "timm_resnet": Case("timm", "type: resnet", _timm("resnet18", layers=(1, 1, 2, 1))),
    "timm_resnext": Case("timm", "type: resnet", _timm("resnext50_32x4d", layers=(1, 1, 1, 1))),
    "torchvision_resnet": Case(
        "torchvision",
        f"type: resnet, depth: 18, units: [1, 2, 1, 1], {_SIZES}",
        _torchvision_resnet("BasicBlock", [1, 2, 1, 1]),
    ),
    "torchvision_resnext": Case(
        "torchvision",
        f"type: resnet, units: [1, 1, 1, 1], cardinality: 2, group_width: 24, {_SIZES}",
        _torchvision_resnet("Bottleneck", [1, 1, 1, 1], groups=2, width_per_group=24),
    ),
    "vit": Case("huggingface", "type: vit", _transformers("vit", patch_size=8, **_VIT)),
    "vit_tanh": Case(
        "huggingface",
        "type: vit",
        _transformers("vit", patch_size=16, qkv_bias=False, hidden_act="gelu_pytorch_tanh", **_VIT),
    ),
    "timm_vit": Case("timm", "type: vit", _timm("vit_tiny_patch16_224", img_size=SIZE, depth=2)),
    "torchvision_vit": Case(
        "torchvision",
        "type: vit, layers: 2, width: 32, heads: 4, hidden: 48, eps: 1e-6, patch_size: 8, out_features: 5",
        _torchvision_vit(patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48),
    ),
}
QUICK = ("resnet_bottleneck", "torchvision_vit", "vit")


def cases(*quick: str) -> list[Any]:
    """Their names as parameters of a test; all but the `quick` ones are long."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.long) for name in sorted(CASES)]


def made(name: str) -> Any:
    """In evaluation mode. Every number is drawn, running statistics too, so that no zero and no one hides it."""
    torch.manual_seed(0)
    model = CASES[name].make().eval()
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * 0.3 if key.endswith("var") else torch.randn_like(tensor) * 0.02)
    return model


def save(name: str, model: Any, folder: Path) -> tuple[str, str]:
    """As its library publishes it. (the path, the format)."""
    library = CASES[name].library
    if library == "huggingface":
        model.save_pretrained(folder / "published")
    elif library == "timm":
        from timm.models._hub import save_for_hf

        save_for_hf(model, folder / "published", safe_serialization=True, model_args=_timm_args(model))
    else:
        torch.save(model.state_dict(), folder / "published.pth")
        return str(folder / "published.pth"), "torchvision"
    return str(folder / "published"), "huggingface"


def _timm_args(model: Any) -> dict[str, Any]:
    """What was said next to the architecture."""
    if hasattr(model, "blocks"):
        return {"img_size": SIZE, "depth": len(model.blocks)}
    return {"layers": [len(getattr(model, f"layer{place}")) for place in range(1, 5)]}


def recipe(folder: Path, node: str, path: str, form: str, more: str = "", exclude: str = "") -> str:
    return f"""
name: tuned
data:
  source: {{type: csv, path: {folder / "images.csv"}}}
  fields:
    image: {{columns: "p*", shape: [3, {SIZE}, {SIZE}]}}
    kind: {{type: category, column: kind, num_classes: {CLASSES}}}
model:
  graph:
    net: {{{node}, input: image}}
  weights: {{net: {{path: {path}, format: {form}{exclude}}}}}
objective: {{loss: {{type: cross_entropy, input: net, target: kind}}}}
training: {{steps: 2, global_batch_size: 4, optimizer: {{type: sgd, lr: 1e-2}}}}
layout: {{device: cpu}}
logging: {{dir: {folder / "runs"}}}
{more}
"""


def write(folder: Path, name: str, more: str = "", node: str = "", exclude: str = "") -> Any:
    """(the model, the path of a recipe that tunes it)."""
    model = made(name)
    where, form = save(name, model, folder)
    write_images(folder)
    told = CASES[name].node + ("" if form == "torchvision" else f", from: {where}") + node
    path = folder / "tuned.yaml"
    path.write_text(recipe(folder, told, where, form, more, exclude))
    return model, path


def write_images(folder: Path, rows: int = 16) -> None:
    draw = torch.Generator().manual_seed(3)
    with (folder / "images.csv").open("w") as file:
        out = csv.writer(file)
        out.writerow([*(f"p{place}" for place in range(3 * SIZE * SIZE)), "kind"])
        for row in torch.rand(rows, 3 * SIZE * SIZE, generator=draw):
            out.writerow([*(f"{value:.4f}" for value in row.tolist()), int(row[0] * CLASSES)])


def images(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def logits(found: Any) -> torch.Tensor:
    found = found.logits if hasattr(found, "logits") else found
    return found[0] if isinstance(found, tuple) else found


def theirs_as_ours(model: Any, plan: Any, module: Any, *, grad: bool) -> dict[str, torch.Tensor]:
    """Values or gradients by the names of ours, put together by the map; of gradients those of parameters alone."""
    tensors = plan.weights[0].tensors
    held = dict(model.named_parameters()) if grad else model.state_dict()
    held = {key: item.grad if grad else item for key, item in in_file(model, held).items()}
    found = {}
    names = dict(module.named_parameters()) if grad else module.state_dict()
    for name, ours in names.items():
        parts = parts_in(tensors, name)
        rows = [held[part.name].reshape(-1, *ours.shape[1:]) for part in parts]
        assert shape_of(parts, {key: tuple(item.shape) for key, item in held.items()}) == ours.shape
        found[name] = torch.cat(rows) if len(rows) > 1 else rows[0].reshape(ours.shape)
    return found


def in_file(model: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """By the names of a file: transformers renames some when it writes."""
    if not hasattr(model, "save_pretrained") or not hasattr(model, "config"):
        return tensors
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, tensors))
