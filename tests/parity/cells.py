"""The cells of the parity table: a way to run x accumulation x rows, each a whole recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

Rows = Literal["even", "uneven", "masked"]
Way = tuple[str, str, int]  # row of the table, YAML, GPUs

GLOBAL_BATCH_SIZE = 32
NUM_STEPS = 3
NUM_TOKENS = 4
VOCABULARY = 11
# of three steps the second is the last, partial one of its epoch
NUM_SAMPLES = {"even": 96, "uneven": GLOBAL_BATCH_SIZE + 13, "masked": GLOBAL_BATCH_SIZE + 13}

HEAD = """
name: {name}
seed: 3
data:
  source: {{type: npy, path: "{data}"}}
  fields:
    tokens: {{column: tokens, dtype: int64}}
    next: {{column: next, dtype: int64}}
"""

TEXTS = """
name: {name}
seed: 3
data:
  source: {{type: jsonl, path: "{data}"}}
  fields:
    text: {{type: tokens, column: text, tokenizer: bytes, length: 17, pack: best_fit}}
"""

TAIL = """
training:
  steps: 3
  global_batch_size: 32
  gradient_accumulation_steps: {accumulation}
  optimizer: {{type: sgd, lr: 0.1}}
  precision: fp64
{training}
parallelism: {parallelism}
layout: {{gpus: {gpus}, device: cpu}}
logging: {{dir: "{runs}"}}
"""

LOSS = "objective: {{loss: {{type: cross_entropy, input: logits, target: next, ignore_index: 0}}}}\n"

PLAIN = (
    """
model:
  blocks:
    block:
      inputs: [x]
      graph:
        norm: {{type: layer_norm}}
        up: {{type: linear, out_features: 12}}
        act: {{type: gelu}}
        down: {{type: linear, out_features: 8}}
        out: x + down
      output: out
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    layers: {{type: block, repeat: 8}}
    norm: {{type: layer_norm}}
    logits: {{type: linear, out_features: 11}}
"""
    + LOSS
)

# the first node's output is read by the last: in a pipeline it travels through every stage between
SKIP = (
    """
model:
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    keep: tokens != 5
    a: {{type: linear, out_features: 8, input: embed}}
    attn: {{type: self_attention, heads: 2, causal: true, inputs: {{mask: keep}}}}
    b: {{type: linear, out_features: 8}}
    c: {{type: linear, out_features: 8}}
    d: {{type: linear, out_features: 8}}
    e: {{type: linear, out_features: 8}}
    f: {{type: linear, out_features: 8}}
    far: tanh(f) * embed + attn
    logits: {{type: linear, out_features: 11}}
"""
    + LOSS
)

# several losses with several denominators, one of them of a weight per row; shared weights
TERMS = """
model:
  blocks:
    block:
      inputs: [x]
      graph:
        norm: {{type: rms_norm}}
        lin: {{type: linear, out_features: 8}}
        out: x + silu(lin)
      output: out
  graph:
    valid: next != 0
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    layers: {{type: block, repeat: 8}}
    logits: {{type: linear, out_features: 11, bias: false}}
    size: mean(layers ** 2, dim=-1)
    flat: sum(size, dim=-1)
objective:
  losses:
    next: {{type: cross_entropy, input: logits, target: next, ignore_index: 0, label_smoothing: 0.1}}
    size: {{type: mean, input: size, mask: valid, weight: 0.3}}
    flat: {{type: mean, input: flat, weight: 0.1}}
"""

# one tensor for the first node and the last, and a block called again: in a pipeline, stages hold copies
SHARED = (
    """
model:
  blocks:
    block:
      inputs: [x]
      graph:
        norm: {{type: layer_norm}}
        up: {{type: linear, out_features: 12}}
        act: {{type: gelu}}
        down: {{type: linear, out_features: 8}}
        out: x + down
      output: out
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    a: {{type: block}}
    b: {{type: linear, out_features: 8}}
    again: {{type: reuse, node: a, input: b}}
    c: {{type: linear, out_features: 8}}
    d: {{type: linear, out_features: 8}}
    logits: {{type: linear, out_features: 11, bias: false}}
  parameters:
    logits.weight: {{tie: embed.weight}}
    d.weight: {{tie: b.weight}}
"""
    + LOSS
)

# recurrent layers, and stages that begin with a transpose (turned) or a mean (pooled): the gradients that leave these
# do not lie in memory in order
RECURRENT = (
    """
model:
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    a: {{type: lstm, hidden_size: 8}}
    b: {{type: gru, hidden_size: 8}}
    turned: transpose(b, 1, 2)
    c: {{type: linear, out_features: 5}}
    pooled: mean(c, dim=2)
    d: {{type: linear, out_features: 44}}
    logits: reshape(d, B, 4, 11)
"""
    + LOSS
)

# what is drawn from fields alone is drawn by the sample: a mask decides how many items count, noise reaches the end
DRAWN = """
model:
  graph:
    chosen: rand_like(float(tokens)) < 0.4
    shown: where(chosen, tokens * 0, tokens)
    noise: 0.1 * randn_like(float(next)) + 0.01 * rand_like(float(next))
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: shown}}
    a: {{type: linear, out_features: 8}}
    attn: {{type: self_attention, heads: 2}}
    b: {{type: linear, out_features: 8}}
    far: tanh(b) + unsqueeze(noise, -1)
    logits: {{type: linear, out_features: 11}}
objective: {{loss: {{type: cross_entropy, input: logits, target: tokens, mask: chosen}}}}
"""

# a sequence for each channel, and stages that begin with one
LEADING = (
    """
