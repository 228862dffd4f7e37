"""Tokens per second of fine-tuning on texts, compared with TRL's SFTTrainer: padded, in length buckets, and packed.

    python -m benchmarks.tuning [--rounds 3] [--write]

These are the same on all sides: the texts, a tokenizer of bytes, a Llama with the same random weights, float32 on one
thread, torch's AdamW with clipped gradients, a log every 10 steps, and no checkpoint before the end. One epoch has each
text once. A step trains about as many tokens on every side, so that epochs have about as many steps: it has 8 texts, or
2 packed samples of 512 tokens, which hold about 8 texts. TRL's defaults are used, except bfloat16 and gradient
checkpointing, which dtrain does not use here either.

These differ: TRL pads to the longest text of a batch, our padded side always to 512 tokens. TRL joins the packed
samples of a batch (with `padding_free`: its texts) to a single row. That is meant for flash attention, which needs a
GPU; on the CPU, torch's attention (sdpa) has one mask for the whole row. dtrain has a mask of 512 x 512 for each packed
sample. TRL's loss also computes entropy and accuracy.

The rate counts the tokens that are predicted, from the end of the first step to the end of the last one, by the CPU
time of the process, which other work on the machine changes little. The sides take turns. Figures are medians over the
rounds; a ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.__main__ import execute
from benchmarks.report import write_table

# TEXTS in a step, or SAMPLES packed samples with about as many tokens
NUM_TEXTS, LENGTH, TEXTS, SAMPLES = 160, 512, 8, 2
THREE = [129, 257, 513]
EIGHT = [65, 129, 193, 257, 321, 385, 449, 513]
MANY = 8000  # texts whose padding is counted: divisible by TEXTS
TIMES = "times"  # file with the CPU time at the end of each of our steps
THEIRS: dict[str, dict[str, Any]] = {
    "TRL, padded": {"max_length": LENGTH},
    "TRL, `group_by_length`": {"max_length": LENGTH, "train_sampling_strategy": "group_by_length"},
    "TRL, `padding_free`": {"max_length": None, "padding_free": True},
    "TRL, `packing` (bfd)": {"max_length": LENGTH, "packing": True, "per_device_train_batch_size": SAMPLES},
}
OURS = {  # for each side, keys of the field and the batch size; a sample has one token more than the model reads
    "padded to 512": (f"length: {LENGTH + 1}", TEXTS),
    "3 length buckets": (f"length: {{buckets: {THREE}}}", TEXTS),
    "8 length buckets": (f"length: {{buckets: {EIGHT}}}", TEXTS),
    "packed": (f"length: {LENGTH + 1}, pack: best_fit", SAMPLES),
}
RECIPE = """
name: tuned
data:
  source: {{type: jsonl, path: "{folder}/texts.jsonl"}}
  fields:
    text: {{type: tokens, column: text, tokenizer: "{folder}/model", eos: true, {keys}}}
model:
  graph:
    tokens: text[:, :-1]
    next:   text[:, 1:]
    counts: text.trained[:, 1:]
{packed}    lm: {{type: llama, from: "{folder}/model", inputs: {{tokens: tokens{more}}}}}
  weights: {{path: "{folder}/model", format: huggingface}}
objective: {{loss: {{type: cross_entropy, input: lm, target: next, mask: counts}}}}
training:
  epochs: 1
  global_batch_size: {batch_size}
  clip_grad_norm: 1.0
  optimizer: {{type: adamw, lr: 1e-3, weight_decay: 0}}
