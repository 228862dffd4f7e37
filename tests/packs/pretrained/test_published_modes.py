"""A published model of every family is tuned in parts as it is by one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import declarative_train as dt
from tests.packs.pretrained import published_encoders, published_models, published_vision

EXACT = {"training.precision": "fp64"}  # sums in another order count, most where batch norm sees few values
MODES = {
    "fsdp": "parallelism: fsdp",
    "pipeline": "parallelism: {pipeline: {stages: 2, microbatches: 2}}",
    "tensor": "parallelism: {tensor: 2}",
    "expert": "parallelism: {expert: 2}",
}
MIXTURES = ("deepseek", "gpt_oss", "mixtral")
WRITE = {
    **dict.fromkeys(("gemma2", "gemma3", "gpt2_untied", "llama", "llama3", "qwen2", *MIXTURES), published_models.write),
    **dict.fromkeys(("BertForSequenceClassification", "RobertaForMaskedLM"), published_encoders.write),
    **dict.fromkeys(("timm_resnet", "vit"), published_vision.write),
}


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in sorted(WRITE) for mode in sorted(MODES) if mode != "expert" or name in MIXTURES],
)
def test_a_published_model_is_tuned_the_same_in_every_mode(tmp_path: Path, name: str, mode: str) -> None:
    """Two steps from its weights: every rank reads what it holds, and the model after them is that of one process."""
    told = {"node": ", over: 2 samples"} if name == "timm_resnet" else {}
    _, path = WRITE[name](tmp_path, name, **told)
    alone = dt.load(path, set=EXACT).run(quiet=True).module()
    path.write_text(path.read_text().replace("{device: cpu}", "{device: cpu, gpus: 2}") + MODES[mode] + "\n")
    spread = dt.load(path, set=EXACT).run(quiet=True).module()
    started = dt.load(path, set=EXACT).plan().module()
    moved = 0.0
    for key, value in alone.named_parameters():
        torch.testing.assert_close(spread.get_parameter(key), value, rtol=1e-9, atol=1e-9, msg=key)
        moved = max(moved, (value - started.get_parameter(key)).abs().max().item())
    assert moved > 1e-4


TAUGHT = {
    "ddp 2": {"parallelism": "ddp", "layout.gpus": 2},
    "fsdp 2": {"parallelism": "fsdp", "layout.gpus": 2},
    "fsdp 4": {"parallelism": "fsdp", "layout.gpus": 4},
    "hybrid": {"parallelism": {"data": {"replicate": 2, "shard": 2}}, "layout.gpus": 4},
    "pipeline": {"parallelism": {"pipeline": {"stages": 2, "microbatches": 2}}, "layout.gpus": 2},
    "pipeline of fsdp": {
        "parallelism": {"pipeline": {"stages": 2, "microbatches": 2}, "data": {"shard": 2}},
        "layout.gpus": 4,
    },
}


@pytest.fixture(scope="module")
def taught_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return taught({"parallelism": "single", "layout.gpus": 1}, tmp_path_factory.mktemp("alone"))


def taught(how: dict[str, object], folder: Path) -> dict[str, torch.Tensor]:
    """The parameters after three steps of the gallery's distillation from a published teacher."""
    path = Path(__file__).parents[3] / "recipes" / "gallery" / "distil_llama.yaml"
    few = {"training.epochs": None, "training.steps": 3, "layout.device": "cpu", "logging.dir": str(folder)}
    run = dt.load(path, set=EXACT | few | {"evaluation": None} | how).run(quiet=True)
    return dict(run.module().named_parameters())


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", TAUGHT)
def test_a_student_of_a_published_teacher_learns_the_same_in_every_mode(
    tmp_path: Path, taught_alone: dict[str, torch.Tensor], mode: str
) -> None:
    """The texts have different lengths, so that ranks count different numbers of tokens; the teacher rests."""
    from safetensors.torch import load_file

    spread = taught(TAUGHT[mode], tmp_path)
    published = load_file(Path(__file__).parents[3] / "recipes" / "data" / "tiny_llama" / "model.safetensors")
    assert torch.equal(spread["teacher.embed.weight"], published["model.embed_tokens.weight"].double())
    assert spread.keys() == taught_alone.keys()
    for name, value in taught_alone.items():
        torch.testing.assert_close(spread[name], value, rtol=1e-9, atol=1e-9, msg=name)


PAIRS = """
name: pairs
data:
  source: {{type: jsonl, path: pairs.jsonl}}
  fields:
    asked:  {{type: tokens, column: asked, tokenizer: bytes, length: 20}}
    answer: {{type: tokens, column: answer, tokenizer: bytes, length: 20}}
  last_batch: drop
model:
  blocks:
    pooled:                                                   # the mean over a text's own tokens
      inputs: [states, mask]
      graph:
        real: unsqueeze(float(mask), -1)
        mean: sum(states * real, dim=1) / sum(real, dim=1)
      output: mean
  graph:
    states: {{type: bert, from: published, head: none, inputs: {{tokens: asked, mask: asked.mask}}}}
    others: {{type: reuse, node: states, inputs: {{tokens: answer, mask: answer.mask}}}}
    left:   {{type: pooled, inputs: [states, asked.mask]}}
    right:  {{type: pooled, inputs: [others, answer.mask]}}
  weights: {{states: {{path: published, format: huggingface}}}}
objective: {{loss: {{type: info_nce, input: left, target: right, temperature: 0.2, over: 8 samples}}}}
training: {{steps: 3, global_batch_size: 8, optimizer: {{type: adamw, lr: 1e-2}}, precision: fp64}}
parallelism: {parallelism}
layout: {{device: cpu, gpus: {gpus}}}
logging: {{dir: runs}}
"""


def paired(folder: Path, parallelism: str, gpus: int) -> dict[str, torch.Tensor]:
    path = folder / f"{gpus}.yaml"
    path.write_text(PAIRS.format(parallelism=parallelism, gpus=gpus))
    return dict(dt.load(path).run(quiet=True).module().named_parameters())


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("parallelism", "gpus"), [("ddp", 2), ("fsdp", 2), ("fsdp", 4), ("{data: {replicate: 2, shard: 2}}", 4)]
)
def test_sentences_that_belong_together_find_each_other_over_ranks(tmp_path: Path, parallelism: str, gpus: int) -> None:
    """A published encoder on pairs of texts: each among the others of the whole batch, whichever rank holds them."""
    published_encoders.make("BertModel", tmp_path / "published", vocab_size=256)
    words = ["red", "green", "blue", "seven", "eight", "nine", "old", "young"]
    rows = [{"asked": f"what is {one}?", "answer": f"{one} and {other}"} for one in words for other in words[:3]]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    alone, spread = paired(tmp_path, "single", 1), paired(tmp_path, parallelism, gpus)
    moved = 0.0
    started = dt.load(tmp_path / "1.yaml").plan().module()
    for name, value in alone.items():
        torch.testing.assert_close(spread[name], value, rtol=1e-8, atol=1e-8, msg=name)
        moved = max(moved, (value - started.get_parameter(name)).abs().max().item())
    assert moved > 1e-3
