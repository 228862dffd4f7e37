"""What LoRA of a Llama of 8 billion parameters takes: the table of docs/fine-tuning.md, by traced plans."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from declarative_train.__main__ import main

DOCS = Path(__file__).parents[2] / "docs" / "fine-tuning.md"
RECIPE = """
name: tuned
data:
  source: {type: synthetic, kind: tokens, vocabulary: 128256, rows: 400000}
  window: {length: 2049, stride: 2048}
  fields: {tokens: {column: tokens, rows: ":-1"}, next: {column: tokens, rows: "1:"}}
model:
  graph:
    lm: {type: llama, vocabulary: 128256, layers: 32, width: 4096, heads: 32, kv_heads: 8, hidden: 14336, input: tokens}
  parameters: {lm: {adapter: {type: lora, rank: 16, alpha: 32}}BASE}
objective: {loss: {type: cross_entropy, input: lm, target: next}}
training:
  steps: 10
  global_batch_size: GPUS
  precision: PRECISION
  activation_checkpointing: blocks
  optimizer: {type: adamw, lr: 2e-4}
parallelism: MODE
layout: {gpus: GPUS, hardware: KIND}
"""
_ROW = re.compile(r"\| (\d) x (\S+) \| (\w+) \| (\w+) \| (\w+) \| ([\d.]+ GB) \| ([\d.]+ GB) \| (fits|does not fit) \|")
BASES = {"fp32": "", "bf16": ", lm.*: {storage: bf16}"} | {
    name: f", lm.*: {{storage: bf16}}, lm.layers: {{storage: {name}}}" for name in ("int8", "nf4")
}
ROWS = _ROW.findall(DOCS.read_text())


def test_the_table_has_both_sizes() -> None:
    assert {kind for _, kind, *_ in ROWS} == {"a100-sxm-80gb", "rtx-4090"}
    assert len(ROWS) == 9
    assert {base for _, _, _, _, base, *_ in ROWS} == set(BASES)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_a_plan_says_what_the_docs_say(
    tmp_path: Path, row: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    gpus, kind, mode, precision, base, parameters, together, fits = row
    given = {"GPUS": gpus, "KIND": kind, "MODE": mode, "PRECISION": precision, "BASE": BASES[base]}
    path = tmp_path / "tuned.yaml"
    path.write_text(re.sub("GPUS|KIND|MODE|PRECISION|BASE", lambda found: given[found[0]], RECIPE))
    assert main(["plan", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "memory per device, traced" in out
    assert "8,030,261,248 of them frozen" in out
    (line,) = re.findall(r"^ +each device .*$", out, re.MULTILINE)
    sizes = re.findall(r"[\d.]+ \w?B", line)
    assert (sizes[0], sizes[-1]) == (parameters, together)
    assert ("of 23.2 GB usable" in out + err) == (fits != "fits")
