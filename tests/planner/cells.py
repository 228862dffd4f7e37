"""The cells of the planner's table: a model x a way to run x precision x activation checkpointing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

RECIPE = """
name: {name}
data:
{data}
model:
{model}
objective: {{losses: {{loss: {{type: cross_entropy, input: logits, target: {target}}}{terms}}}}}
training:
  steps: 4
  global_batch_size: 16
  optimizer: {{type: adamw, lr: 1e-3}}
  precision: {precision}
  activation_checkpointing: {checkpointing}
parallelism: {parallelism}
layout: {{gpus: {gpus}, device: cpu}}
logging: {{dir: "{runs}"}}
"""

TOKENS = """\
  source: {type: synthetic, kind: tokens, rows: 8000}
  window: {length: 65, stride: 64}
  fields:
    tokens: {column: tokens, rows: ":-1"}
    next: {column: tokens, rows: "1:"}"""

IMAGES = """\
  source: {type: npy, path: "DATA"}
  fields:
    x: {column: x}
    y: {type: category, column: y, num_classes: 10}"""

MODELS = {
    "llama": (
        TOKENS,
        "  graph:\n    logits: {type: llama, vocabulary: 256, layers: 4, width: 64, heads: 4, input: tokens}",
        "next",
    ),
    "tied": (  # one tensor for the first stage and the last, and a block of one stage that is called in another
        TOKENS,
        """\
  graph:
    embed: {type: embedding, num_embeddings: 2000, embedding_dim: 64, input: tokens}
    a: {type: linear, out_features: 64}
    layers: {type: linear, out_features: 64, repeat: 6}
    again: {type: reuse, node: a, input: layers}
    norm: {type: layer_norm}
    logits: {type: linear, out_features: 2000, bias: false}
  parameters:
    logits.weight: {tie: embed.weight}""",
        "next",
    ),
    "vit": (
        IMAGES,
        "  graph:\n    logits: {type: vit, out_features: 10, patch_size: 4, layers: 4, width: 64, heads: 4, input: x}",
        "y",
    ),
    "resnet": (
        IMAGES,
        """\
  graph:
    logits: {type: resnet, depth: 18, out_features: 10, width: 16, groups: 4, small_images: true, input: x}""",
        "y",
    ),
    "mixtral": (
        TOKENS,
        """\
  graph:
    logits: {type: mixtral, vocabulary: 256, layers: 4, width: 64, heads: 4, experts: 8, hidden: 96, input: tokens}""",
        "next",
    ),
    "mixtral_even": (  # each token uses all experts, so that all ranks get as many rows
        TOKENS,
        """\
  graph:
    logits: {type: mixtral, vocabulary: 256, layers: 4, width: 64, heads: 4, experts: 4, top_k: 4, input: tokens}""",
        "next",
    ),
    "lstm": (
        TOKENS,
        """\
  graph:
    embed: {type: embedding, num_embeddings: 256, embedding_dim: 64, input: tokens}
    layers: {type: lstm, hidden_size: 64, repeat: 4}
    norm: {type: layer_norm}
    logits: {type: linear, out_features: 256}""",
        "next",
    ),
}


def pipeline(stages: int, schedule: str, product: str = "") -> str:
    beside = {"": "", "ddp": ", data: {replicate: 2}", "fsdp": ", data: {shard: 2}"}[product]
    return f"{{pipeline: {{stages: {stages}, schedule: {schedule}, microbatches: 4}}{beside}}}"


WAYS: dict[str, tuple[str, int]] = {
    "single": ("single", 1),
    "dp 2": ("dp", 2),
    "ddp 2": ("ddp", 2),
    "fsdp 2": ("fsdp", 2),
    "hybrid 2x2": ("{data: {replicate: 2, shard: all}}", 4),
    "gpipe 2": (pipeline(2, "gpipe"), 2),
    "1f1b 2": (pipeline(2, "1f1b"), 2),
    "interleaved_1f1b 2": (pipeline(4, "interleaved_1f1b"), 2),
    "looped_bfs 2": (pipeline(4, "looped_bfs"), 2),
    "interleaved_zero_bubble 2": (pipeline(4, "interleaved_zero_bubble"), 2),
    "zbv 2": (pipeline(4, "zbv"), 2),
    "dualpipev 2": (pipeline(4, "dualpipev"), 2),
    "1f1b 2 x ddp 2": (pipeline(2, "1f1b", "ddp"), 4),
    "1f1b 2 x fsdp 2": (pipeline(2, "1f1b", "fsdp"), 4),
}
OF_EXPERTS: dict[str, tuple[str, int]] = {
    "expert 2": ("{expert: 2}", 2),
    "expert 2 x fsdp 2": ("{expert: 2, data: {shard: 2}}", 4),
    "context 2 x expert 2": ("{context: 2, expert: 2}", 4),
}
PIPELINES = tuple(way for way, (parallelism, _) in WAYS.items() if "pipeline" in parallelism)
# of these `make test` runs
QUICK = {
    ("llama", "single", "fp32", "none"),
    ("llama", "single", "bf16", "blocks"),
    ("llama", "dp 2", "fp32", "none"),
    ("llama", "fsdp 2", "bf16", "none"),
    ("llama", "zbv 2", "bf16", "blocks"),
    ("llama", "1f1b 2 x fsdp 2", "bf16", "blocks"),
    ("tied", "1f1b 2", "fp32", "none"),
    ("vit", "single", "bf16", "blocks"),
    ("resnet", "ddp 2", "fp32", "none"),
    ("lstm", "single", "fp32", "none"),
    ("llama", "ddp 2", "bf16", "none"),
    ("llama", "single", "fp64", "blocks"),
    ("mixtral_even", "context 2 x expert 2", "fp32", "none"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    model: str
    way: str
    precision: str
    checkpointing: str

    @property
    def name(self) -> str:
        return f"{self.model}, {self.way}, {self.precision}, {self.checkpointing}"

    @property
    def is_quick(self) -> bool:
        return (self.model, self.way, self.precision, self.checkpointing) in QUICK

    def recipe(self, data: str, runs: str) -> str:
        source, graph, target = MODELS[self.model]
        parallelism, gpus = (WAYS | OF_EXPERTS)[self.way]
        return RECIPE.format(
            name=self.model,
            data=source.replace("DATA", data),
            model=graph,
            target=target,
            terms=", balance: {type: mean, input: logits.balance, weight: 0.01}" if "mixtral" in self.model else "",
            precision=self.precision,
            checkpointing=self.checkpointing,
            parallelism=parallelism,
            gpus=gpus,
            runs=runs,
        )


def cells() -> Iterator[Cell]:
    for way in ("single", "fsdp 2", "1f1b 2"):  # in fp64, which is for checks, parameters are as wide as all else
        for checkpointing in ("none", "selective", "blocks"):
            yield Cell("llama", way, "fp64", checkpointing)
    for model in MODELS:
        for way in {"tied": PIPELINES, "mixtral": OF_EXPERTS, "mixtral_even": OF_EXPERTS}.get(model, WAYS):
            for precision in ("fp32",) if model == "mixtral_even" else ("fp32", "bf16"):
                for checkpointing in ("none",) if model == "tied" else ("none", "selective", "blocks"):
                    yield Cell(model, way, precision, checkpointing)
