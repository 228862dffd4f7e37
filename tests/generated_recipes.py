"""Generator of valid recipes: a seed gives random but sensible sources, fields, blocks, losses, schedules and modes."""

from __future__ import annotations

import random
from dataclasses import dataclass

OPTIMIZERS = (
    "{type: adam, lr: 1e-3}",
    "{type: adamw, lr: 3e-4, weight_decay: 0.1, betas: [0.9, 0.95]}",
    "{type: sgd, lr: 0.1, momentum: 0.9, nesterov: true}",
    "{type: lion, lr: 1e-4}",
    "{type: rmsprop, lr: 1e-3}",
    "{type: adagrad, lr: 0.01}",
)
SCHEDULES = (
    *(f"{{type: {name}, warmup: 5%}}" for name in ("constant", "cosine", "linear", "wsd", "polynomial")),
    *(f"{{type: {name}, warmup: 3 steps}}" for name in ("cosine", "inverse_sqrt")),
    "{type: step, every: 10 steps, gamma: 0.5}",
    "{type: exponential}",
    "{type: one_cycle}",
)
ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "elu", "leaky_relu", "mish", "softplus")
BODIES = ("layers", "expression", "block", "repeat", "shipped", "residual", "gated", "parted")
CLASSES = ("[accuracy]", "{best_three: {type: accuracy, top_k: 3}}", "[accuracy, f1]", "{sure: {type: precision}}")


@dataclass(frozen=True)
class Kind:
    """Kind of task, with its data. `x`, `y`: names of the input and target fields. `label`: column for a stratified
    split."""

    source: str
    fields: tuple[str, ...]
    x: str
    outputs: int
    losses: tuple[str, ...]
    metrics: tuple[str, ...]
    label: str | None = None
    squeezed: bool = False  # the loss compares numbers, (B), not (B, 1)
    shape: str = "vector"
    more: tuple[str, ...] = ()


def _made(kind: str, more: str = "") -> str:
    return f"{{type: synthetic, kind: {kind}, rows: 240{more}}}"


DIGIT = "digit: {type: category, column: label, num_classes: 10}"
OF_CLASSES = tuple(
    f"{{type: cross_entropy, input: logits, target: digit{more}}}"
    for more in ("", ", label_smoothing: 0.1", ", class_weights: balanced")
)
NUMBER = tuple(f"{{type: {name}, input: logits, target: y}}" for name in ("mse", "l1", "huber", "smooth_l1"))
KINDS = (
    Kind(
        "{type: csv, path: data/digits.csv}",
        ('pixels: {columns: "p*", dtype: float32, scale: 0.0625}', DIGIT),
        *("pixels", 10, OF_CLASSES, CLASSES, "label"),
    ),
    Kind(
        _made("classification", ", features: 64, classes: 10"),
        ("pixels: {column: x}", "digit: {type: category, column: y, num_classes: 10}"),
        *("pixels", 10, OF_CLASSES, CLASSES, "y"),
    ),
    Kind(
        _made("binary", ", features: 16"),
        ("x: {column: x, normalize: standard}", "y: {column: y, dtype: float32}"),
        *("x", 1, ("{type: bce_with_logits, input: logits, target: y}",), ("[auroc]", "[average_precision]")),
        label="y",
        squeezed=True,
    ),
    Kind(
        _made("regression", ", features: 16"),
        ("x: {column: x}", "y: {column: y}"),
        *("x", 1, (*NUMBER, "{type: mean, input: error}"), ("[mae]", "[rmse, r2]")),
        squeezed=True,
    ),
    Kind(
        _made("images", ", channels: 1, size: 8, classes: 10"),
        ("pixels: {column: image}", DIGIT),
        *("pixels", 10, OF_CLASSES, CLASSES, "label"),
        shape="image",
    ),
    Kind(
        "{type: synthetic, kind: tokens, rows: 4096, vocabulary: 64}",
        ('tokens: {column: tokens, rows: ":-1"}', 'next: {column: tokens, rows: "1:"}'),
        *("tokens", 64, ("{type: cross_entropy, input: logits, target: next}",), ("[accuracy]", "[perplexity]")),
        shape="text",
        more=("  window: {length: 17, stride: 16}",),
    ),
)
MODES = (
    ("parallelism: single", "layout: {gpus: 1}"),
    ("parallelism: ddp", "layout: {gpus: 2}"),
    ("parallelism: fsdp", "layout: {gpus: 4}"),
    ("parallelism: {data: {replicate: 2, shard: all}}", "layout: {gpus: 4}"),
    ("parallelism: dp", "layout: {gpus: 2}"),
    *(
        (f"parallelism: {{pipeline: {{stages: 2, microbatches: 2, {more}}}}}", "layout: {gpus: 2}")
        for more in ("cut_before: [LAST]", "schedule: gpipe", "schedule: 1f1b")
    ),
    (
        "parallelism: {data: {replicate: 2}, pipeline: {stages: 2, microbatches: 2}}",
        "layout: {gpus: 4}",
    ),
    ("parallelism: ddp", "layout: {nodes: 2, gpus_per_node: 2}"),
    ("parallelism: auto", "layout: {gpus: 4}"),
    ("parallelism: auto", "layout: {nodes: 2, gpus_per_node: 2, hardware: a100-sxm-80gb}"),
)


