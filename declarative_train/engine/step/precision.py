"""Mixed precision, which works the same in every mode of parallelism; docs/precision.md describes it in one table.

Parameters, gradients and optimizer state stay in float32. Forward and backward read the parameters in the compute
dtype: fully_shard gathers sharded parameters in this dtype, and other parameters are cast once per step. Autocast
decides the dtype of each operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from declarative_train.plan.plan import Plan, TrainingPlan

REDUCED = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
AT_ONCE = 2**64 - 1  # priority in autograd's queue, as torch gives it to the accumulation of a parameter's gradient


def compute_dtype(training: TrainingPlan) -> torch.dtype | None:
    """Return the half-precision dtype of forward and backward; None if they use the dtype of the parameters."""
    return HALF.get(training.precision)


def reduce_dtype(training: TrainingPlan) -> torch.dtype:
    """Return the dtype in which gradients are reduced between ranks."""
    return REDUCED[training.reduce]


def shard_policy(training: TrainingPlan) -> MixedPrecisionPolicy:
    """Return the dtypes in which fully_shard gathers parameters and reduces gradients. It does not cast the inputs of
    modules, because a model without sharding does not either."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(
        param_dtype=compute_dtype(training), reduce_dtype=reduce_dtype(training), cast_forward_inputs=False
    )


@contextmanager
def matmul_precision(matmul: str, device: torch.device) -> Iterator[None]:
    """Apply `training.precision.matmul` to float32 matrix products on a GPU within the `with` block. GPUs without TF32
    ignore it."""
    if matmul == "highest" or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class CastParameters:
    """Context in which copies in `dtype` replace the floating-point parameters of modules, except those that
    fully_shard manages. Parameters are cast once, on entry. Gradients accumulate in the parameters, in the parameters'
    own dtype.

    The backward must run within the context too, because a recomputed unit reads its parameters again.
    """

    def __init__(self, modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
        self._dtype = dtype
        places: dict[int, tuple[nn.Parameter, list[tuple[nn.Module, str]]]] = {}
        seen: set[int] = set()
        for module in modules:
            for part in module.modules():
                if id(part) in seen:
                    continue
                seen.add(id(part))
                for name, parameter in part._parameters.items():
                    if parameter is not None and parameter.is_floating_point():
                        places.setdefault(id(parameter), (parameter, []))[1].append((part, name))
        self._places = list(places.values())

    def __enter__(self) -> None:
        for parameter, places in self._places:
            copy = parameter.to(self._dtype)
            if copy.grad_fn is not None:
                # autograd would run the backward of the casts last; until then gradients would exist in both dtypes
                copy.grad_fn._set_sequence_nr(AT_ONCE)  # type: ignore[attr-defined]
            for module, name in places:
                put_parameter(module, name, copy)

    def __exit__(self, *error: object) -> None:
        for parameter, places in self._places:
            for module, name in places:
                put_parameter(module, name, parameter)


def put_parameter(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Replace the parameter `name` of a module by `tensor`. In a recurrent module of torch, also replace it in the
    second list of weights that such modules have."""
    parameters: dict[str, Any] = module._parameters
    parameters[name] = tensor
    if isinstance(module, nn.RNNBase):
        module._flat_weights[module._flat_weights_names.index(name)] = tensor


def parameters_in(
    dtype: torch.dtype | None, modules: Iterable[nn.Module], *, sharded: bool
) -> AbstractContextManager[None]:
    """Return a context in which the parameters of `modules` are in `dtype`. All forwards and backwards of a step or an
    evaluation run in it. It does nothing if `dtype` is None, or if `sharded` is True, because fully_shard then casts
    the parameters."""
    return nullcontext() if dtype is None or sharded else CastParameters(modules, dtype)


@contextmanager
def default_dtype(plan: Plan) -> Iterator[None]:
    """Make float64 torch's default dtype within the `with` block if the run is in fp64. Without this, expressions of
    the recipe that convert to the default dtype would give float32."""
    before = torch.get_default_dtype()
    if plan.training.precision == "fp64":
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
