"""Step times of GPT models that others measured, predicted by the planner's formulas.

The rows are those of vTrain (Bang et al., MICRO 2024, arXiv 2312.12391): Megatron-DeepSpeed on A100s, which is another
engine than ours. So a model is described as that engine computes it, in a recipe: attention by separate kernels in
half precision, whole layers computed again, equal numbers of layers in the stages of a 1f1b pipeline, gradients in half
precision that are averaged after the backward. The tensor axis does not divide attention by separate kernels: a rank of
such a row is a recipe with its share of heads, hidden features and vocabulary, with an all-reduce after each half of a
layer, by the formulas of that axis. (`times.py` compares rows of the axis itself.)
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from declarative_train.components.hardware import HARDWARE
from declarative_train.plan.layout import WireBytes
from declarative_train.planner.estimate.constants import MEGATRON, Constants, Machine
from declarative_train.planner.estimate.kernels import NodeKernels, with_sums
from declarative_train.planner.estimate.model import ModelFacts, facts_of
from declarative_train.planner.estimate.placement import DeviceGroup, DevicePart, PipelinePlacement, Placement
from declarative_train.planner.estimate.rank_model import Sums
from declarative_train.planner.estimate.step_time import step_time
from tests.planner.measure import compiled

ROWS = Path(__file__).parent / "vtrain_rows"  # from VIA-Research/vTrain, data/ground_truth_*.csv: every second row
SEED = 0  # of the division into fitted and other rows
VOCABULARY, PER_NODE = 50304, 8
A100 = HARDWARE["a100-sxm-80gb"]
RECIPE = """
name: gpt
data:
  source: {{type: synthetic, kind: tokens, rows: 40000}}
  window: {{length: {T} + 1, stride: {T}}}
  fields:
    tokens: {{column: tokens, rows: ":-1"}}
    next: {{column: tokens, rows: "1:"}}
model:
  blocks:
    layer:
      inputs: {{x: required}}
      graph:
        norm1: {{type: layer_norm}}
        qkv:   {{type: linear, out_features: {qkv}}}
        q:     "transpose(reshape(qkv[:, :, 0:{width}], B, {T}, {heads}, {head_width}), 1, 2)"
        k:     "transpose(reshape(qkv[:, :, {width}:{kv}], B, {T}, {heads}, {head_width}), 1, 2)"
        v:     "transpose(reshape(qkv[:, :, {kv}:{qkv}], B, {T}, {heads}, {head_width}), 1, 2)"
        seen:  "softmax(q @ transpose(k, 2, 3))"                # scale and mask are in one kernel with it
        kept:  {{type: dropout, p: 0.1}}
        y:     "reshape(transpose(kept @ v, 1, 2), B, {T}, {width})"
        out:   {{type: linear, out_features: {hidden_size}}}
        drop1: {{type: dropout, p: 0.1}}
        mid:   x + drop1
        norm2: {{type: layer_norm}}
        up:    {{type: linear, out_features: {hidden}}}
        act:   {{type: gelu}}
        down:  {{type: linear, out_features: {hidden_size}}}
        drop2: {{type: dropout, p: 0.1}}
        end:   mid + drop2
      output: end
  graph:
    embed:  {{type: embedding, num_embeddings: {vocabulary}, embedding_dim: {hidden_size}, input: tokens}}
    pos:    {{type: learned_positions}}
    layers: {{type: layer, repeat: {layers}}}
    norm:   {{type: layer_norm}}
    logits: {{type: linear, out_features: {vocabulary}, bias: false}}
objective: {{loss: {{type: cross_entropy, input: logits, target: next}}}}
training:
  steps: 10
  global_batch_size: {global_batch}
  microbatch_size: {microbatch}
  precision: fp16
  activation_checkpointing: blocks
  optimizer: {{type: adamw, lr: 1e-4}}
parallelism: {parallelism}
layout: {layout}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Measured row. `tensor`, `data`, `pipeline`: ranks that divide a layer, the batch, and the layers."""

    num_gpus: int
    global_batch: int
    microbatch: int
    hidden_size: int
    heads: int
    layers: int
    length: int
    tensor: int
    data: int
    pipeline: int
    measured_ms: float

    @property
    def num_microbatches(self) -> int:
        return max(1, self.global_batch // (self.microbatch * self.data))

    @property
    def group(self) -> str:
        """Group of the acceptance: width and size of the cluster."""
        return f"width {self.hidden_size}, {self.num_gpus} GPUs"


def read_rows() -> list[Row]:
    found = []
    for name in ("single.csv", "multi.csv"):
        with (ROWS / name).open() as file:
            for values in list(csv.reader(file))[1:]:
                found.append(Row(*(int(value) for value in values[-11:-1]), measured_ms=float(values[-1])))
    return found


def recipe(row: Row, layers: int, parallelism: str = "single", layout: str = "{gpus: 1}") -> str:
    width = row.hidden_size // row.tensor
    return RECIPE.format(
        T=row.length,
        width=width,
        kv=2 * width,
        qkv=3 * width,
        heads=row.heads // row.tensor,
        head_width=row.hidden_size // row.heads,
        hidden_size=row.hidden_size,
        hidden=4 * row.hidden_size // row.tensor,
        vocabulary=VOCABULARY // row.tensor,
        layers=layers,
        global_batch=row.global_batch,
        microbatch=row.microbatch,
        parallelism=parallelism,
        layout=layout,
    ).replace(f"{row.length} + 1", str(row.length + 1))


def model_of(row: Row) -> ModelFacts:
    """Return the facts of a rank's model, with all layers."""
    one = replace(row, layers=2, num_gpus=1, data=1, pipeline=1, global_batch=1, microbatch=1, measured_ms=0)
    few, kernels = _two_layers(one)
    names = {"layers.0": [f"layers.{at}" for at in range(row.layers)], "layers.1": []}
    nodes = {copy: replace(node, name=copy) for name, node in few.nodes.items() for copy in names.get(name, [name])}
    held = {copy: each for name, each in kernels.items() for copy in names.get(name, [name])}
    return replace(few, nodes=nodes, reduce="bf16", _shares={}, _kernels=held)