model:
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 16, input: tokens}}
    parts: {{type: unflatten, dim: 2, sizes: [2, 8]}}
    each: transpose(parts, 1, 2)
    pos: {{type: learned_positions}}
    seen: {{type: stack, dim: 1, inputs: [known, known]}}
    known: tokens != 5
    attn: {{type: self_attention, heads: 2, rotary: {{}}, inputs: {{x: pos, mask: seen}}}}
    cross: {{type: cross_attention, heads: 2, inputs: {{query: attn, context: each}}}}
    time: {{type: lstm, hidden_size: 8, input: cross}}
    back: transpose(time, 1, 2)
    both: {{type: flatten, start_dim: 2}}
    logits: {{type: linear, out_features: 11}}
"""
    + LOSS
)

# convolutions, whose weights and results lie in memory with the channels last, and stages that begin with such
CONVOLUTIONS = (
    """
model:
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 16, input: tokens}}
    image: reshape(embed, B, 4, 4, 4)
    a: {{type: conv2d, out_channels: 6, kernel_size: 3, padding: 1}}
    norm: {{type: group_norm, num_groups: 1}}
    act: {{type: gelu}}
    pool: {{type: max_pool2d, kernel_size: 2}}
    b: {{type: conv_transpose2d, out_channels: 6, kernel_size: 2, stride: 2}}
    each: {{type: conv2d, out_channels: 6, kernel_size: 3, padding: 1, groups: 6}}
    one: {{type: conv2d, out_channels: 4, kernel_size: 1}}
    far: one * image
    flat: {{type: flatten}}
    d: {{type: linear, out_features: 44}}
    logits: reshape(d, B, 4, 11)
"""
    + LOSS
)

# one row at a time on each rank: of one row, every stride of the batch is right, and layouts in memory are ambiguous
ONE_ROW = (
    """
model:
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 16, input: tokens}}
    image: reshape(embed, B, 4, 4, 4)
    a: {{type: conv2d, out_channels: 6, kernel_size: 3, padding: 1, bias: false}}
    one: {{type: instance_norm, affine: true}}
    act: {{type: gelu}}
    b: {{type: conv2d, out_channels: 6, kernel_size: 3, padding: 1, bias: false}}
    same: reshape(b, B, 6, 4, 4)
    two: {{type: batch_norm, over: 1 sample}}
    c: {{type: conv2d, out_channels: 4, kernel_size: 3, padding: 1}}
    flat: {{type: flatten}}
    d: {{type: linear, out_features: 44}}
    logits: reshape(d, B, 4, 11)
"""
    + LOSS
)

# the head inside of a block, its loss in chunks that do not divide the items, with a mask
CHUNKED = """
model:
  blocks:
    top:
      inputs: [x]
      graph:
        norm: {{type: layer_norm}}
        logits: {{type: linear, out_features: 11}}
      output: logits
  graph:
    valid: next != 0
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    layers: {{type: linear, out_features: 8, repeat: 8}}
    logits: {{type: top}}
objective:
  loss: {{type: cross_entropy, input: logits, target: next, mask: valid, ignore_index: 0, label_smoothing: 0.1,
         chunks: 3}}
"""

# two views, found again among the groups of the global batch
CONTRAST = """
model:
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    both: mean(embed, dim=1)
    a: {{type: linear, out_features: 6, input: both}}
    other: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: next}}
    wide: mean(other, dim=1)
    b: {{type: linear, out_features: 6, input: wide}}
objective: {{loss: {{type: info_nce, input: a, target: b, temperature: 0.5, over: {over} samples}}}}
"""

# means over groups of samples, without and with gradients
AVERAGED = """
model:
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    both: mean(embed, dim=1)
    a: {{type: linear, out_features: 5, input: both}}
    good: tokens[:, 0] > 4
    policy: a[:, 0]
    known: a[:, 1]
    other: a[:, 2] + 0.02
    other_known: a[:, 3]
    kto:
      {{type: kto, beta: 2.0, bad_weight: 0.5, over: {over} samples, inputs: [policy, known, good, other, other_known]}}
    last: a[:, 4]
    centre: {{type: sample_mean, over: {over} samples}}
    each: kto + (last - centre) ** 2 + 0.1 * centre
objective:
  losses:
    each: {{type: mean, input: each}}
    size: {{type: mean, input: a, weight: 0.1}}
"""

# several texts in a row that do not see each other; the reference takes them one by one
PACKED = """
model:
  graph:
    tokens: text[:, :-1]
    next: text[:, 1:]
    counts: text.trained[:, 1:]
    segments: text.segments[:, :-1]
    places: text.positions[:, :-1]
    embed: {{type: embedding, num_embeddings: 256, embedding_dim: 8, input: tokens}}
    pos: {{type: learned_positions, inputs: {{positions: places}}}}
    a: {{type: linear, out_features: 8}}
    turned: {{type: self_attention, heads: 2, causal: true, rotary: {{}},
              inputs: {{segments: segments, positions: places}}}}
    b: {{type: linear, out_features: 8}}
    few: {{type: self_attention, heads: 4, kv_heads: 2, causal: true, window: 3, inputs: {{segments: segments}}}}
    c: {{type: linear, out_features: 8}}
    far: tanh(c) + pos
    logits: {{type: linear, out_features: 256}}
objective: {{loss: {{type: cross_entropy, input: logits, target: next, mask: counts}}}}
"""

# several optimizers and settings of them side by side; plain SGD all, so that the reference needs no other rule
OPTIMIZERS = PLAIN.replace(
    "objective:",
    """  parameters:
    layers.2: {{optimizer: {{type: sgd, lr: 0.03}}}}
    layers.5: {{lr_scale: 0.5}}
    logits: {{optimizer: {{type: sgd, lr: 0.02}}, lr_scale: 3}}
    bias: {{weight_decay: 0.01}}
