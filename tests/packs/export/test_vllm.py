"""vLLM reads an exported folder and continues prompts with the same tokens.

It pins another torch: `VLLM_PYTHON` is the interpreter of an environment that has it (docs/exporting.md).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import declarative_train as dt
from declarative_train.packs.export.export import export
from declarative_train.packs.text.generation import TextModel, generate
from declarative_train.packs.text.sampling import Sampling
from tests.record import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif("VLLM_PYTHON" not in os.environ, reason="VLLM_PYTHON does not name a Python with vLLM"),
    pytest.mark.timeout(600),
]
RECIPE = """
name: small
data:
  source: {{type: jsonl, path: {data}/facts.jsonl}}
  fields: {{text: {{type: tokens, column: text, tokenizer: {data}/tiny_llama, length: 49, eos: true}}}}
model:
  graph:
    tokens: text[:, :-1]
    next: text[:, 1:]
    lm: {{type: llama, vocabulary: 400, layers: 2, width: 64, heads: 2, kv_heads: 1, hidden: 96, input: tokens}}
objective: {{loss: {{type: cross_entropy, input: lm, target: next}}}}
training: {{steps: 60, global_batch_size: 16, optimizer: {{type: adamw, lr: 1e-2}}}}
layout: {{device: cpu}}
"""
PROMPTS = ("After six comes", "The opposite of", "After two comes three.")
CONTINUE = """
import json, sys
from vllm import LLM, SamplingParams
model = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=48)
made = model.generate(json.loads(sys.argv[2]), SamplingParams(temperature=0, max_tokens=16, skip_special_tokens=False))
print("TEXTS", json.dumps([each.outputs[0].text for each in made]))
"""


def test_vllm_continues_as_this_project(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(data=ROOT / "recipes" / "data"))
    trained = dt.load(path).run(quiet=True).trained()
    folder = export(trained, "huggingface", tmp_path / "back").folder
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    words = [os.environ["VLLM_PYTHON"], "-c", CONTINUE, str(folder), json.dumps(PROMPTS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500, env=os.environ | settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("TEXTS ")]
    model, greedy = TextModel(trained, "cpu"), Sampling(0.0, None, None)
    wanted = ["".join(generate(model, prompt, 16, greedy, 0)) for prompt in PROMPTS]
    assert json.loads(line.removeprefix("TEXTS ")) == wanted
    assert len(set(wanted)) > 1
