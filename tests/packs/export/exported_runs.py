"""Small models of several kinds, a few steps each: what is exported."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from tests.inference.made_runs import HOUSE_COLUMNS, HOUSES, WINE, WINE_COLUMNS, house_rows, wine_rows, write_csv

DIGITS = Path(__file__).parents[3] / "recipes" / "data" / "digits.csv"
_HEAD = """
layout: {device: cpu}
logging: {dir: runs}
training: {steps: 3, global_batch_size: 16, optimizer: {type: adam, lr: 0.01}}
"""

CONV = (
    """
name: conv
data:
  source: {type: csv, path: digits.csv}
  fields:
    image: {columns: "p*", scale: 0.0625, shape: [1, 8, 8]}
    digit: {type: category, column: label, num_classes: 10}
model:
  graph:
    stem: {type: conv2d, out_channels: 8, kernel_size: 3, padding: 1, bias: false, input: image}
    norm: {type: batch_norm}
    act: {type: relu}
    down: {type: conv2d, out_channels: 8, kernel_size: 3, stride: 2}
    out: relu(down)
    pooled: mean(out, dim=[2, 3])
    drop: {type: dropout, p: 0.2}
    logits: {type: linear, out_features: 10}
objective: {loss: {type: cross_entropy, input: logits, target: digit}}
"""
    + _HEAD
)

GPT = """
name: gpt
data:
  source: {type: text, path: text.txt, tokenizer: bytes}
  window: {length: 17, stride: 16}
  fields:
    tokens: {column: tokens, rows: ":-1"}
    next: {column: tokens, rows: "1:"}
model:
  graph:
    gpt: {type: gpt, vocabulary: 256, layers: 2, width: 16, heads: 2, input: tokens}
objective: {loss: {type: cross_entropy, input: gpt, target: next}}
""" + _HEAD.replace("steps: 3,", "steps: 3, precision: bf16,")

LSTM = (
    """
name: lstm
data:
  source: {type: csv, path: load.csv}
  window: {length: 12, stride: 6, by: meter, sort: time}
  fields:
    past: {columns: [load, hour], rows: ":8", normalize: standard}
    future: {column: load, rows: "8:", normalize: standard}
model:
  graph:
    lstm: {type: lstm, hidden_size: 6, num_layers: 2, dropout: 0.1, input: past}
    last: lstm.hidden[:, -1]
    next: {type: linear, out_features: 4}
objective: {loss: {type: l1, input: next, target: future}}
"""
    + _HEAD
)

VAE = (
    """
name: vae
data:
  source: {type: csv, path: digits.csv}
  fields: {image: {columns: "p*", scale: 0.0625}}
model:
  graph:
    encoder: {type: mlp, hidden: [16], activation: gelu, input: image}
    mu: {type: linear, out_features: 4, input: encoder}
    log_var: {type: linear, out_features: 4, input: encoder}
    z: mu + exp(log_var / 2) * randn_like(mu)
    decoder: {type: mlp, hidden: [16], out_features: 64, activation: gelu}
    kl: -0.5 * sum(1 + log_var - mu ** 2 - exp(log_var), dim=-1)
objective:
  losses:
    image: {type: mse, input: decoder, target: image}
    kl: {type: mean, input: kl, weight: 0.01}
"""
    + _HEAD
)

PLUGIN = WINE.replace("name: wine", "name: plugged\nplugins: [./layers.py]").replace(
    "act: {type: relu}", "act: {type: swing, width: 8}"
)
LAYERS = """
import torch
from torch import nn


class Swing(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.sin(self.rate * x)
"""
EMPTY_GAPS = HOUSES.replace("name: houses", "name: gaps").replace(
    'x: {columns: "f*", normalize: standard}', 'x: {columns: "f*", normalize: minmax, missing: mean, scale: 3.0}'
)

RECIPES = {
    "conv": CONV,
    "gaps": EMPTY_GAPS,
    "gpt": GPT,
    "houses": HOUSES,
    "lstm": LSTM,
    "plugged": PLUGIN,
    "vae": VAE,
    "wine": WINE,
}


def write_data(folder: Path) -> None:
    write_csv(folder / "wine.csv", WINE_COLUMNS, wine_rows())
    rows = house_rows()
    write_csv(
        folder / "houses.csv", HOUSE_COLUMNS, [["" if at % 9 == 4 else row[0], *row[1:]] for at, row in enumerate(rows)]
    )
    (folder / "digits.csv").write_text("".join(DIGITS.read_text().splitlines(keepends=True)[:200]))
    (folder / "text.txt").write_text("the cat sat on the mat, and then it slept until dawn. " * 60)
    (folder / "layers.py").write_text(LAYERS)
    hours = np.arange(240)
    with (folder / "load.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["meter", "time", "load", "hour"])
        writer.writerows(
            [meter, hour, 1000 + 3 * np.sin(hour / 4 + meter), hour % 24] for meter in (0, 1) for hour in hours
        )
