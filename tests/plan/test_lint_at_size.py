"""Lint of a published model of 70 billion parameters: by the headers of its files, which hold no number here."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from declarative_train.__main__ import main

LAYERS, WIDTH, HIDDEN, VOCABULARY, SHARDS = 80, 8192, 28672, 128256, 30
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": HIDDEN,
    "hidden_act": "silu",
}
RECIPE = """
name: large
data:
  source: {type: synthetic, kind: tokens, rows: 4000}
  window: {length: 65}
  fields: {tokens: {column: tokens, rows: ":-1"}, next: {column: tokens, rows: "1:"}}
model:
  graph: {lm: {type: llama, from: base, input: tokens}}
  weights: {path: base, format: huggingface}
  parameters: {attn: {adapter: {type: lora, rank: 8}}}
objective: {loss: {type: cross_entropy, input: lm, target: next}}
training: {steps: 10, global_batch_size: 8, optimizer: {type: adamw, lr: 2e-4}}
layout: {device: cpu}
"""


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    found["lm_head.weight"] = (VOCABULARY, WIDTH)
    for at in range(LAYERS):
        top = f"model.layers.{at}."
        found |= {f"{top}self_attn.{each}_proj.weight": (WIDTH, WIDTH) for each in "qo"}
        found |= {f"{top}self_attn.{each}_proj.weight": (1024, WIDTH) for each in "kv"}
        found |= {f"{top}mlp.{each}_proj.weight": (HIDDEN, WIDTH) for each in ("gate", "up")}
        found |= {f"{top}mlp.down_proj.weight": (WIDTH, HIDDEN)}
        found |= {f"{top}{each}_layernorm.weight": (WIDTH,) for each in ("input", "post_attention")}
    return found


def write(folder: Path) -> None:
    """Files as large as they say, of which the headers alone take place on the disk."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    files: dict[str, dict[str, object]] = {}
    weight_map, ends = {}, dict.fromkeys(range(SHARDS), 0)
    for at, (name, shape) in enumerate(shapes().items()):
        number = at * SHARDS // len(shapes())
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        size = 2
        for side in shape:
            size *= side
        place = [ends[number], ends[number] + size]
        files.setdefault(file, {})[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": place}
        ends[number], weight_map[name] = place[1], file
    for number, (file, header) in enumerate(files.items()):
        text = json.dumps(header).encode()
        with open(folder / file, "wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.truncate(8 + len(text) + ends[number])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.long
@pytest.mark.timeout(120)
def test_70b_is_linted_by_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0.7 s of an idle processor beyond imports; the limit is for one that has other things to do."""
    write(tmp_path / "base")
    assert sum(each.stat().st_size for each in (tmp_path / "base").iterdir()) > 140e9
    assert sum(each.stat().st_blocks for each in (tmp_path / "base").iterdir()) * 512 < 4e6
    path = tmp_path / "large.yaml"
    path.write_text(RECIPE)
    main(["lint", str(path)])  # imports what it needs
    begin_s = time.process_time()
    assert main(["lint", str(path)]) == 0
    assert time.process_time() - begin_s < 2.5
    name = "model-00003-of-00030.safetensors"
    os.rename(tmp_path / "base" / name, tmp_path / "base" / "elsewhere")
    assert main(["lint", str(path)]) == 1
    assert f"it refers to {name}, which does not exist in its folder" in capsys.readouterr().out