objective:""",
)

# adapters next to frozen weights, a trained head; B does not start at zero, so that A learns from the first step on
LORA = PLAIN.replace(
    "objective:",
    """  parameters:
    layers: {{adapter: {{type: lora, rank: 2, alpha: 3}}}}
    lora_B: {{init: {{type: normal, std: 0.2}}}}
    logits: {{frozen: false}}
objective:""",
)

# and trained lengths of the rows of their sum
DORA = LORA.replace("type: lora", "type: dora")

# what the ranks of `tensor` divide: heads, a gated pair of layers, a table and the head that is tied to it
DIVIDED = (
    """
model:
  blocks:
    block:
      inputs: [x]
      graph:
        first: {{type: rms_norm}}
        attn: {{type: self_attention, heads: 8, kv_heads: 4, causal: true, rotary: {{}}, qk_norm: true}}
        mid: x + attn
        second: {{type: rms_norm, input: mid}}
        up: {{type: linear, out_features: 24, bias: false}}
        gate: {{type: linear, out_features: 24, input: second}}
        both: silu(gate) * up
        down: {{type: linear, out_features: 16}}
        out: mid + down
      output: out
  graph:
    embed: {{type: embedding, num_embeddings: 48, embedding_dim: 16, input: tokens}}
    layers: {{type: block, repeat: 8}}
    norm: {{type: layer_norm}}
    logits: {{type: linear, out_features: 48, bias: false}}
  parameters: {{logits.weight: {{tie: embed.weight}}}}
"""
    + LOSS
)

# mixtures of experts: their balance losses, one behind the other, and a bias that moves after each step
MOE = """
model:
  blocks:
    block:
      inputs: {{x: required, balance: optional}}
      graph:
        norm: {{type: rms_norm}}
        moe: {{type: moe, experts: 8, top_k: 2, hidden: 6, scores: sigmoid, bias_rate: 0.1, groups: 4, top_groups: 2,
              inputs: {{x: norm, balance: balance}}}}
        out: x + moe
      outputs: {{out: out, balance: moe.balance}}
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    first: {{type: moe, experts: 4, top_k: 2, hidden: 6, inputs: {{x: embed, mask: valid}}}}
    valid: tokens != 5
    layers: {{type: block, repeat: 8, inputs: {{x: first, balance: first.balance}}}}
    logits: {{type: linear, out_features: 11, input: layers.out}}
objective:
  losses:
    next: {{type: cross_entropy, input: logits, target: next, ignore_index: 0}}
    balance: {{type: mean, input: layers.balance, weight: 0.05}}
"""

# the shipped block, as in Qwen 3 MoE: attention, then experts
MIXTRAL = """
model:
  graph:
    lm: {{type: mixtral, vocabulary: 11, layers: 4, width: 16, heads: 4, kv_heads: 2, experts: 4, top_k: 2, hidden: 12,
          qk_norm: true, input: tokens}}
objective:
  losses:
    next: {{type: cross_entropy, input: lm, target: next, ignore_index: 0}}
    balance: {{type: mean, input: lm.balance, weight: 0.05}}
"""

# the same with adapters in its blocks: LoRA in the first, DoRA in the others
ADAPTED = DIVIDED.replace("tie: embed.weight", "frozen: false").replace(
    "  parameters: {{logits.weight: {{frozen: false}}}}",
    """  parameters:
    layers: {{adapter: {{type: dora, rank: 2, alpha: 3}}}}
    layers.0: {{adapter: {{type: lora, rank: 2, alpha: 3}}}}
    lora_B: {{init: {{type: normal, std: 0.2}}}}
    logits: {{frozen: false}}""",
)

# reads across the batch, over groups of 4 (within a rank) and of 16 or 32 (over several)
MIXES = (
    """
model:
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 8, input: tokens}}
    a: {{type: linear, out_features: 8, bias: false}}
    turned: transpose(a, 1, 2)
    norm: {{type: batch_norm, over: {over} samples}}
    back: transpose(norm, 1, 2)
    act: {{type: tanh}}
    logits: {{type: linear, out_features: 11}}
"""
    + LOSS
)

# small models of the families that are most used, of 8 tokens; their layers are divided over up to 4 ranks
FAMILY_TOKENS = 8
FAMILIES = {
    "gpt": """
model:
  blocks:
    block:
      inputs: [x]
      graph:
        norm1: {{type: layer_norm}}
        attn: {{type: self_attention, heads: 4, causal: true}}
        mid: x + attn
        norm2: {{type: layer_norm}}
        up: {{type: linear, out_features: 32}}
        act: {{type: gelu}}
        down: {{type: linear, out_features: 16}}
        out: mid + down
      output: out
  graph:
    embed: {{type: embedding, num_embeddings: 48, embedding_dim: 16, input: tokens}}
    pos: {{type: learned_positions}}
    layers: {{type: block, repeat: 4}}
    norm: {{type: layer_norm}}
    logits: {{type: linear, out_features: 48, bias: false}}
  parameters: {{logits.weight: {{tie: embed.weight}}}}
""",
    "llama": """
model:
  blocks:
    block:
      inputs: [x]
      graph:
        norm1: {{type: rms_norm}}
        attn: {{type: self_attention, heads: 8, kv_heads: 4, causal: true, rotary: {{}}, bias: false, fused: false}}
        mid: x + attn
        norm2: {{type: rms_norm}}
        gate: {{type: linear, out_features: 24, bias: false}}
        up: {{type: linear, out_features: 24, bias: false, input: norm2}}
        both: silu(gate) * up
        down: {{type: linear, out_features: 16, bias: false}}
        out: mid + down
      output: out
  graph:
    embed: {{type: embedding, num_embeddings: 48, embedding_dim: 16, input: tokens}}
    layers: {{type: block, repeat: 4}}
    norm: {{type: rms_norm}}
    logits: {{type: linear, out_features: 48, bias: false}}
