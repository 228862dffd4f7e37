"""Time, throughput, utilisation and memory between two logging steps, for the event StepDone."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from declarative_train.components.hardware import hardware_of_device
from declarative_train.core.machine import num_cores
from declarative_train.data.length_buckets import tokens_saved
from declarative_train.run.event import EpochDone, StepDone
from declarative_train.run.loss_window import Means

if TYPE_CHECKING:
    from declarative_train.engine.engine import Engine
    from declarative_train.plan.plan import Plan

MEMORY_EVERY_S = 1.0
MUCH_WAITING = 0.2  # a run reports that it waits for data from this share of the training time on
LONG_WAIT_S = 10.0


class Meter:
    """Clock of a session, for speed and waiting times. The time in `pause` blocks, such as evaluations, is not training
    time."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        self._engine = engine
        self._tokens = tokens_per_sample(plan)
        self._peak_per_s = samples_per_s_at_peak(plan, engine.device)
        self._paused_s = 0.0
        self._wait_s = self._waited_s = 0.0
        self._num_steps = self._num_rows = 0  # of the window, in this session only
        self._started_s = self._logged_s = self._epoch_s = self._wanted_s = 0.0
        self._logged_paused_s = 0.0
        self._memory_bytes, self._memory_s = 0, -MEMORY_EVERY_S

    def start(self) -> None:
        now = time.monotonic()
        self._started_s = self._logged_s = self._epoch_s = self._wanted_s = now

    def seconds(self) -> float:
        return time.monotonic() - self._started_s

    def data_is_wanted(self) -> None:
        self._wanted_s = time.monotonic()

    def count_arrival(self, num_rows: int) -> None:
        """Count the arrival of a step's batches, which have `num_rows` rows. Add the time since `data_is_wanted` to the
        time spent waiting for data."""
        waited_s = time.monotonic() - self._wanted_s
        self._wait_s += waited_s
        self._waited_s += waited_s
        self._num_steps += 1
        self._num_rows += num_rows

    @contextmanager
    def pause(self) -> Iterator[None]:
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self._paused_s += time.monotonic() - begun_s

    def step_done(self, step: int, epoch: int, means: Means, grad_norm: torch.Tensor | None) -> StepDone:
        """Return the event of a logging step, with the speed since the previous logging step, and start the next
        measurement. `means`: losses and metrics of the steps since then. `grad_norm`: None if it was not computed."""
        engine, now = self._engine, time.monotonic()
        seconds = max(now - self._logged_s - (self._paused_s - self._logged_paused_s), 1e-9)
        step_s, wait_s, per_s = seconds / self._num_steps, self._wait_s / self._num_steps, self._num_rows / seconds
        self._logged_s, self._logged_paused_s, self._wait_s = now, self._paused_s, 0.0
        self._num_steps = self._num_rows = 0
        values = engine.objective.by_name(means.term_means(len(engine.objective.terms)))
        return StepDone(
            step=step,
            epoch=epoch,
            loss=values["loss"],
            terms={name.removeprefix("loss/"): value for name, value in values.items() if name != "loss"},
            metrics=means.metric_means(),
            lr=engine.optimizer.lr(),
            grad_norm=None if grad_norm is None else grad_norm.item(),
            samples_per_s=per_s,
            tokens_per_s=None if self._tokens is None else per_s * self._tokens,
            data_wait_s=wait_s,
            memory_bytes=self._peak_memory(now),
            mfu=None if self._peak_per_s is None else per_s / self._peak_per_s,
            time_unix_s=time.time(),
            step_s=step_s,
        )

    def explain_wait(self, workers: int, num_local: int) -> str | None:
        """Return a message with advice if this rank spent much of its time waiting for data; otherwise None. `workers`:
        the plan's `data.workers`. `num_local`: number of ranks on this machine, which share its cores."""
        share = self._waited_s / max(self.seconds() - self._paused_s, 1e-9)
        if self._waited_s < LONG_WAIT_S or share < MUCH_WAITING:
            return None
        has_cores = num_cores() > max(workers, 1) * num_local
        advice = f"raise `data.workers`, now {workers}" if has_cores else "no CPU core is free for more `data.workers`"
        return f"waited for data {share:.0%} of the time ({self._waited_s:.0f} s): {advice}"

    def _peak_memory(self, now_s: float) -> int:
        """Return the peak memory in bytes. It is read at most once in `MEMORY_EVERY_S` seconds, because reading takes
        half the time of a small step."""
        if now_s - self._memory_s >= MEMORY_EVERY_S:
            self._memory_bytes = max(self._memory_bytes, peak_memory_bytes(self._engine.device))
            self._memory_s = now_s
        return self._memory_bytes

    def epoch_done(self, step: int, epoch: int, means: Means, evaluations: dict[str, float]) -> EpochDone:
        now = time.monotonic()
        seconds, self._epoch_s = now - self._epoch_s, now
        objective = self._engine.objective
        values = objective.by_name(means.term_means(len(objective.terms))) | means.metric_means()
        named = {f"training/{name}": value for name, value in values.items()}
        return EpochDone(epoch, step, named | evaluations, seconds, time.time())


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of this rank in bytes: on a GPU, what torch has allocated there; on the CPU, the resident
    memory of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def tokens_per_sample(plan: Plan) -> int | None:
    """Return the length of the model's first input that is a sequence of token ids; with length buckets, its mean
    length. None if there is no such input."""
    for spec in plan.graph.inputs.values():
        if not spec.is_floating and spec.num_values is not None and len(spec.shape) == 1:
            return spec.shape[0] - tokens_saved(plan.data)
    return None


def samples_per_s_at_peak(plan: Plan, device: torch.device) -> float | None:
    """Return how many samples per second all devices together would compute at their peak rate. The measured rate
    divided by this number is the MFU. Return None if no peak rate is known (on the CPU, or on an unknown GPU), or if
    the model has no matrix products."""
    peak = peak_flops(device, plan.training.arithmetic)
    if peak is None or not plan.flops.model:
        return None
    return peak * plan.layout.num_devices / plan.flops.model


def comparable_estimate(plan: Plan, device: torch.device) -> tuple[dict[str, float], str | None]:
    """Return (estimate, remark): the plan's estimate of speed and memory as a dict, for comparison with a run on
    `device`. If the estimate is for other hardware, the dict is {} and the remark says so; otherwise the remark is
    None. Without an estimate, return ({}, None). A GPU that dtrain does not know is compared with an estimate for any
    GPU."""
    estimate = plan.estimate
    if estimate is None or estimate.step_s is None:
        return {}, None
    found = hardware_of_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    here = device.type if found is None else found.name
    if here != estimate.hardware and (found is not None or "cpu" in (here, estimate.hardware)):
        return {}, f"the plan's estimates are for {estimate.hardware}, but this run is on {here}: they are not compared"
    values = {"step_ms": estimate.step_s * 1e3, "memory_gib": estimate.memory_bytes / 2**30, "mfu": estimate.mfu}
    return {name: value for name, value in values.items() if value is not None}, None


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the peak operations per second of a device, from its data sheet, or None if it is not known. `precision`:
    that of the arithmetic, such as `bf16` or `tf32`."""
    if device.type != "cuda":
        return None
    hardware = hardware_of_device(torch.cuda.get_device_name(device))
    return None if hardware is None else hardware.peak_of(precision)
