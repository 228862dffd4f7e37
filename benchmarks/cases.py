"""Cases of the benchmark: for each, a recipe and the same model by hand, with a file of generated data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

HEADS = 4
WIDTH = 128
TOKENS = 128
VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class Case:
    """Case of the benchmark. `recipe`: YAML text with placeholders that `benchmarks.__main__` fills. `save_every`:
    steps from checkpoint to checkpoint; this is about a second."""

    name: str
    batch_size: int
    save_every: int
    recipe: str
    make_data: Callable[[Path], None]
    make_model: Callable[[], nn.Module]
    make_loss: Callable[[], Callable[[Tensor, Tensor], Tensor]]


TRAINING = """
training:
  epochs: {epochs}
  global_batch_size: {batch_size}
  optimizer: {{type: adam, lr: 1e-3}}
parallelism: {parallelism}
layout: {{gpus: {gpus}, device: cpu}}
logging: {{dir: "{runs}", every: 10 steps}}
checkpoint: {{every: {save_every} steps, keep: 2}}
"""

MLP = """
name: {name}
data:
  source: {{type: npy, path: "{data}"}}
  fields:
    x: {{column: x}}
    y: {{type: category, column: y, num_classes: {classes}}}
model:
  graph:
    hidden: {{type: linear, out_features: 128, input: x}}
    act: {{type: relu}}
    logits: {{type: linear, out_features: {classes}}}
objective: {{loss: {{type: cross_entropy, input: logits, target: y}}}}
"""

CNN = """
name: {name}
data:
  source: {{type: npy, path: "{data}"}}
  fields:
    x: {{column: x}}
    y: {{type: category, column: y, num_classes: {classes}}}
model:
  graph:
    conv1: {{type: conv2d, out_channels: 16, kernel_size: 3, padding: 1, input: x}}
    act1: {{type: relu}}
    pool1: {{type: max_pool2d, kernel_size: 2}}
    conv2: {{type: conv2d, out_channels: 32, kernel_size: 3, padding: 1}}
    act2: {{type: relu}}
    pool2: {{type: max_pool2d, kernel_size: 2}}
    flat: {{type: flatten}}
    logits: {{type: linear, out_features: {classes}}}
objective: {{loss: {{type: cross_entropy, input: logits, target: y}}}}
"""

RESNET = """
name: {name}
data:
  source: {{type: npy, path: "{data}"}}
  fields:
    x: {{column: x}}
    y: {{type: category, column: y, num_classes: {classes}}}
model:
  graph:
    logits:
      {{type: resnet, depth: 18, width: 16, norm: batch_norm, small_images: true, out_features: {classes}, input: x}}
objective: {{loss: {{type: cross_entropy, input: logits, target: y}}}}
"""

GPT = """
name: {name}
data:
  source: {{type: npy, path: "{data}"}}
  fields:
    x: {{column: x, dtype: int64}}
    y: {{type: category, column: y, num_classes: 256}}
model:
  blocks:
    decoder:
      inputs: [x]
      graph:
        norm1: {{type: layer_norm}}
        attn: {{type: self_attention, heads: 4, causal: true}}
        mid: x + attn
        norm2: {{type: layer_norm}}
        up: {{type: linear, out_features: 512}}
        act: {{type: gelu}}
        down: {{type: linear, out_features: 128}}
        out: mid + down
      output: out
  graph:
    embed: {{type: embedding, num_embeddings: 256, embedding_dim: 128, input: x}}
    pos: {{type: learned_positions}}
    layers: {{type: decoder, repeat: 4}}
    norm: {{type: layer_norm}}
    logits: {{type: linear, out_features: 256, bias: false}}
objective: {{loss: {{type: cross_entropy, input: logits, target: y}}}}
"""


def rows(num_rows: int, shape: tuple[int, ...], num_classes: int) -> Callable[[Path], None]:
    """Return a function that writes a file of samples: normal numbers around one centre per class. A fifth of the
    labels is wrong, so that the loss does not go to 0: it would leave denormal numbers, with which a processor is
    slow."""

    def make(path: Path) -> None:
        random = np.random.default_rng(0)
        y = random.integers(0, num_classes, num_rows)
        centres = random.normal(size=(num_classes, *shape))
        x = (centres[y] + random.normal(size=(num_rows, *shape))).astype(np.float32)
        y = np.where(random.random(num_rows) < 0.2, random.integers(0, num_classes, num_rows), y)
        np.savez(path, x=x, y=y)

    return make


def token_rows(num_rows: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        tokens = np.random.default_rng(0).integers(0, VOCABULARY, (num_rows, TOKENS + 1))
        np.savez(path, x=tokens[:, :-1], y=tokens[:, 1:])

    return make


def mlp(features: int, classes: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torch import nn

        return nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes))

    return make


def cnn() -> nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 10),
    )


def resnet() -> nn.Module:
    """Return a ResNet-18 (He et al., 2016) for images of 32 x 32, with 16 channels in the first stage."""
    import torch.nn.functional as F
    from torch import nn

    class Unit(nn.Module):
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(width)
            self.skip = nn.Identity()
            if before != width:
                self.skip = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.norm1(self.conv1(x)), inplace=True)
            return F.relu(self.norm2(self.conv2(y)) + self.skip(x), inplace=True)

    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    units = [
        Unit(16 * 2 ** (stage - (stage > 0 and at == 0)), 16 * 2**stage, 2 if stage and at == 0 else 1)
        for stage in range(4)
        for at in range(2)
    ]
    return nn.Sequential(*stem, *units, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def gpt() -> nn.Module:
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).flatten(2))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attn = Attention()
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.positions = nn.Parameter(torch.zeros(TOKENS, WIDTH))
            self.layers = nn.ModuleList(Decoder() for _ in range(4))
            self.norm = nn.LayerNorm(WIDTH)
            self.logits = nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens) + self.positions
            for layer in self.layers:
                x = layer(x)
            logits: Tensor = self.logits(self.norm(x))
            return logits

    return Gpt()


def class_loss() -> Callable[[Tensor, Tensor], Tensor]:
    import torch.nn.functional as F

    return F.cross_entropy


def token_loss() -> Callable[[Tensor, Tensor], Tensor]:
    import torch.nn.functional as F

    return lambda logits, target: F.cross_entropy(logits.flatten(0, -2), target.flatten())


CASES = {
    case.name: case
    for case in (
        Case(
            "mlp_10000x20",
            100,
            2_000,
            MLP.replace("{classes}", "10") + TRAINING,
            rows(10_000, (20,), 10),
            mlp(20, 10),
            class_loss,
        ),
        Case(
            "mlp_1000x10",
            100,
            2_000,
            MLP.replace("{classes}", "2") + TRAINING,
            rows(1_000, (10,), 2),
            mlp(10, 2),
            class_loss,
        ),
        Case(
            "cnn_3x32x32",
            32,
            125,
            CNN.replace("{classes}", "10") + TRAINING,
            rows(2_000, (3, 32, 32), 10),
            cnn,
            class_loss,
        ),
        Case(
            "resnet18_3x32x32",
            32,
            10,
            RESNET.replace("{classes}", "10") + TRAINING,
            rows(1_024, (3, 32, 32), 10),
            resnet,
            class_loss,
        ),
        Case("gpt_4x128", 16, 40, GPT + TRAINING, token_rows(640), gpt, token_loss),
    )
}
