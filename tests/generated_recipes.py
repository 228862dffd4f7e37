"""A seed -> a valid recipe of random but sensible parts, over the data of `tests/cases`."""

from __future__ import annotations

import random

SOURCES = {
    "digits": "source: {type: csv, path: data/digits.csv}",
    "made": "source: {type: synthetic, kind: classification, rows: 240, features: 64, classes: 10}",
}
OPTIMIZERS = (
    "{type: adam, lr: 1e-3}",
    "{type: adamw, lr: 3e-4, weight_decay: 0.1, betas: [0.9, 0.95]}",
    "{type: sgd, lr: 0.1, momentum: 0.9, nesterov: true}",
    "{type: lion, lr: 1e-4}",
    "{type: rmsprop, lr: 1e-3}",
    "{type: adagrad, lr: 0.01}",
)
SCHEDULES = (
    "constant", "cosine", "linear", "inverse_sqrt", "wsd",
)  # fmt: skip
ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "elu", "leaky_relu", "mish", "softplus")
BODIES = ("layers", "expression", "block", "repeat", "shipped", "residual")


def generated(seed: int) -> str:
    rng = random.Random(seed)
    sections = [f"name: generated_{seed}", f"seed: {rng.randrange(1000)}", *_data(rng), *_model(rng)]
    sections += ["objective:", *_objective(rng), "training:", *_training(rng), *_around(rng), *_parallelism(rng)]
    return "\n".join(sections) + "\n"


def _data(rng: random.Random) -> list[str]:
    source = rng.choice(list(SOURCES))
    names = {"digits": ('columns: "p*", scale: 0.0625', "column: label"), "made": ("column: x", "column: y")}[source]
    split = rng.choice(("0.2", "{type: last, fraction: 0.1}", f"{{type: stratified, fraction: 0.2, {names[1]}}}"))
    lines = ["data:", f"  {SOURCES[source]}", "  fields:", f"    pixels: {{{names[0]}, dtype: float32}}"]
    lines += [f"    digit: {{type: category, {names[1]}, num_classes: 10}}", f"  split: {{validation: {split}}}"]
    return lines + rng.choice(([], ["  shuffle: false"], ["  last_batch: drop"]))


def _model(rng: random.Random) -> list[str]:
    width = rng.choice((16, 32, 64))
    activation = rng.choice(ACTIVATIONS)
    body = rng.choice(BODIES)
    first = f"    first: {{type: linear, out_features: {width}, input: pixels}}"
    last = "    logits: {type: linear, out_features: 10}"
    inner = ["        norm: {type: layer_norm}", f"        inner: {{type: linear, out_features: {width}}}"]
    inner += [f"        act: {{type: {activation}}}", "        sum: x + act"]
    block = ["  blocks:", "    unit:", "      inputs: [x]", "      graph:", *inner, "      output: sum"]
    middle = {
        "layers": ([], [first, f"    act: {{type: {activation}}}", "    drop: {type: dropout, p: 0.1}"]),
        "expression": ([], [first, "    act: relu(first) * sigmoid(first) + first / 2"]),
        "block": (block, [first, "    body: {type: unit}"]),
        "repeat": (block, [first, f"    body: {{type: unit, repeat: {rng.randint(1, 4)}}}"]),
        "shipped": (
            [],
            [f"    body: {{type: mlp, hidden: [{width}, {width}], activation: {activation}, input: pixels}}"],
        ),
        "residual": ([], [first, f"    second: {{type: linear, out_features: {width}}}", "    both: first + second"]),
    }
    blocks, nodes = middle[body]
    rules = rng.choice(
        ([], ["  parameters:", "    bias: {weight_decay: 0}"], ["  parameters:", "    logits: {lr_scale: 0.5}"])
    )
    return ["model:", *blocks, "  graph:", *nodes, last, *rules]


def _objective(rng: random.Random) -> list[str]:
    smoothing = rng.choice(("", ", label_smoothing: 0.1", ", class_weights: balanced"))
    metrics = rng.choice(("[accuracy]", "{best_three: {type: accuracy, top_k: 3}}", "[accuracy, f1]"))
    return [f"  loss: {{type: cross_entropy, input: logits, target: digit{smoothing}}}", f"  metrics: {metrics}"]


def _training(rng: random.Random) -> list[str]:
    length = rng.choice(("epochs: 5", "steps: 60"))
    lines = [f"  {length}", "  global_batch_size: 24", f"  optimizer: {rng.choice(OPTIMIZERS)}"]
    lines += rng.choice(
        ([], [f"  lr_schedule: {{type: {rng.choice(SCHEDULES)}, warmup: {rng.choice(('5%', '3 steps'))}}}"])
    )
    lines += rng.choice(([], ["  clip_grad_norm: 1.0"], ["  gradient_accumulation_steps: 2"], ["  precision: bf16"]))
    return lines


def _around(rng: random.Random) -> list[str]:
    lines = rng.choice(([], ["evaluation: {every: 20 steps}"], ["evaluation: {every: 20%, max: 100 samples}"]))
    lines += rng.choice(
        ([], ["checkpoint: {every: 20 steps, keep: 2}"], ["checkpoint: {best: {metric: validation/loss, mode: min}}"])
    )
    return lines + rng.choice(([], ["logging: {every: 10 steps}"], ["meta: {owner: me, tags: [a, b]}"]))


def _parallelism(rng: random.Random) -> list[str]:
    return rng.choice(
        (
            ["parallelism: single", "layout: {gpus: 1}"],
            ["parallelism: ddp", "layout: {gpus: 2}"],
            ["parallelism: fsdp", "layout: {gpus: 4}"],
            ["parallelism: {mode: fsdp, replicate: 2}", "layout: {gpus: 4}"],
            ["parallelism: dp", "layout: {gpus: 2}"],
            ["parallelism: {mode: pipeline, stages: 2, microbatches: 2, cut_before: [logits]}", "layout: {gpus: 2}"],
            ["parallelism: ddp", "layout: {nodes: 2, gpus_per_node: 2}"],
            ["parallelism: auto", "layout: {gpus: 4}"],
            ["parallelism: auto", "layout: {nodes: 2, gpus_per_node: 2, hardware: a100-sxm-80gb}"],
        )
    )
