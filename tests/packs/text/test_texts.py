"""Texts from end to end: a tokenizer of their own, tokens made beforehand, a run, and text that goes on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from declarative_train.app.main import main
from declarative_train.inference.trained import open_trained as load
from declarative_train.packs.text.generation import Sampling, TextModel, generate

pytest.importorskip("tokenizers")

RECIPE = """
name: texts
data:
  source: {type: jsonl, path: rows.jsonl}
  fields:
    text: {type: tokens, column: text, tokenizer: own.json, length: 25, eos: true, pack: best_fit}
  split: {validation: 0.2}
model:
  graph:
    tokens: text[:, :-1]
    segments: text.segments[:, :-1]
    positions: text.positions[:, :-1]
    next: text[:, 1:]
    counts: text.trained[:, 1:]
    KIND: {type: KIND, vocabulary: 300, layers: 2, width: 32, heads: 2,
          inputs: {tokens: tokens, segments: segments, positions: positions}}
objective:
  loss: {type: cross_entropy, input: KIND, target: next, mask: counts}
training: {steps: 60, global_batch_size: 8, optimizer: {type: adamw, lr: 1e-2}}
layout: {device: cpu}
logging: {dir: runs}
checkpoint: {every: 60 steps, keep: 1}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    words = ["one", "two", "three", "four", "five"]
    with (tmp_path / "rows.jsonl").open("w") as file:
        for _ in range(120):
            start = int(draw.integers(0, 5))
            text = " ".join(words[(start + at) % 5] for at in range(int(draw.integers(2, 12))))
            file.write(json.dumps({"text": text + "."}) + "\n")
    (tmp_path / "r.yaml").write_text(RECIPE.replace("KIND", "gpt"))
    return tmp_path


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_tokenizer_tokens_a_run_and_a_text(folder: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    (folder / "r.yaml").write_text(RECIPE.replace("KIND", kind))
    assert main(["data", "tokenizer", "r.yaml", "-o", "own.json", "--vocab", "300", "--special", "<|user|>"]) == 0
    assert "own.json: " in (said := capsys.readouterr()).out
    assert "96 texts" in said.out  # those of training
    made = json.loads((folder / "own.json").read_text())
    assert [each["content"] for each in made["added_tokens"]] == ["<|endoftext|>", "<|pad|>", "<|user|>"]
    assert main(["data", "tokenizer", "r.yaml", "-o", "own.json", "--vocab", "300"]) == 2
    assert "own.json exists" in capsys.readouterr().err

    assert main(["data", "index", "r.yaml"]) == 0
    assert re.search(r"[\d,]+ tokens of 120 texts, .* in .*cache", capsys.readouterr().out)
    assert main(["data", "show", "r.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "lengths of texts in tokens" in shown
    assert re.search(r"^of each +training\b", shown, re.M)
    assert re.search(r"^texts +96\b", shown, re.M)
    (full,) = re.findall(r"^full +([\d.]+)%", shown, re.M)
    assert float(full) > 95
    assert "one two three" in " ".join(shown.split())  # a line of a terminal may end between them

    assert main(["run", "r.yaml", "--quiet"]) == 0
    capsys.readouterr()
    (step,) = (folder / "runs" / "texts").glob("*/checkpoints/step_*")
    shutil.copytree(step, folder / "kept" / step.name)
    shutil.rmtree(folder / "runs")
    (folder / "own.json").unlink()  # it travelled
    words = ["generate", f"kept/{step.name}", "--prompt", "two three", "--temperature", "0", "--max-tokens", "30"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("two three four five one two")

    trained = load(f"kept/{step.name}")
    fast, slow = TextModel(trained, "cpu"), TextModel(trained, "cpu", cache=False)
    assert fast.reason == ""
    tokens = fast.words.encode("five one two three four")
    for model in (fast, slow):
        model.begin(tokens[:2])
        model.feed(tokens[2:4])
        model.feed(tokens[4:5])
    torch.testing.assert_close(fast.logits, slow.logits, atol=1e-5, rtol=1e-5)
    assert main(["export", f"kept/{step.name}", "--to", "huggingface", "-o", "out"]) == 0
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained("out")
    assert theirs("five one two")["input_ids"] == fast.words.encode("five one two")
    assert (theirs.eos_token, theirs.pad_token) == ("<|endoftext|>", "<|pad|>")
    network = transformers.AutoModelForCausalLM.from_pretrained("out").eval()
    with torch.no_grad():
        logits = network(torch.tensor([tokens[:5]])).logits[0, -1]
    torch.testing.assert_close(logits, fast.logits, atol=1e-4, rtol=1e-4)
    texts = ["".join(generate(model, "one", 12, Sampling(0.5), seed=3)) for model in (fast, slow)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["r.yaml"], 2, "give the file and the number of tokens"),
        (["r.yaml", "-o", "x.json", "--vocab", "200"], 3, "200 tokens are too few: 256 bytes and 2 special tokens"),
        (["r.yaml", "rows.jsonl", "-o", "x.json", "--vocab", "300"], 2, "give a recipe, or text files"),
        (["none.txt", "-o", "x.json", "--vocab", "300"], 3, "there is no file none.txt"),
        (["none.yaml", "-o", "x.json", "--vocab", "300"], 2, "none.yaml"),
        (["rows.jsonl", "-o", "no/x.json", "--vocab", "300"], 3, "cannot write no/x.json"),
    ],
)
def test_what_a_tokenizer_cannot_be_made_of(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    assert main(["data", "tokenizer", *words]) == code
    assert message in capsys.readouterr().err
    assert not Path("x.json").exists()


def test_a_tokenizer_of_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.txt").write_text("the cat and the hat " * 20)
    (folder / "b.txt").write_text("that hat " * 20)
    assert main(["data", "tokenizer", "a.txt", "b.txt", "-o", "f.json", "--vocab", "262"]) == 0
    assert "262 tokens of 2 texts" in capsys.readouterr().out


def test_the_words_of_a_tokenizer_mean_nothing_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", "r.yaml", "--vocab", "300"]) == 2
    assert "are for `dtrain data tokenizer`" in capsys.readouterr().err