parallelism: single
layout: {{gpus: 1, device: cpu}}
logging: {{dir: "{runs}", every: 10 steps}}
"""
PACKED = "    segments: text.segments[:, :-1]\n    positions: text.positions[:, :-1]\n"


@dataclass(frozen=True, slots=True)
class Epoch:
    """Steps of one side. `ended_s`: CPU time at the end of each step. `tokens`, `positions`: number of predicted
    tokens, and of positions, in each step."""

    ended_s: list[float]
    tokens: list[int]
    positions: list[int]

    @property
    def rate(self) -> float:
        return sum(self.tokens[1:]) / (self.ended_s[-1] - self.ended_s[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    args = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    rounds: list[dict[str, Epoch]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_texts(folder)
        make_model(folder / "model")
        for turn in range(args.rounds):
            found = {side: train_theirs(folder, keys) for side, keys in THEIRS.items()}
            found |= {
                side: train_ours(folder, folder / f"{turn}_{at}", *each) for at, (side, each) in enumerate(OURS.items())
            }
            assert len({sum(each.tokens) for each in found.values()}) == 1, "the sides do not train the same tokens"
            rounds.append(found)
            print({side: round(each.rate) for side, each in found.items()}, flush=True)
    table = "\n".join(lines(rounds))
    print(table)
    if args.write:
        write_table("benchmarks.tuning", table)


def make_texts(folder: Path) -> None:
    """Write texts of random letters. With the token that ends a text, each has at most LENGTH tokens."""
    draw = np.random.default_rng(1)
    with (folder / "texts.jsonl").open("w") as file:
        for size in draw_sizes(NUM_TEXTS) - 1:
            text = "".join(draw.choice(list("etaoinshrdlu "), size))
            file.write(json.dumps({"text": text}) + "\n")


def draw_sizes(num_texts: int) -> np.ndarray:
    """Return the number of tokens of each text, (N,) int64."""
    return np.random.default_rng(0).lognormal(np.log(95), 0.8, num_texts).astype(np.int64).clip(8, LENGTH - 1) + 1


def make_model(folder: Path) -> None:
    """Write a Llama with random weights, and its tokenizer of bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    signs = ["<s>", "</s>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={sign: at for at, sign in enumerate([*signs, *alphabet])}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(signs)
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=made, **named).save_pretrained(folder)  # type: ignore[no-untyped-call]
    config = LlamaConfig(
        vocab_size=len(signs) + len(alphabet),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def train_theirs(folder: Path, keys: dict[str, Any]) -> Epoch:
    import torch
    from datasets import Dataset  # type: ignore[import-untyped]
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    torch.set_num_threads(1)
    epoch = Epoch([], [], [])

    class Noted(SFTTrainer):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            epoch.tokens.append(int((inputs["labels"][:, 1:] != -100).sum()))
            epoch.positions.append(inputs["input_ids"].numel())
            return super().training_step(model, inputs, *args, **kwargs)  # type: ignore[no-untyped-call]

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            epoch.ended_s.append(time.process_time())

    fixed: dict[str, Any] = {
        "output_dir": str(folder / "theirs"),
        "num_train_epochs": 1,
        "per_device_train_batch_size": TEXTS,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    texts = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    Noted(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        args=SFTConfig(**fixed | keys),
        train_dataset=Dataset.from_list(texts),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        callbacks=[Clock()],
    ).train()
    return epoch


def train_ours(folder: Path, runs: Path, keys: str, batch_size: int) -> Epoch:
    from declarative_train import recipe as recipe_room
    from declarative_train.data.rank_batches import TrainingBatches
    from declarative_train.data.tensor_sets import open_sets
    from declarative_train.engine.engine import get_process_batch
    from declarative_train.planner.compiler import compile as compile_plan

    runs.mkdir()
    place = runs / "recipe.yaml"
    packed, more = (PACKED, ", segments: segments, positions: positions") if "pack" in keys else ("", "")
    values = {"folder": folder, "runs": runs, "keys": keys, "batch_size": batch_size}
    place.write_text(RECIPE.format(**values, packed=packed, more=more))
    execute([sys.executable, "-m", "benchmarks.tuning", "run", str(place)])
    (noted,) = runs.rglob(TIMES)
    ended_s = [float(line) for line in noted.read_text().splitlines()]
    loaded = recipe_room.load(str(place))
    assert loaded.recipe is not None
    plan, _ = compile_plan(loaded.recipe)
    assert plan is not None
    batches = TrainingBatches(plan.data, get_process_batch(plan), 0, open_sets(plan.data))
    counts = [each.tensors["text.trained"][:, 1:] for step in range(len(ended_s)) for each in batches.step(step + 1)]
    return Epoch(ended_s, [int(each.sum()) for each in counts], [each.numel() for each in counts])


def run(recipe: str) -> None:
    """Train the recipe. Write the CPU time at the end of each step into the folder of the run."""
    from declarative_train.__main__ import main as dtrain
    from declarative_train.run.event import Event, Progress
    from declarative_train.run.sinks.jsonl import JsonlSink

    write = JsonlSink.write

    def and_note(sink: JsonlSink, event: Event) -> None:
        if isinstance(event, Progress):
            with Path(sink._stream.name).with_name(TIMES).open("a") as file:
                file.write(f"{time.process_time()!r}\n")
        write(sink, event)

    JsonlSink.write = and_note  # type: ignore[method-assign, assignment]
    sys.argv = ["dtrain", "run", recipe]
    sys.exit(dtrain())


def count_padding(num_texts: int) -> str:
    """Return a sentence on the padding of `num_texts` texts, counted without training. There are more texts than in
    training: with few texts, samplers have little choice."""
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    from declarative_train.data.length_buckets import BucketOrder
    from declarative_train.data.order import sample_index

    sizes = draw_sizes(num_texts)
    every = np.arange(num_texts)
    generator = torch.Generator().manual_seed(0)
    grouped = np.array(list(LengthGroupedSampler(TEXTS, lengths=sizes.tolist(), generator=generator)))
    starts = range(0, num_texts, TEXTS)

    def count_in(buckets: list[int]) -> int:
        order = BucketOrder(
            0,
            np.searchsorted(buckets, sizes).astype(np.uint8),
            TEXTS,
            lambda epoch, positions: sample_index(0, epoch, positions, num_texts),
            shuffle=True,
        )
        return sum(TEXTS * (buckets[order.level(0, start)] - 1) for start in starts)

    three, eight = count_in(THREE), count_in(EIGHT)
    random, by_length = (
        sum(TEXTS * int(sizes[samples[start : start + TEXTS]].max()) for start in starts)
        for samples in (sample_index(0, 0, every, num_texts), grouped)
    )
    tokens = int((sizes - 1).sum())
    return (
        f"Positions per token of {num_texts:,} such texts, counted without training: {random / tokens:.2f} padded by "
        f"TRL, {by_length / tokens:.2f} with `group_by_length`, {three / tokens:.2f} in 3 length buckets, "
        f"{eight / tokens:.2f} in 8."
    )


def lines(rounds: list[dict[str, Epoch]]) -> list[str]:
    import torch

    bases = ("TRL, padded", "TRL, `group_by_length`", "TRL, `packing` (bfd)")
    versions = ", ".join(f"{name} {version(name)}" for name in ("trl", "transformers"))
    found = [
        f"{date.today()}, torch {torch.__version__}, {versions}, {platform.machine()}, {os.cpu_count()} cores,",
        f"one thread; {NUM_TEXTS} texts, by CPU time, medians of {len(rounds)} interleaved rounds.",
        "",
        "| texts | steps | positions per token | tokens/s | divided by TRL, padded "
        "| by `group_by_length` | by `packing` |",
        "|---|---|---|---|---|---|---|",
    ]
    for side, first in rounds[0].items():
        ratios = [median(each[side].rate / each[base].rate for each in rounds) for base in bases]
        cells = [f"{side}", f"{len(first.tokens)}", f"{sum(first.positions) / sum(first.tokens):.2f}"]
        cells += [f"{median(each[side].rate for each in rounds):,.0f}", *(f"{ratio:.2f}" for ratio in ratios)]
        found.append(f"| {' | '.join(cells)} |")
    return [*found, "", count_padding(MANY)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2])
    else:
        main()
