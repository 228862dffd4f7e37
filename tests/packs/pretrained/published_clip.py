"""A small CLIP that transformers makes, in a folder as it is published, and a recipe that tunes it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch

SIZE, WORDS, TOKENS = 16, 40, 7
END = 39
_TOWER = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT: dict[str, Any] = _TOWER | {"vocab_size": WORDS, "hidden_size": 24, "max_position_embeddings": 9}
VISION: dict[str, Any] = _TOWER | {"hidden_size": 32, "image_size": SIZE, "patch_size": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "clip": {"text_config": TEXT | {"eos_token_id": END}, "vision_config": VISION, "projection_dim": 20},
    "clip_of_before": {  # the state at the greatest token counts, whatever the config says of the end
        "text_config": TEXT | {"eos_token_id": 2, "hidden_act": "gelu"},
        "vision_config": VISION | {"hidden_act": "gelu", "num_channels": 1},
        "projection_dim": 20,
        "logit_scale_init_value": 1.5,
    },
}


def make(name: str, folder: Path, **save: Any) -> Any:
    """The model, in evaluation mode, with its folder written. Every parameter is drawn, so that no zero hides one."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(**CONFIGS[name])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder, **save)
    return model


def channels(name: str) -> int:
    found: int = CONFIGS[name]["vision_config"].get("num_channels", 3)
    return found


def recipe(folder: Path, name: str, more: str = "", node: str = "") -> str:
    """The loss of CLIP over groups of 4 pairs."""
    return f"""
name: tuned
data:
  source: {{type: csv, path: {folder / "pairs.csv"}}}
  fields:
    image: {{columns: "p*", shape: [{channels(name)}, {SIZE}, {SIZE}]}}
    words: {{columns: "w*", dtype: int64}}
model:
  graph:
    both: {{type: clip, from: {folder / "published"}, inputs: {{image: image, tokens: words}}{node}}}
  weights: {{path: {folder / "published"}, format: huggingface}}
objective:
  loss:
    {{type: info_nce, input: both.image, target: both.text, normalize: false, temperature: 1.0, over: 4 samples}}
training: {{steps: 2, global_batch_size: 4, optimizer: {{type: sgd, lr: 1e-2}}}}
layout: {{device: cpu}}
logging: {{dir: {folder / "runs"}}}
{more}
"""


def write(folder: Path, name: str, more: str = "", node: str = "", **save: Any) -> Any:
    """(the model, the path of a recipe that tunes it)."""
    model = make(name, folder / "published", **save)
    images, words = pairs(name, 16)
    with (folder / "pairs.csv").open("w") as file:
        out = csv.writer(file)
        pixels = images.flatten(1)
        out.writerow([*(f"p{place}" for place in range(pixels.shape[1])), *(f"w{place}" for place in range(TOKENS))])
        for row, text in zip(pixels.tolist(), words.tolist(), strict=True):
            out.writerow([*(f"{value:.4f}" for value in row), *text])
    path = folder / "tuned.yaml"
    path.write_text(recipe(folder, name, more, node))
    return model, path


def pairs(name: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, and texts of several lengths: what stands behind the end is padding, of the same number or another."""
    draw = torch.Generator().manual_seed(3)
    images = torch.randn(rows, channels(name), SIZE, SIZE, generator=draw)
    words = torch.randint(3, END, (rows, TOKENS), generator=draw)
    for row in range(rows):
        end = 2 + row % (TOKENS - 2)
        words[row, end] = END
        words[row, end + 1 :] = END if row % 2 else 0
    return images, words