def generated(seed: int) -> str:
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    sections = [f"name: generated_{seed}", f"seed: {rng.randrange(1000)}", *_data(kind, rng), *_model(kind, rng)]
    loss = rng.choice(kind.losses)
    if "input: error" in loss:
        sections = _add_error_node(sections)
    metrics = [] if "input: error" in loss else [f"  metrics: {rng.choice(kind.metrics)}"]
    sections += ["objective:", f"  loss: {loss}", *metrics, "training:", *_training(rng), *_around(rng)]
    last = "score" if kind.squeezed else "logits"
    return "\n".join([*sections, *rng.choice(MODES)]).replace("LAST", last) + "\n"


def _data(kind: Kind, rng: random.Random) -> list[str]:
    splits = ["0.2", "{type: last, fraction: 0.1}"] if kind.shape != "text" else ["{type: last, fraction: 0.1}"]
    if kind.label is not None:
        splits.append(f"{{type: stratified, fraction: 0.2, column: {kind.label}}}")
    lines = ["data:", f"  source: {kind.source}", "  fields:", *(f"    {field}" for field in kind.fields), *kind.more]
    lines.append(f"  split: {{validation: {rng.choice(splits)}}}")
    return lines + rng.choice(([], ["  shuffle: false"], ["  last_batch: drop"]))


def _model(kind: Kind, rng: random.Random) -> list[str]:
    blocks, nodes = _BODIES[kind.shape](kind, rng)
    last = "score" if kind.squeezed else "logits"
    nodes.append(f"    {last}: {{type: linear, out_features: {kind.outputs}}}")
    if kind.squeezed:
        nodes.append("    logits: score[:, 0]")
    rules = rng.choice(
        ([], ["  parameters:", "    bias: {weight_decay: 0}"], ["  parameters:", f"    {last}: {{lr_scale: 0.5}}"])
    )
    return ["model:", *blocks, "  graph:", *nodes, *rules]


def _add_error_node(sections: list[str]) -> list[str]:
    """Add the node `error` to the model, which computes a loss by itself."""
    at = next(place for place, line in enumerate(sections) if line.startswith("    logits:"))
    return [*sections[: at + 1], "    error: (logits - y) ** 2", *sections[at + 1 :]]


