"""Mixed precision, the same in every mode; docs/precision.md has it in one table.

Parameters, their gradients, the optimizer and what all ranks reduce stay in float32. Forward and backward read the
parameters in the compute dtype: where they are sharded, fully_shard gathers them so; everywhere else they are cast once
a step. What an operation computes in is autocast's business.
"""

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
AT_ONCE = 2**64 - 1  # the rank in autograd's queue that torch gives to what adds up a parameter's gradient


def compute_dtype(training: TrainingPlan) -> torch.dtype | None:
    """The half-precision dtype of forward and backward; None where they are as wide as the parameters."""
    return HALF.get(training.precision)


def reduce_dtype(training: TrainingPlan) -> torch.dtype:
    """In which gradients travel between ranks."""
    return REDUCED[training.reduce]


def shard_policy(training: TrainingPlan) -> MixedPrecisionPolicy:
    """What fully_shard gathers and reduces in. Inputs are left as they are, as they are in every other mode."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(
        param_dtype=compute_dtype(training), reduce_dtype=reduce_dtype(training), cast_forward_inputs=False
    )


@contextmanager
def products(matmul: str, device: torch.device) -> Iterator[None]:
    """`training.precision.matmul`, while it lasts, on GPUs: those that have no TF32 compute as before."""
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
    """While it is entered, the modules' floating-point parameters are copies in `dtype`, cast once, through which
    gradients reach the parameters themselves: those of a chunk or microbatch are in `dtype`, and add up in float32.

    Backward must run within it: a unit that is computed again looks its parameters up once more. For parameters that
    fully_shard holds there is nothing to do.

    Of what is ready, backward does first what was done last in the forward. So the way back through a cast, which came
    before everything, would be the end of all: every gradient would be held in half precision until then, and what
    waits for gradients of parameters (DistributedDataParallel's buckets) would wait, too. A cast is therefore told to
    go back as soon as it can.
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
                copy.grad_fn._set_sequence_nr(AT_ONCE)  # type: ignore[attr-defined]
            for module, name in places:
                put(module, name, copy)

    def __exit__(self, *error: object) -> None:
        for parameter, places in self._places:
            for module, name in places:
                put(module, name, parameter)


def put(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """In the place of a parameter; a recurrent network also keeps a list of its own."""
    parameters: dict[str, Any] = module._parameters
    parameters[name] = tensor
    if isinstance(module, nn.RNNBase):
        module._flat_weights[module._flat_weights_names.index(name)] = tensor


def parameters_in(
    dtype: torch.dtype | None, modules: Iterable[nn.Module], *, sharded: bool
) -> AbstractContextManager[None]:
    """For the forwards and backwards of a step, or one evaluation."""
    return nullcontext() if dtype is None or sharded else CastParameters(modules, dtype)


@contextmanager
def default_dtype(plan: Plan) -> Iterator[None]:
    """fp64 runs: what an expression turns into a float is float64, too."""
    before = torch.get_default_dtype()
    if plan.training.precision == "fp64":
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
