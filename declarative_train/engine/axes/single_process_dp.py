"""Data parallelism in one process, mode `dp`: each copy of the model (replica) computes a slice of the rows.

The outputs are joined and the loss is computed once from them. So gradients need no averaging, and the loss is scaled
as without data parallelism. A replica gets the rows that a rank of `ddp` would get.

on CUDA     each forward copies the parameters to the devices; replicas run in threads; their gradients are summed on
            the first device (as in nn.DataParallel, but replicas are created once)
on the CPU  replicas share the parameters and run one after the other (docs/torch-facts.md, section 3)"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from declarative_train.components.component import Collective
from declarative_train.components.layers.sample_groups import MixesSamples, SampleGroups, attach, end_step
from declarative_train.engine.axes.gradient_sync import GradientSync
from declarative_train.engine.failures import RunFailure
from declarative_train.engine.step.model_preparation import prepare_units
from declarative_train.engine.step.precision import compute_dtype

if TYPE_CHECKING:
    from declarative_train.engine.collectives import MeshPosition
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.engine.step.step_runner import StepRunner
    from declarative_train.plan.plan import Plan


def make_replicas(plan: Plan, built: BuiltModel, position: MeshPosition, runner: StepRunner) -> GradientSync:
    """Create a copy of the model (replica) on each device of the plan, and return the GradientSync that runs the
    replicas. Afterwards `built.modules` is the list of the replicas. Evaluations use the first replica, whose running
    statistics cover the rows of all replicas. `runner`: runs forward and backward of a chunk (the rows of one
    forward)."""
    layout, device = plan.layout, runner.device
    runner.groups.microbatch_size = plan.batch.microbatch_size * layout.num_copies
    devices = [device] * layout.num_copies
    if device.type == "cuda":
        devices = [torch.device("cuda", index) for index in layout.devices]
        runner.randomness.add(devices[1:])
    replicas = Replicas(built.model, devices, plan.batch.microbatch_size, compute_dtype(plan.training))
    built.modules = replicas.modules
    for module, groups in zip(replicas.modules, replicas.groups, strict=True):
        prepare_units(module, plan, groups)
    take_statistics = make_statistics_taker(replicas.modules[1:], device)

    def finish(finite: torch.Tensor | None) -> None:
        statistics = take_statistics()
        if statistics is not None:
            end_step(built.model, statistics, finite)
            replicas.copy_statistics()
        else:
            runner.finish(finite)

    def begin(num_rows: int | None, is_last: bool) -> None:
        replicas.begin(num_rows)

    return GradientSync(call=replicas, finish=finish, begin=begin, end=replicas.end)


class Replicas:
    """Copies of a model that are called like a single model. `modules[0]` is the model itself."""

    def __init__(
        self, model: nn.Module, devices: Sequence[torch.device], microbatch_size: int, dtype: torch.dtype | None = None
    ) -> None:
        """Create a copy of the model on each device. `microbatch_size`: maximum number of rows of one forward of a
        copy. `dtype`: dtype of the parameters on CUDA devices after the first; None: unchanged."""
        self._size = microbatch_size
        self._dtype = dtype
        self._devices = list(devices)
        self._on_cuda = devices[0].type == "cuda"
        self._parameters = list(model.parameters())
        memo: dict[int, Any] = {id(parameter): parameter for parameter in self._parameters}
        # created once: a new copy of an fx.GraphModule would be compiled again
        self.modules = [model, *(copy.deepcopy(model, dict(memo)) for _ in devices[1:])]
        self.groups = [SampleGroups(microbatch_size) for _ in devices]
        for module, groups in zip(self.modules, self.groups, strict=True):
            attach(module, groups)
        reject_groups_across(model, microbatch_size)
        self._places = [
            self._strip_parameters(module, device) for module, device in zip(self.modules[1:], devices[1:], strict=True)
        ]
        self._num_rows: int | None = None

    def begin(self, num_rows: int | None) -> None:
        """Set how many rows of the next forward are not padding. None: there is no padding."""
        self._num_rows = num_rows

    def end(self) -> None:
        """Tell all replicas that the training forwards of a chunk are done. The forwards of an evaluation then do not
        change running statistics."""
        for groups in self.groups:
            groups.end()

    def copy_statistics(self) -> None:
        """Copy running statistics from the first replica to the others. This is done only in layers that use the
        statistics in training: other layers use them only in evaluations, which run on the first replica."""
        own, *others = (
            [part for part in module.modules() if getattr(part, "trains_with_statistics", False)]
            for module in self.modules
        )
        for parts in others:
            for target, source in zip(parts, own, strict=True):
                for buffer, value in zip(target.buffers(), source.buffers(), strict=True):
                    buffer.copy_(value)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        slices = self._scatter(inputs)
        for position in range(len(slices)):
            self.groups[position].begin(self._real_rows(position))
        if len(slices) == 1:
            outputs: tuple[torch.Tensor, ...] = self.modules[0](*slices[0])
            return outputs
        if self._on_cuda:
            return tuple(torch.nn.parallel.gather(self._in_threads(slices), self._devices[0]))
        made = [module(*rows) for module, rows in zip(self.modules, slices, strict=False)]
        return tuple(torch.cat(parts) for parts in zip(*made, strict=True))

    def _scatter(self, inputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Split the rows of all inputs into slices of at most one microbatch. Return a list of slices; each slice is a
        list with one tensor for each input. On CUDA, a slice is on the device of the replica that computes it."""
        pieces = [torch.split(tensor, self._size) for tensor in inputs]
        slices = [list(rows) for rows in zip(*pieces, strict=True)]
        if not self._on_cuda:
            return slices
        return [
            [tensor.to(device, non_blocking=True) for tensor in rows]
            for rows, device in zip(slices, self._devices, strict=False)
        ]

    def _real_rows(self, position: int) -> int | None:
        if self._num_rows is None:
            return None
        return min(max(self._num_rows - position * self._size, 0), self._size)

    def _in_threads(self, slices: Sequence[Sequence[torch.Tensor]]) -> list[tuple[torch.Tensor, ...]]:
        count = len(slices)
        for device, places in zip(self._devices[1:count], self._places, strict=False):
            for place, parameter in zip(places, self._parameters, strict=True):
                copied = parameter.to(device, non_blocking=True)  # its backward adds to the parameter's gradient
                value = copied if self._dtype is None or not copied.is_floating_point() else copied.to(self._dtype)
                for module, name in place:
                    setattr(module, name, value)
        made: list[tuple[torch.Tensor, ...]] = torch.nn.parallel.parallel_apply(
            cast(list[nn.Module], in_dtype_of_caller(self.modules[:count], self._devices[0].type)),
            [tuple(rows) for rows in slices],
            devices=self._devices[:count],
        )
        return made

    def _strip_parameters(self, module: nn.Module, device: torch.device) -> list[list[tuple[nn.Module, str]]]:
        """Move a replica to its CUDA device without its parameters, because each forward copies them from the first
        replica. Return, for each parameter, the attributes (module, name) that a forward sets to the copy. On the CPU,
        do nothing and return []."""
        if not self._on_cuda:
            return []
        places: dict[int, list[tuple[nn.Module, str]]] = {id(parameter): [] for parameter in self._parameters}
        for part in module.modules():
            for name, parameter in list(part._parameters.items()):
                if parameter is not None:
                    places[id(parameter)].append((part, name))
                    del part._parameters[name]
        module.to(device)  # only buffers are left
        return [places[id(parameter)] for parameter in self._parameters]


