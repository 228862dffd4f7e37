"""lm-eval on an export, by the command of docs/exporting.md: its log-likelihoods are those of the run's module."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import declarative_train as dt
from declarative_train.packs.export.export import export
from tests.packs.export.test_llama_cpp import write_tokenizer
from tests.packs.pretrained import published_models as made

PAGE = (Path(__file__).parents[3] / "docs" / "exporting.md").read_text("utf-8").partition("## lm-eval")[2]
QUESTIONS = (("The sky is", ["blue", "green"], 0), ("Grass is", ["blue", "green"], 1))


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed")
@pytest.mark.timeout(300)
def test_the_documented_command(tmp_path: Path) -> None:
    _, path = made.write(tmp_path, "llama")
    write_tokenizer(tmp_path / "published", 96)
    run = dt.load(path).run(quiet=True)
    export(run.trained(), "huggingface", tmp_path / "tuned")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "facts.yaml").write_text(PAGE.partition("```text\n")[2].partition("```")[0])
    lines = [json.dumps({"question": text, "choices": words, "answer": right}) for text, words, right in QUESTIONS]
    (tmp_path / "facts.jsonl").write_text("\n".join(lines))
    command = re.search(r"^lm_eval (.+)$", PAGE, re.MULTILINE)
    assert command is not None
    words = [sys.executable, "-m", "lm_eval", *shlex.split(command[1])]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    [samples] = (tmp_path / "results").rglob("samples_facts_*.jsonl")
    found = [json.loads(line)["filtered_resps"] for line in samples.read_text().splitlines()]
    module = run.module().get_submodule("lm")
    for answers, (text, choices, _) in zip(found, QUESTIONS, strict=True):
        wanted = [_log_likelihood(module, tmp_path / "tuned", text, f" {choice}") for choice in choices]
        assert [float(each[0]) for each in answers] == pytest.approx(wanted, abs=1e-4)


def _log_likelihood(module: torch.nn.Module, folder: Path, text: str, more: str) -> float:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    start, tokens = len(tokenizer(text)["input_ids"]), torch.tensor(tokenizer(text + more)["input_ids"])
    with torch.no_grad():
        logits = module(tokens[None, :-1])
    logits = logits[0] if isinstance(logits, tuple) else logits
    chosen = logits[0].log_softmax(-1).gather(-1, tokens[1:, None])
    return float(chosen[start - 1 :].sum())