@lru_cache(maxsize=256)
def _two_layers(row: Row) -> tuple[ModelFacts, dict[str, NodeKernels]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "gpt.yaml"
        path.write_text(recipe(row, layers=2))
        facts = facts_of(compiled(path, "gpt"))
    kernels = {name: facts.kernels(name) for name in facts.nodes}
    if row.tensor > 1:
        hidden = row.length * row.hidden_size
        for name, numbers in {"embed": (1, 0), "layers.0": (2, 2), "logits": (0, 1)}.items():
            sums = Sums(*((hidden,) * number for number in numbers))
            kernels[name] = with_sums(kernels[name], sums, row.tensor, PER_NODE, 2 * 2)  # all-reduces in bf16
    return facts, kernels


def placement_of_row(row: Row, model: ModelFacts) -> Placement:
    """Return the placement as Megatron has it: tensor ranks are neighbours, then data, then pipeline."""
    layers, stages = row.layers // row.pipeline, []
    for stage in range(row.pipeline):
        inner = tuple(f"layers.{at}" for at in range(stage * layers, (stage + 1) * layers))
        first = ("embed", "pos") if stage == 0 else ()
        last = ("norm", "logits") if stage == row.pipeline - 1 else ()
        stages.append((*first, *inner, *last))
    sent = row.length * row.hidden_size * 2
    pipes = PipelinePlacement(
        "1f1b", row.pipeline, row.pipeline, (WireBytes(sent, sent),) * (row.pipeline - 1), row.tensor * row.data
    )
    return Placement(
        scatters=False,
        devices_per_node=min(PER_NODE, row.num_gpus),
        num_devices=row.num_gpus,
        shards=DeviceGroup(1),
        replicas=DeviceGroup(row.data, stride=row.tensor),
        rows=row.microbatch,
        num_microbatches=row.num_microbatches,
        parts=tuple(DevicePart(f"rank {at}", (names,), (1,), (at,)) for at, names in enumerate(stages)),
        pipes=pipes if row.pipeline > 1 else None,
    )


@lru_cache(maxsize=2048)
def predicted_ms(row: Row, constants: Constants = MEGATRON) -> float:
    return _predict(row, machine_of(constants))


@lru_cache(maxsize=512)
def machine_of(constants: Constants) -> Machine:
    return Machine(A100, constants)


@lru_cache(maxsize=2048)
def _site(row: Row) -> tuple[ModelFacts, Placement]:
    model = model_of(row)
    return model, placement_of_row(row, model)


def _predict(row: Row, machine: Machine) -> float:
    model, placement = _site(row)
    time = step_time(model, placement, machine)
    assert time is not None
    whole_s = time.total_s
    if placement.pipes is None:  # the average follows the backward
        whole_s += sum(each.seconds for each in time.transfers) - time.exposed_s
    return whole_s * 1e3


def errors(rows: Iterable[Row], constants: Constants = MEGATRON) -> np.ndarray:
    """Return predicted / measured - 1."""
    return np.array([predicted_ms(row, constants) / row.measured_ms - 1 for row in rows])


def divide(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Return the rows to fit to, and the others: each group is divided into halves."""
    random = np.random.default_rng(seed)
    halves: tuple[list[Row], list[Row]] = ([], [])
    for group in sorted({row.group for row in rows}):
        members = [row for row in rows if row.group == group]
        for at, place in enumerate(random.permutation(len(members))):
            halves[at % 2].append(members[place])
    return halves


def ordered(rows: Sequence[Row], constants: Constants = MEGATRON) -> float:
    """Return the part of the pairs of layouts of one model, batch and number of GPUs, whose times differ by more than
    5%, that the predictions order correctly."""
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        key = (row.num_gpus, row.global_batch, row.hidden_size, row.layers, row.length)
        groups.setdefault(key, []).append(row)
    right = total = 0
    for members in groups.values():
        for at, one in enumerate(members):
            for other in members[:at]:
                if abs(np.log(one.measured_ms / other.measured_ms)) > np.log(1.05):
                    total += 1
                    found = predicted_ms(one, constants) - predicted_ms(other, constants)
                    right += (found > 0) == (one.measured_ms > other.measured_ms)
    return right / total