""",
    "gemma": """
model:
  blocks:
    block:
      inputs: [x]
      graph:
        norm1: {{type: rms_norm, zero_centered: true}}
        attn: {{type: self_attention, heads: 8, kv_heads: 4, head_width: 4, causal: true, rotary: {{}}, bias: false,
                window: 3, softcap: 20, qk_norm: true, qk_norm_zero_centered: true}}
        after1: {{type: rms_norm, zero_centered: true}}
        mid: x + after1
        norm2: {{type: rms_norm, zero_centered: true}}
        gate: {{type: linear, out_features: 24, bias: false}}
        up: {{type: linear, out_features: 24, bias: false, input: norm2}}
        both: gelu(gate) * up
        down: {{type: linear, out_features: 16, bias: false}}
        after2: {{type: rms_norm, zero_centered: true}}
        out: mid + after2
      output: out
  graph:
    embed: {{type: embedding, num_embeddings: 48, embedding_dim: 16, input: tokens}}
    scaled: embed * 4
    layers: {{type: block, repeat: 4}}
    norm: {{type: rms_norm, zero_centered: true}}
    logits: {{type: linear, out_features: 48, bias: false}}
  parameters: {{logits.weight: {{tie: embed.weight}}}}
""",
    "bert": """
model:
  blocks:
    block:
      inputs: [x, keep]
      graph:
        attn: {{type: self_attention, heads: 4, inputs: {{x: x, mask: keep}}}}
        sum1: x + attn
        norm1: {{type: layer_norm}}
        up: {{type: linear, out_features: 32}}
        act: {{type: gelu}}
        down: {{type: linear, out_features: 16}}
        sum2: norm1 + down
        norm2: {{type: layer_norm}}
      output: norm2
  graph:
    keep: tokens != 5
    embed: {{type: embedding, num_embeddings: 48, embedding_dim: 16, input: tokens}}
    types: {{type: token_types, num_types: 2}}
    pos: {{type: learned_positions}}
    norm: {{type: layer_norm}}
    layers: {{type: block, repeat: 4, inputs: {{x: norm, keep: keep}}}}
    transform: {{type: linear, out_features: 16}}
    act: {{type: gelu}}
    last: {{type: layer_norm}}
    logits: {{type: linear, out_features: 48, bias: false}}
  parameters: {{logits.weight: {{tie: embed.weight}}}}
""",
    "vit": """
model:
  blocks:
    block:
      inputs: [x]
      graph:
        norm1: {{type: layer_norm}}
        attn: {{type: self_attention, heads: 4}}
        mid: x + attn
        norm2: {{type: layer_norm}}
        up: {{type: linear, out_features: 32}}
        act: {{type: gelu}}
        down: {{type: linear, out_features: 16}}
        out: mid + down
      output: out
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 16, input: tokens}}
    image: reshape(embed, B, 2, 8, 8)
    patches: {{type: conv2d, out_channels: 16, kernel_size: 2, stride: 2}}
    rows: transpose(flatten(patches, 2), 1, 2)
    token: {{type: class_token}}
    pos: {{type: learned_positions}}
    layers: {{type: block, repeat: 4}}
    norm: {{type: layer_norm}}
    first: "norm[:, 0]"
    head: {{type: linear, out_features: 88}}
    logits: reshape(head, B, 8, 11)
""",
    "mlp": """
model:
  graph:
    embed: {{type: embedding, num_embeddings: 11, embedding_dim: 4, input: tokens}}
    flat: {{type: flatten}}
    a: {{type: linear, out_features: 32}}
    act_a: {{type: relu}}
    b: {{type: linear, out_features: 24}}
    act_b: {{type: relu}}
    c: {{type: linear, out_features: 32}}
    act_c: {{type: relu}}
    d: {{type: linear, out_features: 24}}
    act_d: {{type: relu}}
    head: {{type: linear, out_features: 88}}
    logits: reshape(head, B, 8, 11)