def _vector(kind: Kind, rng: random.Random) -> tuple[list[str], list[str]]:
    width, activation = rng.choice((16, 32, 64)), rng.choice(ACTIVATIONS)
    first = f"    first: {{type: linear, out_features: {width}, input: {kind.x}}}"
    second = f"    second: {{type: linear, out_features: {width}}}"
    inner = ["        norm: {type: layer_norm}", f"        inner: {{type: linear, out_features: {width}}}"]
    inner += [f"        act: {{type: {activation}}}", "        sum: x + act"]
    block = ["  blocks:", "    unit:", "      inputs: [x]", "      graph:", *inner, "      output: sum"]
    bodies: dict[str, tuple[list[str], list[str]]] = {
        "layers": ([], [first, f"    act: {{type: {activation}}}", "    drop: {type: dropout, p: 0.1}"]),
        "expression": ([], [first, "    act: relu(first) * sigmoid(first) + first / 2"]),
        "block": (block, [first, "    body: {type: unit}"]),
        "repeat": (block, [first, f"    body: {{type: unit, repeat: {rng.randint(1, 4)}}}"]),
        "shipped": (
            [],
            [f"    body: {{type: mlp, hidden: [{width}, {width}], activation: {activation}, input: {kind.x}}}"],
        ),
        "residual": ([], [first, second, "    both: first + second"]),
        "gated": (
            [],
            [first, second, "    gate: sigmoid(second)", "    both: {type: multiply, inputs: [first, gate]}"],
        ),
        "parted": ([], [first, second, "    both: {type: concat, inputs: [first, second]}"]),
    }
    return bodies[rng.choice(BODIES)]


def _image(kind: Kind, rng: random.Random) -> tuple[list[str], list[str]]:
    channels, activation = rng.choice((4, 8)), rng.choice(ACTIVATIONS)
    conv = f"    conv: {{type: conv2d, out_channels: {channels}, kernel_size: 3, padding: 1, input: {kind.x}}}"
    pooled = rng.choice((["    pooled: mean(act, dim=[2, 3])"], ["    pool: {type: max_pool2d, kernel_size: 2}",
                                                               "    flat: {type: flatten}"]))  # fmt: skip
    norm = rng.choice(([], [f"    norm: {{type: group_norm, num_groups: {channels // 2}}}"]))
    vit = "{type: vit, patch_size: 4, layers: 1, width: 16, heads: 2, hidden: 32, pool: mean"
    return rng.choice(
        (
            ([], [conv, *norm, f"    act: {{type: {activation}}}", *pooled]),
            ([], [f"    body: {vit}, input: {kind.x}}}"]),
        )
    )


def _text(kind: Kind, rng: random.Random) -> tuple[list[str], list[str]]:
    embed = f"    embed: {{type: embedding, embedding_dim: 16, input: {kind.x}}}"
    inner = ["        norm: {type: rms_norm}", "        attn: {type: self_attention, heads: 2, causal: true}"]
    inner += [
        "        mid: x + attn",
        "        ffn: {type: mlp, hidden: [32], out_features: 16}",
        "        sum: mid + ffn",
    ]
    block = ["  blocks:", "    decoder:", "      inputs: [x]", "      graph:", *inner, "      output: sum"]
    recurrent = f"    body: {{type: {rng.choice(('lstm', 'gru'))}, hidden_size: 16}}"
    return rng.choice(
        (
            (block, [embed, f"    body: {{type: decoder, repeat: {rng.randint(1, 3)}}}"]),
            ([], [embed, "    place: {type: learned_positions}", recurrent]),
            ([], [embed, "    norm: {type: layer_norm}"]),
        )
    )


_BODIES = {"vector": _vector, "image": _image, "text": _text}


def _training(rng: random.Random) -> list[str]:
    length = rng.choice(("epochs: 5", "steps: 60"))
    lines = [f"  {length}", "  global_batch_size: 24", f"  optimizer: {rng.choice(OPTIMIZERS)}"]
    lines += rng.choice(([], [f"  lr_schedule: {rng.choice(SCHEDULES)}"]))
    lines += rng.choice(([], ["  clip_grad_norm: 1.0"], ["  gradient_accumulation_steps: 2"], ["  precision: bf16"]))
    return lines


def _around(rng: random.Random) -> list[str]:
    lines = rng.choice(([], ["evaluation: {every: 20 steps}"], ["evaluation: {every: 20%, max: 100 samples}"]))
    lines += rng.choice(
        ([], ["checkpoint: {every: 20 steps, keep: 2}"], ["checkpoint: {best: {metric: validation/loss, mode: min}}"])
    )
    return lines + rng.choice(([], ["logging: {every: 10 steps}"], ["meta: {owner: me, tags: [a, b]}"]))
