"""More cells, run by `cells.py`: weights in fewer bits, adapters, packed documents, pictures, and what is done with a
trained model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from declarative_train.components.layers.modules import attention
from declarative_train.inference.evaluate import evaluate
from declarative_train.inference.trained import open_trained
from declarative_train.packs.text.generation import Sampling, TextModel, generate
from tests.engine.made_recipes import merged, write_recipe
from tests.engine.runs import go
from tests.gpu.cells import DEVICE, LAYOUT, difference, memory_of, precision, recipe, recorded
from tests.gpu.recipes import MODELS
from tests.packs.text.test_samples import RECIPE as OF_TEXT
from tests.packs.text.test_samples import TEXT


def tuned(storage: str | None, kind: str) -> dict[str, Any]:
    """Changes of the model `mlp`: adapters next to weights held in fewer bits."""
    held = {} if storage is None else {"storage": storage}
    parameters = {
        "layers": held,
        "up": {**held, "adapter": {"type": kind, "rank": 3}},
        "lora_B": {"init": {"type": "normal", "std": 0.3}},
        "logits": {"frozen": False},
    }
    return {"model": {"parameters": {name: each for name, each in parameters.items() if each}}}


def adapters(folder: Path, storage: str | None, kind: str) -> dict[str, Any]:
    """Gradients next to double precision on the CPU, by precision."""
    changes = tuned(storage, kind)
    reference = recorded(folder, "mlp", changes, precision("fp64"), device="cpu")
    return {
        name: difference(reference, recorded(folder, "mlp", changes, precision(name)), name)
        for name in ("fp64", "fp32", "bf16", "fp16")
    }


def memory_of_held(folder: Path, storage: str | None, sizes: dict[str, Any]) -> dict[str, Any]:
    """The most that steps of LoRA on a llama took, foretold and measured."""
    layers = {"adapter": {"type": "lora", "rank": 8}} | ({} if storage is None else {"storage": storage})
    changes = {
        "model": {
            "graph": {"logits": MODELS["llama"]["model"]["graph"]["logits"] | sizes},
            "parameters": {"logits.layers": layers},
        },
        "training": {"precision": "bf16", "global_batch_size": 4, "optimizer": {"type": "adamw", "lr": 1e-4}},
        "evaluation": None,
        "layout": {"device": "auto", "hardware": "h100-sxm"},
    }
    return memory_of(write_recipe(folder, recipe("llama", changes)))


def documents(folder: Path, window: int | None) -> dict[str, Any]:
    """Attention of packed documents by their lengths next to a mask, in half precision: output and gradients."""
    torch.manual_seed(0)
    heads = attention.Heads(8, 2, 64, rotary=attention.Angles(1e4), window=window)
    layer = attention.SelfAttentionModule(512, heads, True, torch.bfloat16).to(DEVICE)
    segments = torch.randint(0, 2, (4, 256), device=DEVICE).cumsum(1) // 8
    x = torch.randn(4, 256, 512, device=DEVICE, dtype=torch.bfloat16)
    found, by_length = [], mock.Mock(side_effect=attention.attend_documents)
    for masked in (False, True):
        given = x.clone().requires_grad_()
        layer.zero_grad()
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(attention, "attend_documents", by_length))
            if masked:
                stack.enter_context(mock.patch.object(attention, "serves", return_value=False))
            y = layer(given, segments=segments)
        y.float().square().mean().backward()
        found.append([y, given.grad, *(item.grad for item in layer.parameters())])
    apart = [float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(*found, strict=True)]
    return {"apart": max(apart), "calls": by_length.call_count}


def channels_last(folder: Path, precision_name: str) -> dict[str, Any]:
    """A ResNet with the channels last next to one without, in one precision."""
    node = {
        "type": "resnet",
        "units": [1, 1],
        "unit": "basic",
        "width": 16,
        "out_features": 10,
        "norm": "batch_norm",
        "small_images": True,
    }
    node |= {"input": "image"}
    graph = {"model": {"graph": dict.fromkeys(MODELS["images"]["model"]["graph"], None) | {"logits": node}}}
    one, other = (
        recorded(folder, "images", graph, {"training": {"precision": precision_name, "channels_last": last}})
        for last in (False, True)
    )
    return {"apart": difference(one, other, "whole")}


def used(folder: Path) -> dict[str, Any]:
    """A short run; its evaluation and the logits of what it writes, here and on the CPU, and texts twice."""
    (folder / "made.txt").write_text(TEXT * 40)
    done = go(folder, merged(OF_TEXT, {"training": {"steps": 12, "precision": "fp32"}, **LAYOUT}))
    trained = open_trained(done.run_dir)
    values = [evaluate(trained, device=device, batch_size=8).as_json() for device in (DEVICE, "cpu")]
    models = [TextModel(trained, device) for device in (DEVICE, "cpu")]
    for model in models:
        model.begin(list(b"the cat sat on"))
    apart = float((models[0].logits - models[1].logits).abs().max())
    texts = ["".join(generate(models[0], "the cat", 20, Sampling(0.8), 0)) for _ in range(2)]
    return {"code": done.code, "values": values, "apart": apart, "texts": texts}
