"""Recipes for odd data. Those that lint accepts are trained: what fails then is a mistake that lint should report.

python -m tests.hunt [COUNT] [FIRST]     COUNT recipes (200 if it is left out), from seed FIRST on

A recipe without errors trains three steps in this process, and is evaluated once. All losses must be finite.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.plan.plan import Plan
from declarative_train.run.event import EpochDone, EvaluationDone, Event, Notice, StepDone
from declarative_train.run.launch import run
from declarative_train.run.sink import Sink

ROWS = 96
X = ("x", "wide", "scaled", "flags")  # (B, k) floats
IDS = ("label", "small", "shifted")  # (B,) whole numbers
VECTORS = (
    "A",
    "A * 2 - 1",
    "log(abs(A) + 1)",
    "log(A)",
    "sqrt(A)",
    "A / B",
    "exp(A)",
    "clamp(A, -1, 1)",
    "where(A > 0, A, B)",
    "A - mean(A, dim=-1, keepdim=true)",
    "A / std(A, dim=-1, keepdim=true)",
    "float(A > B)",
    "A ** 2",
    "A % 2",
    "A // 3",
    "concat(A, B)",
    "A / sum(A, dim=-1, keepdim=true)",
    "softmax(A, dim=-1)",
    "normalize(A)",
    "round(A)",
    "rsqrt(A)",
    "cumsum(A, dim=-1)",
    "A + randn_like(A)",
    "flip(A, [1])",
    "nan_to_num(A / A)",
    "A[:, :2]",
    "stack(A, B, dim=1)[:, 0]",
)
NUMBERS = (
    "N",
    "N + 1",
    "N - 1",
    "N * 2",
    "N // 2",
    "N % 3",
    "clamp(N, 0, 3)",
    "clamp(N, min=0)",
    "abs(N)",
    "where(N > 2, N, 0)",
    "maximum(N, M)",
    "N + M",
    "N - N // 2",
    "int(y)",
    "int(clamp(y, 0, 3))",
    "int(sigmoid(y) * 4)",
    "argmax(x, dim=-1)",
    "-N",
    "N * N",
    "int(N > 2)",
    "minimum(N, 3 * M)",
    "where(M > 1, N, M)",
    "cats[:, 1]",
    "cats[:, 0] + N",
)
MASKS = (
    "y > 0",
    "label > 1",
    "label > 9",
    "small == 0",
    "y > 100",
    "count",
    "isfinite(log(y))",
    "count - 2",
    "~(label == 0)",
)
OF_CLASSES = (
    "accuracy",
    "f1",
    "precision",
    "recall",
    "perplexity",
    "auroc",
    "mcc",
    "{best: {type: accuracy, top_k: 2}}",
)
OF_FLAGS = ("mcc", "auroc", "average_precision", "accuracy", "f1", "precision", "recall")
OF_NUMBERS = ("mae", "rmse", "r2", "mape", "mse")


@dataclass
class Hunted:
    counts: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def text(self) -> str:
        said = ", ".join(f"{code} {count}" for code, count in self.codes.most_common())
        return "\n".join([*(f"{count:>5}  {what}" for what, count in self.counts.most_common()), f"errors: {said}"])


def hunt(first: int, count: int) -> Hunted:
    found = Hunted()
    with tempfile.TemporaryDirectory(prefix="hunt") as name:
        folder = Path(name)
        for seed in range(first, first + count):
            write_table(folder / f"odd_{seed % 7}.csv", seed % 7)
            text = odd_recipe(seed)
            try:
                problem = attempt(folder, text, found)
            except Exception:
                problem = traceback.format_exc()
            if problem is not None:
                found.failures.append(f"seed {seed}: {problem}\n{text}")
    return found


def attempt(folder: Path, text: str, found: Hunted) -> str | None:
    """Compile a recipe, and train it if it has no error. Return a description of what goes wrong in training, or
    None."""
    path = folder / "recipe.yaml"
    path.write_text(text)
    loaded = recipe_room.load(str(path))
    diagnostics, plan = list(loaded.diagnostics), None
    if loaded.recipe is not None:
        plan, more = planner.compile(loaded.recipe)
        diagnostics += more
    errors = [item for item in diagnostics if item.is_error]
    if errors or plan is None:
        found.counts["refused"] += 1
        found.codes.update({item.code for item in errors})
        return None if errors else "neither an error nor a plan"
    found.counts["trained"] += 1
    return _train(folder, plan)


def _train(folder: Path, plan: Plan) -> str | None:
    seen = _Seen()
    plan = replace(plan, checkpoint=None, logging=replace(plan.logging, dir=str(folder / "runs"), every_steps=1))
    with open(folder / "said", "w+", encoding="utf-8") as file:
        with redirect_stderr(file), redirect_stdout(file):
            code = run(plan, sinks=lambda _: (seen,))
        file.seek(0)
        said = file.read()
    if code:
        return f"the run failed with {code}: {said}"
    told = seen.without_items  # a step without a valid item has no loss; the run reports it
    values = {name: value for name, value in seen.losses.items() if not (told and name.startswith("step"))}
    odd = {name: value for name, value in values.items() if not math.isfinite(value)}
    return f"not finite: {odd}" if odd else None


class _Seen(Sink):
    """Sink that stores the losses. Metrics are left out: some are nan for good reasons, for example if there is only
    one class."""

    def __init__(self) -> None:
        self.losses: dict[str, float] = {}
        self.without_items = False

    def write(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.losses[f"step {event.step}"] = event.loss
        elif isinstance(event, Notice):
            self.without_items |= "no item was valid" in event.message
        elif isinstance(event, EvaluationDone | EpochDone):
            self.losses |= {name: value for name, value in event.values.items() if "loss" in name}

    def flush(self) -> None: ...

    def close(self) -> None: ...


def write_table(path: Path, seed: int) -> None:
    """Write a table of odd columns: constant, nearly constant, large, negative, rare, ordered, or with one odd
    value."""
    rng = np.random.default_rng(seed)
    ramp = np.arange(ROWS)
    columns = {
        **{f"p{i}": rng.normal(size=ROWS) for i in range(3)},
        "q0": np.full(ROWS, 3.0),
        "q1": rng.uniform(0, 255, ROWS),
        "q2": (ramp % 5 == 0) * 1.0,
        "label": np.concatenate([np.arange(5), rng.integers(0, 5, ROWS - 5)]),
        "c0": np.zeros(ROWS, int),
        "c1": ramp % 3,
        "c2": np.where(ramp == ROWS - 1, 11, ramp % 7),
        "small": rng.integers(0, 3, ROWS),
        "shifted": rng.integers(-2, 4, ROWS),
        "y": rng.normal(size=ROWS) * 3,
        "flag": rng.integers(0, 2, ROWS),
        "count": rng.poisson(2, ROWS),
    }
    lines = [",".join(columns)]
    lines += [",".join(f"{column[row]:g}" for column in columns.values()) for row in range(ROWS)]
    path.write_text("\n".join(lines) + "\n")


def odd_recipe(seed: int) -> str:
    rng = random.Random(seed)
    nodes: dict[str, str] = {}
    vector = _vector(rng)
    nodes["made"] = vector
    parts = ["made"]
    if rng.random() < 0.6:
        nodes["n"] = _number(rng)
        rows = rng.choice(("", "", "num_embeddings: 5, ", "num_embeddings: 12, "))
        nodes["table"] = rng.choice(
            (f"{{type: embedding, {rows}embedding_dim: 4, input: n}}", f'"float(one_hot(n, {rng.choice((3, 6, 12))}))"')
        )
        parts.append("table")
    if rng.random() < 0.4:
        sizes = rng.choice(("", "num_embeddings: [1, 3, 12], ", "num_embeddings: [12, 3, 3], "))
        nodes["tables"] = f"{{type: embeddings, {sizes}embedding_dim: 2, input: cats}}"
        parts.append("tables")
    joined = f"concat({', '.join(parts)})" if len(parts) > 1 else "made * 1"
    nodes["joined"] = joined
    norm = rng.choice(("layer_norm", "batch_norm", "relu", "tanh", "rms_norm"))
    nodes["hidden"] = "{type: linear, out_features: 8, input: joined}"
    nodes["act"] = f"{{type: {norm}}}"
    outputs, loss, metric = _objective(rng, nodes)
    nodes.setdefault("logits", f"{{type: linear, out_features: {outputs}, input: act}}")
    order = [name for name in nodes if name not in ("out",)] + [name for name in ("out",) if name in nodes]
    graph = [f"    {name}: {_quoted(nodes[name])}" for name in order]
    batch, optimizer = rng.choice((12, 16, 7)), rng.choice(("adam", "sgd"))
    return (
        "\n".join(
            [
                f"name: odd_{seed}",
                f"seed: {seed}",
                "data:",
                f"  source: {{type: csv, path: odd_{seed % 7}.csv}}",
                "  fields:",
                '    x: {columns: "p*", normalize: standard}',
                f'    wide: {{columns: "q*", normalize: {rng.choice(("standard", "minmax"))}}}',
                "    scaled: {columns: [p0, q1, q0], scale: 0.01}",
                "    flags: {columns: [flag, q2, c1]}",
                "    cats: {type: category, columns: [c0, c1, c2], unknown: 0}",
                "    label: {type: category, column: label, num_classes: 5}",
                "    small: {column: small, dtype: int64}",
                "    shifted: {column: shifted, dtype: int64}",
                "    y: {column: y}",
                "    flag: {column: flag}",
                "    count: {column: count}",
                f"  split: {{validation: {rng.choice(('0.2', '{type: last, fraction: 0.2}'))}}}",
                "model:",
                "  graph:",
                *graph,
                "objective:",
                f"  loss: {loss}",
                *(
                    [f"  metrics: [{metric}]" if not metric.startswith("{") else f"  metrics: {metric}"]
                    if metric
                    else []
                ),
                f"training: {{steps: 3, global_batch_size: {batch}, optimizer: {{type: {optimizer}, lr: 1e-3}}}}",
                "parallelism: single",
                "layout: {gpus: 1, device: cpu}",
            ]
        )
        + "\n"
    )


def _quoted(text: str) -> str:
    return text if text.startswith(("{", '"')) else f'"{text}"'


def _vector(rng: random.Random) -> str:
    return rng.choice(VECTORS).replace("A", rng.choice(X)).replace("B", rng.choice(("x", "wide", "scaled")))


def _number(rng: random.Random) -> str:
    text = rng.choice(NUMBERS)
    return "".join(rng.choice(IDS) if letter in "NM" else letter for letter in text)


def _objective(rng: random.Random, nodes: dict[str, str]) -> tuple[int, str, str]:
    """Choose an objective, and add the nodes that it reads to `nodes`. Return the number of scores, the loss, and a
    metric ("" for none)."""
    kind = rng.choice(("classes", "classes", "flags", "numbers", "numbers", "counts", "divergence", "itself"))
    mask = ""
    if rng.random() < 0.25 and kind not in ("itself",):
        nodes["kept"] = rng.choice(MASKS)
        mask = ", mask: kept"
    if kind == "classes":
        target = "label"
        if rng.random() < 0.5:
            nodes["wanted"], target = _number(rng), "wanted"
        more = rng.choice(("", ", label_smoothing: 0.1", ", class_weights: balanced", ", ignore_index: 0"))
        loss = rng.choice(("cross_entropy", "cross_entropy", "nll"))
        return (
            5,
            f"{{type: {loss}, input: logits, target: {target}{mask}{more if loss != 'nll' else ''}}}",
            rng.choice(OF_CLASSES),
        )
    if kind == "divergence":
        nodes["logits"] = "{type: linear, out_features: 3, input: act}"
        nodes["out"] = "log_softmax(logits, dim=-1)"
        nodes["wanted"] = rng.choice(("x", "softmax(x, dim=-1)", "flags", "log_softmax(wide, dim=-1)"))
        nodes["wanted"] += " * 1" if nodes["wanted"] in ("x", "flags") else ""
        return 3, f"{{type: kl_div, input: out, target: wanted{mask}}}", ""
    nodes["logits"] = "{type: linear, out_features: 1, input: act}"
    nodes["out"] = "logits[:, 0]"
    if kind == "flags":
        target = rng.choice(("flag", "flag", "y", "count"))
        more = rng.choice(("", ", pos_weight: balanced", ", pos_weight: 2.0"))
        return 1, f"{{type: bce_with_logits, input: out, target: {target}{mask}{more}}}", rng.choice(OF_FLAGS)
    if kind == "counts":
        nodes["out"] = rng.choice(("logits[:, 0]", "exp(logits[:, 0])"))
        target = rng.choice(("count", "count", "y"))
        more = rng.choice(("", ", log_input: false", ", full: true"))
        return 1, f"{{type: poisson_nll, input: out, target: {target}{mask}{more}}}", ""
    if kind == "itself":
        nodes["out"] = rng.choice(
            ("(logits[:, 0] - y) ** 2", "abs(logits[:, 0] - log(y))", "round(logits[:, 0])",
             "log(abs(logits[:, 0]) + 1)", "logits[:, 0] / count", "float(logits[:, 0] > 0)",
             "sqrt((logits[:, 0] - y) ** 2)")
        )  # fmt: skip
        return 1, "{type: mean, input: out}", ""
    target = rng.choice(("y", "count", "scaled_y"))
    if target == "scaled_y":
        nodes["scaled_y"] = rng.choice(("y / 3", "log(count + 1)", "log(y)", "y / count"))
    return (
        1,
        f"{{type: {rng.choice(('mse', 'l1', 'huber', 'smooth_l1'))}, input: out, target: {target}{mask}}}",
        rng.choice(OF_NUMBERS),
    )


if __name__ == "__main__":
    begun = time.perf_counter()
    result = hunt(int(sys.argv[2]) if len(sys.argv) > 2 else 0, int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    print("\n".join([*result.failures, result.text()]))
    print(f"{len(result.failures)} of {sum(result.counts.values())} in {time.perf_counter() - begun:.0f} s")
    sys.exit(bool(result.failures))