def in_dtype_of_caller(calls: Sequence[Callable[..., Any]], device_type: str) -> list[Callable[..., Any]]:
    """Return the functions `calls`, wrapped to run under autocast with the dtype that autocast has in the current
    thread. Without autocast, return `calls` unchanged. `device_type`: kind of device, such as "cuda".

    `parallel_apply` calls functions in other threads. It passes on that autocast is on, but not its dtype: bfloat16
    would become float16.
    """
    if not torch.is_autocast_enabled(device_type):
        return list(calls)
    dtype = torch.get_autocast_dtype(device_type)

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_in_dtype(*inputs: Any) -> Any:
            with torch.autocast(device_type, dtype=dtype):
                return call(*inputs)

        return call_in_dtype

    return [wrap(call) for call in calls]


class ReplicaSum(Collective):
    """Collective in which only the first replica of this process takes part. `others`: sum of the values of the other
    replicas. `sum` adds it to the first replica's value."""

    def __init__(self, others: torch.Tensor) -> None:
        self._others = others

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + self._others

    def concatenate(self, tensor: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("running statistics are only summed")


def make_statistics_taker(replicas: Sequence[nn.Module], device: torch.device) -> Callable[[], Collective | None]:
    """Return a function to call after each step. It takes the step's running statistics from `replicas` (all replicas
    but the first), and returns a ReplicaSum with their sum on `device`. The ReplicaSum adds those of the first replica.
    If no layer has running statistics, the function returns None."""

    def parts(module: nn.Module) -> list[Any]:
        return [
            part
            for part in module.modules()
            if isinstance(part, MixesSamples) and hasattr(part, "take_pending") and part.training
        ]

    def take() -> Collective | None:
        others = [
            torch.cat([part.take_pending().to(device) for part in parts(each)]) for each in replicas if parts(each)
        ]
        return ReplicaSum(torch.stack(others).sum(0)) if others else None

    return take


def reject_groups_across(model: nn.Module, microbatch_size: int) -> None:
    """Raise RunFailure if a layer, such as a batch norm, computes over groups of more samples than a replica's
    microbatch. Such a group would be split over several replicas."""
    for name, part in model.named_modules():
        if isinstance(part, MixesSamples) and part.over is not None and part.over > microbatch_size:
            raise RunFailure(
                f"`{name}`: over is {part.over} samples, but with parallelism: dp each replica computes "
                f"{microbatch_size} samples on its own; help: set over to a divisor of "
                f"{microbatch_size}, or parallelism: ddp"
            )