""",
}

MODELS = {
    **{name: model + LOSS for name, model in FAMILIES.items()},
    "plain": PLAIN,
    "skip": SKIP,
    "terms": TERMS,
    "mixes": MIXES,
    "recurrent": RECURRENT,
    "leading": LEADING,
    "drawn": DRAWN,
    "convolutions": CONVOLUTIONS,
    "contrast": CONTRAST,
    "averaged": AVERAGED,
    "chunked": CHUNKED,
    "optimizers": OPTIMIZERS,
    "lora": LORA,
    "dora": DORA,
    "one row": ONE_ROW,
    "shared": SHARED,
    "packed": PACKED,
    "divided": DIVIDED,
    "moe": MOE,
    "mixtral": MIXTRAL,
    "adapted": ADAPTED,
}
MIXING = ("mixes", "contrast", "averaged")


@dataclass(frozen=True, slots=True)
class Cell:
    """`way` names the row of the table; `parallelism` is YAML. `over` is for the model that mixes samples."""

    way: str
    parallelism: str
    gpus: int
    accumulation: int
    rows: Rows
    model: str = "plain"
    over: int = 4
    training: str = ""
    options: str = field(default="")

    @property
    def name(self) -> str:
        words = [self.way, f"accumulation {self.accumulation}", self.rows, self.model]
        words += [f"over {self.over}"] if self.model in MIXING else []
        return ", ".join([*words, *([self.options] if self.options else [])])

    def recipe(self, data: str, runs: str) -> str:
        values = {
            "name": "parity",
            "data": data,
            "runs": runs,
            "accumulation": self.accumulation,
            "parallelism": self.parallelism,
            "gpus": self.gpus,
            "over": self.over,
            "training": self.training,
        }
        head = TEXTS if self.model == "packed" else HEAD
        return (head + MODELS[self.model] + TAIL).format(**values)

    @property
    def num_tokens(self) -> int:
        return FAMILY_TOKENS if self.model in (*FAMILIES, "mixtral") else NUM_TOKENS


SCHEDULES = {
    # word: stages per rank
    "gpipe": 1,
    "1f1b": 1,
    "interleaved_1f1b": 2,
    "looped_bfs": 2,
    "interleaved_zero_bubble": 2,
    "zbv": 2,
    "dualpipev": 2,
}


def pipeline(schedule: str, num_ranks: int, data_parallel: str | None = None) -> Way:
    """A schedule over `num_ranks` ranks, alone or times two."""
    stages = SCHEDULES[schedule] * num_ranks
    microbatches = max(4, stages)
    yaml = f"pipeline: {{stages: {stages}, schedule: {schedule}, microbatches: {microbatches}}}"
    if data_parallel is None:
        return f"pipeline {schedule}, {num_ranks} ranks", f"{{{yaml}}}", num_ranks
    data = {"ddp": "replicate: 2", "fsdp": "shard: 2", "hybrid": "replicate: 2, shard: 2"}[data_parallel]
    yaml += f", data: {{{data}}}"
    if data_parallel == "hybrid":
        return f"pipeline {schedule} x hybrid, {num_ranks} x 2 x 2 ranks", f"{{{yaml}}}", 4 * num_ranks
    return f"pipeline {schedule} x {data_parallel}, {num_ranks} x 2 ranks", f"{{{yaml}}}", 2 * num_ranks


def tensor(size: int, rest: str = "", ranks: int = 1) -> Way:
    """Layers divided over `size` ranks, times the axes of `rest`, which have `ranks` ranks."""
    words = {
        "ddp": "data: {replicate: 2}",
        "fsdp": "data: {shard: 2}",
        "hybrid": "data: {replicate: 2, shard: 2}",
        "1f1b": "pipeline: {stages: 2, microbatches: 4}",
        "zbv": "pipeline: {stages: 4, schedule: zbv, microbatches: 4}",
    }
    product = f" x {rest}, {size} x {ranks} ranks" if rest else f", {size} ranks"
    return f"tensor{product}", f"{{tensor: {size}{', ' + words[rest] if rest else ''}}}", size * ranks


def expert(size: int, rest: str = "", ranks: int = 1) -> Way:
    """Experts divided over `size` ranks, times the axes of `rest`, which have `ranks` ranks."""
    words = {
        "ddp": "data: {replicate: 2}",
        "fsdp": "data: {shard: 2}",
        "hybrid": "data: {replicate: 2, shard: 2}",
        "tensor": "tensor: 2",
        "1f1b": "pipeline: {stages: 2, microbatches: 4}",
        "zbv": "pipeline: {stages: 4, schedule: zbv, microbatches: 4}",
    }
    product = f" x {rest}, {size} x {ranks} ranks" if rest else f", {size} ranks"
    return f"expert{product}", f"{{expert: {size}{', ' + words[rest] if rest else ''}}}", size * ranks


def context(size: int, rest: str = "", ranks: int = 1) -> Way:
    """Positions divided over `size` ranks, times the axes of `rest`, which have `ranks` ranks."""
    words = {
        "ddp": "data: {replicate: 2}",
        "fsdp": "data: {shard: 2}",
        "hybrid": "data: {replicate: 2, shard: 2}",
        "tensor": "tensor: 2",
        "sequence tensor": "tensor: {size: 2, sequence: true}",
        "1f1b": "pipeline: {stages: 2, microbatches: 4}",
        "zbv": "pipeline: {stages: 4, schedule: zbv, microbatches: 4}",
        "1f1b x tensor": "pipeline: {stages: 2, microbatches: 4}, tensor: 2",
        "zbv x ddp": "pipeline: {stages: 4, schedule: zbv, microbatches: 4}, data: {replicate: 2}",
        "fsdp x tensor": "data: {shard: 2}, tensor: 2",
        "expert": "expert: 2",
        "expert x ddp": "expert: 2, data: {replicate: 2}",
        "expert x fsdp": "expert: 2, data: {shard: 2}",
        "expert x tensor": "expert: 2, tensor: 2",
        "expert x 1f1b": "expert: 2, pipeline: {stages: 2, microbatches: 4}",
        "expert x zbv": "expert: 2, pipeline: {stages: 4, schedule: zbv, microbatches: 4}",
    }
    product = f" x {rest}, {size} x {ranks} ranks" if rest else f", {size} ranks"
    return f"context{product}", f"{{context: {size}{', ' + words[rest] if rest else ''}}}", size * ranks


def ring(way: Way) -> Way:
    """The same with keys that travel around the ranks of `context`."""
    row, parallelism, gpus = way
    return f"ring of {row}", re.sub(r"context: (\d+)", r"context: {size: \1, keys: ring}", parallelism), gpus


def sequence(way: Way) -> Way:
    """The same with the tokens divided between the divided layers."""
    row, parallelism, gpus = way
    return f"sequence {row}", re.sub(r"tensor: (\d+)", r"tensor: {size: \1, sequence: true}", parallelism), gpus


def ways() -> Iterator[Way]:
    """Every accepted mode x schedule x product, on 1, 2 and 4 ranks."""
    yield SINGLE
    for mode in ("dp", "ddp", "fsdp"):
        for gpus in (2, 4):
            yield f"{mode}, {gpus} {'devices' if mode == 'dp' else 'ranks'}", mode, gpus
    yield HYBRID
    for schedule in SCHEDULES:
        for num_ranks in (2, 4):
            yield pipeline(schedule, num_ranks)
        for product in ("ddp", "fsdp"):
            yield pipeline(schedule, 2, product)
    for size in (2, 4):
        yield tensor(size)
    for rest in ("ddp", "fsdp", "1f1b", "zbv"):
        yield tensor(2, rest, 2)


ROWS: tuple[Rows, ...] = ("even", "uneven", "masked")


SINGLE: Way = ("single", "single", 1)
DP: Way = ("dp, 2 devices", "dp", 2)
DDP: Way = ("ddp, 2 ranks", "ddp", 2)
FSDP: Way = ("fsdp, 2 ranks", "fsdp", 2)
HYBRID: Way = ("fsdp, hybrid 2 x 2 ranks", "{data: {replicate: 2, shard: all}}", 4)
NOT_IN_STAGES = (SINGLE, DP, DDP, FSDP)


def cut(way: Way, before: str) -> Way:
    """A pipeline whose stages begin at these nodes."""
    row, parallelism, gpus = way
    return row, parallelism.replace("pipeline: {", f"pipeline: {{cut_before: [{before}], "), gpus


@cache
def cells() -> tuple[Cell, ...]:
    """The whole table."""
    clipped = "  clip_grad_norm: 0.05"
    found = [Cell(*way, accumulation, rows) for way in ways() for accumulation in (1, 2) for rows in ROWS]
    # other graphs: skip connections and masks, several terms
    for way, parallelism, gpus in ways():
        for model in ("skip", "terms"):
            if model == "skip" and gpus * (2 if "zbv" in way or "dualpipev" in way else 1) > 4 and "pipeline" in way:
                continue  # eight nodes with parameters are too few for eight stages
            found.append(Cell(way, parallelism, gpus, 2, "masked", model))
    # nodes that mix samples
    ddp_4: Way = ("ddp, 4 ranks", "ddp", 4)
    mixes = {SINGLE: (4, 16, 32), DDP: (4, 16, 32), ddp_4: (4, 16, 32)}
    mixes |= {FSDP: (4, 32), DP: (4,)}
    found += [Cell(*each, 1, "uneven", "mixes", over) for each, overs in mixes.items() for over in overs]
    # losses that mix samples, within a rank and over several
    contrasts: dict[Way, tuple[int, ...]] = {SINGLE: (8,), DP: (32,), ddp_4: (4, 16), FSDP: (32,)}
    found += [Cell(*each, 1, "uneven", "contrast", over) for each, overs in contrasts.items() for over in overs]
    found.append(Cell(*pipeline("1f1b", 2, "ddp"), 1, "even", "contrast", 8))
    averages: dict[Way, tuple[int, ...]] = {SINGLE: (8,), DP: (4,), DDP: (16,), ddp_4: (4, 16), FSDP: (4, 16)}
    found += [Cell(*each, 2, "uneven", "averaged", over) for each, overs in averages.items() for over in overs]
    # convolutions, and stages that begin after one or after a pool
    staged: tuple[Way, ...] = (
        cut(pipeline("1f1b", 2), "b"),
        cut(pipeline("interleaved_zero_bubble", 2), "norm, b, d"),
        cut(pipeline("zbv", 2, "fsdp"), "norm, b, d"),
    )
    found += [Cell(*each, 2, "masked", "convolutions") for each in (*NOT_IN_STAGES, *staged)]
    found += [Cell(*each, GLOBAL_BATCH_SIZE // each[2], "masked", "one row") for each in NOT_IN_STAGES]
    # recurrent layers, and stages that begin with a transpose or a mean; several optimizers
    for each, before in (
        (DDP, ""),
        (FSDP, ""),
        (pipeline("1f1b", 2), "turned"),
        (pipeline("interleaved_zero_bubble", 2), "b, turned, pooled"),
        (pipeline("zbv", 2, "fsdp"), "b, turned, pooled"),
    ):
        placed = cut(each, before) if before else each
        found.append(Cell(*placed, 2, "masked", "recurrent"))
        if before != "b, turned, pooled":
            placed = cut(each, before.replace("turned", "time")) if before else each
            found.append(Cell(*placed, 2, "masked", "leading"))
        found.append(Cell(*each, 2, "masked", "optimizers"))
    # draws of fields, which do not depend on the layout
    staged = (pipeline("1f1b", 2), pipeline("zbv", 2), pipeline("1f1b", 2, "fsdp"))
    for each in (*NOT_IN_STAGES, *staged):
        found += [Cell(*each, accumulation, "uneven", "drawn") for accumulation in (1, 2)]
    # adapters: stages that train nothing, units of which a part is frozen
    staged = (pipeline("1f1b", 2), pipeline("interleaved_zero_bubble", 2), pipeline("1f1b", 2, "ddp"))
    staged = (HYBRID, *staged, pipeline("zbv", 2, "fsdp"), pipeline("1f1b", 2, "hybrid"))
    found += [Cell(*each, 2, "masked", model) for model in ("lora", "dora") for each in (*NOT_IN_STAGES, *staged)]
    found += [Cell(*pipeline(name, 2, "hybrid"), 2, "masked", "terms") for name in ("1f1b", "zbv")]
    # a loss in chunks, by the head where it is the last stage's
    staged = (pipeline("1f1b", 2), pipeline("zbv", 2), pipeline("zbv", 2, "fsdp"))
    found += [Cell(*each, 2, "masked", "chunked") for each in (*NOT_IN_STAGES, *staged)]
    # layers that the ranks of `tensor` divide
    divided = [tensor(size) for size in (2, 4)] + [tensor(2, rest, 2) for rest in ("ddp", "fsdp", "1f1b", "zbv")]
    divided.append(tensor(2, "hybrid", 4))
    found += [Cell(*each, 2, "masked", "divided") for each in (SINGLE, *divided, *map(sequence, divided))]
    adapted = (tensor(2), tensor(4), sequence(tensor(2)), *(tensor(2, rest, 2) for rest in ("ddp", "fsdp", "1f1b")))
    found += [Cell(*each, 2, "masked", "adapted") for each in (SINGLE, *adapted)]
    many = [tensor(4, rest, 2) for rest in ("ddp", "fsdp", "1f1b", "zbv")] + [tensor(4, "hybrid", 4)]
    found += [Cell(*each, 2, "masked", model) for model in ("divided", "gpt", "llama", "gemma") for each in many]
    found += [Cell(*sequence(each), 2, "masked", "divided") for each in many]
    # families of models, divided
    whole = [tensor(2), tensor(4), *(tensor(2, rest, 2) for rest in ("fsdp", "1f1b")), tensor(2, "hybrid", 4)]
    by_tokens = [tensor(2), tensor(4), *(tensor(2, rest, 2) for rest in ("ddp", "zbv"))]
    for model in FAMILIES:
        found += [Cell(*each, 2, "masked", model) for each in (SINGLE, *whole, *map(sequence, by_tokens))]
    divided = [context(2), context(4), context(2, "ddp", 2), context(2, "fsdp", 2)]
    found += [Cell(*each, 2, "masked", model) for model in ("gpt", "llama", "gemma", "bert") for each in divided]
    # positions that the ranks of `context` divide, in every product
    once = [context(size, rest, 2) for size in (2, 4) for rest in ("ddp", "fsdp", "1f1b", "zbv", "tensor")]
    once += [context(size, "hybrid", 4) for size in (2, 4)]
    twice = [context(2, rest, 4) for rest in ("1f1b x tensor", "zbv x ddp", "fsdp x tensor")]
    more = [each for each in (*once, *twice) if each not in divided]
    more += [context(size, "sequence tensor", 2) for size in (2, 4)]
    found += [Cell(*each, 2, "masked", model) for model in ("gpt", "llama", "gemma") for each in more]
    found += [Cell(*each, 2, "masked", "packed") for each in (*once, *twice) if each not in divided]
    rings = [context(2), context(4), *(context(2, rest, 2) for rest in ("fsdp", "1f1b", "zbv", "tensor"))]
    found += [Cell(*ring(each), 2, "masked", model) for model in ("gpt", "llama", "gemma", "bert") for each in rings]
    found += [Cell(*ring(each), 2, "masked", "packed") for each in rings[:3]]
    found += [Cell(*ring(context(2)), 2, "masked", model) for model in ("divided", "skip")]
    products = [context(2, rest, 2) for rest in ("1f1b", "zbv", "tensor", "sequence tensor")]
    found += [Cell(*each, 2, "masked", model) for model in ("divided", "adapted") for each in products]
    found += [Cell(*context(2, "1f1b", 2), 2, "masked", model) for model in ("drawn", "skip", "chunked")]
    divided = [context(2), context(2, "ddp", 2), context(2, "fsdp", 2)]
    found += [
        Cell(*each, 2, "masked", model) for model in ("divided", "packed", "adapted", "drawn") for each in divided
    ]
    found.append(Cell(*context(4), 2, "masked", "packed"))
    found += [Cell(*context(2), 2, "masked", model) for model in ("skip", "chunked")]
    for training, options in ((clipped, "clipped"), ("  activation_checkpointing: blocks", "checkpointing blocks")):
        found += [
            Cell(*each, 2, "masked", "divided", training=training, options=options) for each in (tensor(2), context(2))
        ]
    both = [tensor(2), tensor(2, "fsdp", 2)]
    found += [Cell(*each, 2, "masked", model) for model in ("chunked", "packed") for each in both]
    both = [sequence(each) for each in both]
    found += [Cell(*each, 2, "masked", model) for model in ("skip", "terms", "packed") for each in both]
    # experts, with a bias that is moved by the whole batch
    staged = (pipeline("1f1b", 2), pipeline("zbv", 2), pipeline("1f1b", 2, "ddp"), pipeline("zbv", 2, "fsdp"))
    found += [Cell(*each, 2, "masked", "moe") for each in (*NOT_IN_STAGES, HYBRID, *staged, tensor(2))]
    divided = [expert(size) for size in (2, 4)]
    divided += [expert(2, rest, 2) for rest in ("ddp", "fsdp", "tensor", "1f1b", "zbv")]
    divided.append(expert(2, "hybrid", 4))
    found += [Cell(*each, accumulation, "masked", "moe") for each in divided for accumulation in (1, 2)]
    found.append(Cell(*expert(2), 2, "masked", "moe", training=clipped, options="clipped"))
    checkpointing = "  activation_checkpointing: blocks"
    found.append(Cell(*expert(2), 2, "masked", "moe", training=checkpointing, options="checkpointing blocks"))
    for each in (DDP, pipeline("zbv", 2)):
        found.append(Cell(*each, 2, "masked", "moe", training=checkpointing, options="checkpointing blocks"))
    # experts and positions: each rank has a part of the positions that its balance losses count
    products = [context(2, f"expert x {rest}", 4) for rest in ("ddp", "fsdp", "tensor", "1f1b", "zbv")]
    products = [context(2), context(2, "expert", 2), *products]
    found += [Cell(*each, 2, "masked", model) for model in ("moe", "mixtral") for each in products]
    more = (SINGLE, DDP, expert(2), context(4, "expert", 2), ring(context(2, "expert", 2)))
    found += [Cell(*each, 2, "masked", "mixtral") for each in more]
    found.append(Cell(*context(2, "expert", 2), 1, "uneven", "moe"))
    for training, options in ((clipped, "clipped"), (checkpointing, "checkpointing blocks")):
        found.append(Cell(*context(2, "expert", 2), 2, "masked", "moe", training=training, options=options))
    # texts in one row that do not see each other
    staged = (pipeline("1f1b", 2), pipeline("zbv", 2), pipeline("1f1b", 2, "ddp"), pipeline("zbv", 2, "fsdp"))
    found += [Cell(*each, 2, "masked", "packed") for each in (*NOT_IN_STAGES, HYBRID, *staged)]
    # ties and calls across stages: on two ranks, on one rank of a V, times ddp and fsdp
    for each in (
        SINGLE,
        DDP,
        FSDP,
        cut(pipeline("1f1b", 2), "again"),
        cut(pipeline("1f1b", 4), "b, again, d"),
        cut(pipeline("interleaved_1f1b", 2), "b, again, d"),
        cut(pipeline("zbv", 2), "b, again, d"),
        cut(pipeline("zbv", 2, "ddp"), "b, again, d"),
        cut(pipeline("1f1b", 2, "ddp"), "again"),
        cut(pipeline("1f1b", 2, "fsdp"), "again"),
    ):
        found.append(Cell(*each, 2, "masked", "shared", training=clipped, options="clipped"))
    # what the other settings of training must not change
    staged = (pipeline("1f1b", 2), pipeline("zbv", 2), pipeline("1f1b", 2, "ddp"), pipeline("zbv", 2, "fsdp"))
    for each in (*NOT_IN_STAGES, *staged):
        for training, options in (
            (clipped, "clipped"),
            ("  activation_checkpointing: selective", "checkpointing selective"),
            ("  activation_checkpointing: {policy: selective, keep: [products]}", "checkpointing, products kept"),
            ("  activation_checkpointing: blocks", "checkpointing blocks"),
            ("  activation_checkpointing: {policy: blocks, every: 3}", "checkpointing every third"),
            ("  activation_checkpointing: all", "checkpointing all"),
        ):
            found.append(Cell(*each, 2, "masked", training=training, options=options))
    return tuple(found)


@cache
def long_cells() -> tuple[Cell, ...]:
    """What the long tests run: all but the plain model's easier cells, of which each way has one, by turns. The whole
    table is `make parity`, whose page is docs/parity.md."""
    plain = [cell for cell in cells() if cell.model == "plain" and not cell.options]
    easier = [cell for cell in plain if not (cell.rows == "masked" and cell.accumulation == 2)]
    by_way: dict[str, list[Cell]] = {}
    for cell in easier:
        by_way.setdefault(cell.way, []).append(cell)
    kept = {found[position % len(found)] for position, found in enumerate(by_way.values())}
    return tuple(cell for cell in cells() if cell not in easier or cell in kept)


@cache
def short_cells() -> tuple[Cell, ...]:
    """A part of the table for every test run: each way on 2 ranks at its hardest, and what mixes samples. Of the
    schedules those that have what the others have: several stages on a rank, backward in two parts, a V."""
    hardest = [cell for cell in cells() if cell.rows == "masked" and cell.accumulation == 2 and cell.model == "plain"]
    later = {pipeline(each, 2)[0] for each in ("gpipe", "interleaved_1f1b", "looped_bfs", "dualpipev")}
    hardest = [cell for cell in hardest if cell.way not in later]
    mixing = [cell for cell in cells() if cell.model in MIXING and cell.way == "ddp, 4 ranks" and cell.over == 16]
    single = [cell for cell in cells() if cell.model == "one row" and cell.way in ("single", "ddp, 2 ranks")]
    lora = [cell for cell in cells() if cell.model == "lora" and cell.way == FSDP[0]]
    chunked = [cell for cell in cells() if cell.model == "chunked" and cell.way in ("single", "fsdp, 2 ranks")]
    shared = [cell for cell in cells() if cell.model == "shared" and cell.way == pipeline("1f1b", 2)[0]]
    leading = [cell for cell in cells() if cell.model == "leading" and cell.way == pipeline("1f1b", 2)[0]]
    kept = (SINGLE[0], pipeline("1f1b", 2)[0])
    drawn = [cell for cell in cells() if cell.model == "drawn" and cell.accumulation == 2 and cell.way in kept]
    packed = [cell for cell in cells() if cell.model == "packed" and cell.way in kept]
    divided = [cell for cell in cells() if cell.model == "divided" and not cell.options]
    kept_ways = (tensor(2)[0], tensor(2, "fsdp", 2)[0], sequence(tensor(2))[0], context(2, "1f1b", 2)[0])
    divided = [cell for cell in divided if cell.way in kept_ways]
    kept_ways = (DDP[0], expert(2)[0], context(2, "expert", 2)[0])
    moe = [cell for cell in cells() if cell.model == "moe" and cell.way in kept_ways]
    moe = [cell for cell in moe if cell.accumulation == 2 and not cell.options]
    more = mixing + moe + divided + single + lora + chunked + shared + leading + drawn + packed
    return tuple(cell for cell in hardest if cell.gpus <= 2 and not cell.options) + tuple(more)
