"""Models of the GPU benchmark, each as a recipe and as people write it by hand, with the same sizes.

The tiny sizes are for trying the program on a CPU. Their times mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Job:
    """Model of the benchmark. `rows`: samples of a step. `unit`: what throughput counts (tokens or images).
    `units_per_row`: number of these in a sample."""

    name: str
    rows: int
    unit: str
    units_per_row: int
    sizes: dict[str, Any]
    checkpointing: str = "none"


def jobs(tiny: bool) -> tuple[Job, ...]:
    if tiny:
        gpt = {"vocabulary": 96, "layers": 2, "width": 32, "heads": 4, "tokens": 16}
        llama = {**gpt, "kv_heads": 2, "hidden": 64}
        resnet = {"pixels": 32, "classes": 10, "width": 8}
        return (
            Job("gpt2_124m", 4, "tokens", 16, gpt),
            Job("llama_1b", 2, "tokens", 16, llama, "selective"),
            Job("resnet_50", 4, "images", 1, resnet),
        )
    gpt = {"vocabulary": 50304, "layers": 12, "width": 768, "heads": 12, "tokens": 1024}
    llama = {
        "vocabulary": 128256,
        "layers": 16,
        "width": 2048,
        "heads": 32,
        "kv_heads": 8,
        "hidden": 8192,
        "tokens": 4096,
    }
    return (
        Job("gpt2_124m", 16, "tokens", 1024, gpt),
        Job("llama_1b", 4, "tokens", 4096, llama),
        Job("resnet_50", 256, "images", 1, {"pixels": 224, "classes": 1000, "width": 64}),
    )


def write_data(job: Job, path: Path, steps: int = 4) -> None:
    """Write the samples of `steps` steps, which are used again and again: reading files is not measured."""
    random = np.random.default_rng(0)
    rows = steps * job.rows
    if job.unit == "images":
        pixels, classes = job.sizes["pixels"], job.sizes["classes"]
        images = random.standard_normal((rows, 3, pixels, pixels), dtype=np.float32)
        np.savez(path, x=images, y=random.integers(0, classes, rows))
        return
    tokens = random.integers(0, job.sizes["vocabulary"], (rows, job.sizes["tokens"] + 1))
    np.savez(path, x=tokens[:, :-1], y=tokens[:, 1:])


def recipe(job: Job, data: Path, *, compiled: bool, layout: dict[str, Any]) -> dict[str, Any]:
    sizes = {key: value for key, value in job.sizes.items() if key not in ("tokens", "pixels", "classes")}
    if job.unit == "images":
        node = {"type": "resnet", "depth": 50, "out_features": job.sizes["classes"], "norm": "batch_norm", **sizes}
        fields: dict[str, Any] = {
            "x": {"column": "x"},
            "y": {"type": "category", "column": "y", "num_classes": job.sizes["classes"]},
        }
        optimizer: dict[str, Any] = {"type": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    else:
        node = {"type": "gpt" if job.name.startswith("gpt") else "llama", **sizes}
        fields = {name: {"column": name, "dtype": "int64"} for name in "xy"}
        optimizer = {"type": "adamw", "lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}
    return {
        "name": job.name,
        "data": {"source": {"type": "npy", "path": str(data)}, "fields": fields},
        "model": {"graph": {"logits": {**node, "input": "x"}}},
        "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y"}},
        "training": {
            "steps": 1000,
            "global_batch_size": job.rows,
            "optimizer": optimizer,
            "precision": "bf16",
            "compile": compiled,
            "activation_checkpointing": job.checkpointing,
        },
        "parallelism": "single",
        "layout": layout,
    }


def by_hand(job: Job) -> nn.Module:
    makers: dict[str, Callable[[dict[str, Any]], nn.Module]] = {
        "gpt2_124m": _gpt,
        "llama_1b": _llama,
        "resnet_50": _resnet,
    }
    return makers[job.name](job.sizes)


def _gpt(sizes: dict[str, Any]) -> nn.Module:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    width, heads = sizes["width"], sizes["heads"]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).flatten(2))
            down: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
            return x + down

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(sizes["vocabulary"], width)
            self.pos = nn.Parameter(0.02 * torch.randn(sizes["tokens"], width))
            self.layers = nn.ModuleList([Block() for _ in range(sizes["layers"])])
            self.norm = nn.LayerNorm(width)
            self.logits = nn.Linear(width, sizes["vocabulary"], bias=False)
            nn.init.normal_(self.embed.weight, std=0.02)
            self.logits.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens) + self.pos
            for layer in self.layers:
                x = layer(x)
            logits: Tensor = self.logits(self.norm(x))
            return logits

    return Gpt()


def _llama(sizes: dict[str, Any]) -> nn.Module:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    width, heads, kv_heads, hidden = (sizes[key] for key in ("width", "heads", "kv_heads", "hidden"))
    size = width // heads

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.float().chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
            self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.k, self.v = (nn.Linear(width, kv_heads * size, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            normed = self.norm1(x)
            q, k, v = (layer(normed).unflatten(-1, (-1, size)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            q, k = turned(q, cos, sin), turned(k, cos, sin)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.out(seen.transpose(1, 2).flatten(2))
            normed = self.norm2(x)
            down: Tensor = self.down(F.silu(self.gate(normed)) * self.up(normed))
            return x + down

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(sizes["vocabulary"], width)
            self.layers = nn.ModuleList([Block() for _ in range(sizes["layers"])])
            self.norm = nn.RMSNorm(width, 1e-5)
            self.logits = nn.Linear(width, sizes["vocabulary"], bias=False)
            powers = 10000.0 ** (-torch.arange(0, size, 2) / size)
            angles = torch.outer(torch.arange(sizes["tokens"]), powers)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            logits: Tensor = self.logits(self.norm(x))
            return logits

    return Llama()


def _resnet(sizes: dict[str, Any]) -> nn.Module:
    import torch
    from torch import Tensor, nn

    base = sizes["width"]

    class Bottleneck(nn.Module):
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True))
            self.b = nn.Sequential(
                nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)
            )
            self.c = nn.Sequential(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
            self.skip: nn.Module = nn.Identity()
            if stride != 1 or before != 4 * width:
                self.skip = nn.Sequential(
                    nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
                )

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.c(self.b(self.a(x))) + self.skip(x))

    parts: list[nn.Module] = [
        nn.Conv2d(3, base, 7, 2, 3, bias=False), nn.BatchNorm2d(base), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    before = base
    for number, depth in enumerate((3, 4, 6, 3)):
        width = base << number
        for unit in range(depth):
            parts.append(Bottleneck(before, width, 2 if number and not unit else 1))
            before = 4 * width
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, sizes["classes"])]
    return nn.Sequential(*parts).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
