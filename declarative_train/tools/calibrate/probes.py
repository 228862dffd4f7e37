"""Probes: training steps of tiny models. Their arithmetic takes almost no time, so their time is the overhead of the
host.

Each constant of the planner, such as the time of one call, is chosen such that the predicted time of a probe (or the
difference of two) equals the measured time. So it includes what the planner does not count, such as views and hooks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from declarative_train import planner, recipe
from declarative_train.data.batch import Batch
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.engine import Engine, get_process_batch
from declarative_train.plan.plan import Plan
from declarative_train.planner.estimate.constants import Machine
from declarative_train.planner.estimate.model import ModelFacts, facts_of
from declarative_train.planner.estimate.placement import Placement, placement_of
from declarative_train.planner.estimate.step_time import step_time

UNCOUNTED, COUNTED = 5, 30  # steps of a probe before the measurement, and in it
FEW, MANY = 2, 8  # layers, or microbatches of a pipeline
ROWS = 2  # rows of a forward
UNIT_S = 1e-6
_KEPT: list[Engine] = []  # a process group that is torn down may hang (torch-facts, section 4)
RECIPE = """
name: probe
data:
  source: {{type: synthetic, kind: tokens, rows: 4000}}
  window: {{length: 9, stride: 8}}
  fields:
    tokens: {{column: tokens, rows: ":-1"}}
    next: {{column: tokens, rows: "1:"}}
model:
  graph:
    logits: {{type: gpt, vocabulary: 256, layers: {layers}, width: 16, heads: 2, input: tokens}}
objective: {{loss: {{type: cross_entropy, input: logits, target: next}}}}
training: {{steps: 100, global_batch_size: {batch}, optimizer: {{type: adamw, lr: 1e-3}}}}
parallelism: {parallelism}
layout: {{gpus: {ranks}, device: cpu}}
"""
Step = tuple[str, int]  # mode, and number of layers (for `pipeline`: of microbatches, with one layer for each rank)
# constant -> the probe to whose time it is fitted, or two probes to whose difference it is fitted
STEPS: dict[str, tuple[Step, Step | None]] = {
    "call_s": (("single", MANY), ("single", FEW)),
    "step_s": (("ddp", FEW), None),
    "shard_call_s": (("fsdp", MANY), ("fsdp", FEW)),
    "stage_call_s": (("pipeline", MANY), ("pipeline", FEW)),
}


@dataclass(frozen=True, slots=True)
class Probe:
    """Training step of a tiny model, whose measured time is compared with its predicted time. `model`, `placement`:
    facts about the plan, from which the time is predicted."""

    plan: Plan
    model: ModelFacts
    placement: Placement

    def predict_s(self, machine: Machine) -> float:
        """Return the predicted seconds of the step on a machine."""
        found = step_time(self.model, self.placement, machine)
        assert found is not None
        return found.total_s


def compile_probes(num_ranks: int) -> dict[Step, Probe]:
    """Return {(mode, number): compiled training step of a tiny model}. `number`: number of layers; in a pipeline, of
    microbatches. `num_ranks`: how many ranks run on this machine at the same time; with 1, only steps of the mode
    `single`."""
    steps = [step for pair in STEPS.values() for step in pair if step is not None]
    return {step: _compile(*step, num_ranks) for step in steps if num_ranks > 1 or step[0] == "single"}


def _compile(mode: str, number: int, num_ranks: int) -> Probe:
    ranks = 1 if mode == "single" else num_ranks
    text = RECIPE.format(
        layers=num_ranks if mode == "pipeline" else number,
        batch=ROWS * (number if mode == "pipeline" else ranks),
        parallelism=f"{{pipeline: {{stages: {num_ranks}, microbatches: {number}}}}}" if mode == "pipeline" else mode,
        ranks=ranks,
    )
    loaded = recipe.load("probe.yaml", text=text)
    plan = None if loaded.recipe is None else planner.compile(loaded.recipe)[0]
    assert plan is not None, loaded.diagnostics
    model = facts_of(plan)
    return Probe(plan, model, placement_of(plan.layout, plan.batch, tuple(model.nodes)))


def fit_to_steps(machine: Machine, probes: dict[Step, Probe]) -> Machine:
    """Return `machine` with constants that fit measured training steps. Each constant in `STEPS` is fitted to the
    measured time of its probe, and left unchanged if `probes` lacks this probe. The optimizer's time per tensor is
    fitted to the times of updates. All ranks call this function at the same time."""
    measured = {step: measure(probe.plan) for step, probe in probes.items()}
    many, few = (probes["single", number] for number in (MANY, FEW))
    tensors = len(many.plan.parameters) - len(few.plan.parameters)
    update_s = measured["single", MANY].update_s - measured["single", FEW].update_s
    machine = Machine(machine.hardware, replace(machine.constants, step_s=0.0, tensor_s=max(0.0, update_s) / tensors))
    is_alone = ("ddp", FEW) not in probes
    for name, (step, smaller) in STEPS.items():
        if is_alone and name == "step_s":
            step = ("single", FEW)
        elif step not in probes:
            continue
        explained_s = measured[step].step_s - (0.0 if smaller is None else measured[smaller].step_s)
        without_s, with_s = (
            probes[step].predict_s(each) - (0.0 if smaller is None else probes[smaller].predict_s(each))
            for each in (_set_constant(machine, name, 0.0), _set_constant(machine, name, UNIT_S))
        )
        machine = _set_constant(machine, name, max(0.0, UNIT_S * (explained_s - without_s) / (with_s - without_s)))
    return machine


def _set_constant(machine: Machine, name: str, seconds: float) -> Machine:
    return Machine(machine.hardware, replace(machine.constants, **{name: seconds}))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured seconds of a training step, and of the optimizer's update in it."""

    step_s: float
    update_s: float


def measure(plan: Plan) -> Measured:
    """Run training steps of a plan on the CPU. Return the median times of a step and of the optimizer's update."""
    engine = Engine(plan, torch.device("cpu"))
    _KEPT.append(engine)
    times, updates = [], []
    for number, batches in enumerate(_batches(plan, engine), 1):
        begun_s = time.perf_counter()
        engine.step(number, batches, num_rows=plan.batch.global_batch_size, lr_factor=1.0, measure=False)
        times.append(time.perf_counter() - begun_s)
        begun_s = time.perf_counter()
        engine.optimizer.step()
        updates.append(time.perf_counter() - begun_s)
    return Measured(median(times[UNCOUNTED:]), median(updates[UNCOUNTED:]))


def _batches(plan: Plan, engine: Engine) -> Iterator[Sequence[Batch]]:
    training = TrainingBatches(
        plan.data,
        get_process_batch(plan),
        engine.dp_rank,
        open_sets(plan.data),
        device=engine.device,
        hold_on_device=True,
        steps_bytes=0,
    )
    return training.iterate(1, UNCOUNTED + COUNTED)
