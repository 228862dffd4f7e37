"""Training step of a single rank, run in this process without the other ranks in order to trace its memory. The engine
(`engine/engine.py`) runs on tensors without memory, in process groups that send nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from declarative_train.components.layers.modules.documents import treat_as_gpu
from declarative_train.data.batch import Batch
from declarative_train.engine.collectives import MeshPosition
from declarative_train.engine.devices import start_autograd
from declarative_train.engine.engine import Engine, get_process_batch
from declarative_train.engine.step.compiled import losses_to_compile
from declarative_train.engine.step.model_preparation import allocate, lay_out, materialise, widen
from declarative_train.engine.step.precision import default_dtype
from declarative_train.graph.grouped_products import GROUPED, empty_grouped_product
from declarative_train.planner.footprint import memory_observer
from declarative_train.planner.footprint.live_bytes import LiveBytes

if TYPE_CHECKING:
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.plan.plan import Plan

_CPU = torch.device("cpu")
_SCALAR = torch.ops.aten._local_scalar_dense.default
_SPLIT = torch.ops.aten.split_with_sizes.default
_LSTM: Any = getattr(torch.ops.aten.mkldnn_rnn_layer, "default", None)
MOST_STEPS, MOST_ROWS, MOST_WIDTH = 16, 64, 512  # sizes of the lstm that is run to measure its workspace


class FakeResultsMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which four operations on fake tensors return usable results.

    reading a scalar         1, so that every step counts as finite
    splitting a tensor       equal parts, if a fake tensor gives their sizes, such as the tokens of each expert
    oneDNN's lstm            a workspace of the size that it has on the CPU; torch would return an empty one
    grouped matrix product   an empty tensor of the right shape, for the dtypes that torch refuses (not bfloat16)
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _SCALAR and hasattr(args[0], "fake_mode"):
            return args[0].dtype == torch.bool or 1
        if func is GROUPED and args[0].dtype != torch.bfloat16:
            return empty_grouped_product(*args, **(kwargs or {}))
        if func is _SPLIT and sum(args[1]) != args[0].shape[dim := args[2] if len(args) > 2 else 0]:
            args = (args[0], _even_parts(args[0].shape[dim], len(args[1])), dim)
        made = func(*args, **(kwargs or {}))
        if func is _LSTM:
            *rest, workspace = made
            steps, rows, _ = args[0].shape
            size = lstm_workspace(steps, rows, args[10], args[0].dtype)
            return (*rest, workspace.new_empty(size))
        return made


def _even_parts(whole: int, number: int) -> list[int]:
    """Return `number` integers that differ by at most one and whose sum is `whole`."""
    return [whole // number + (at < whole % number) for at in range(number)]


def lstm_workspace(steps: int, rows: int, width: int, dtype: torch.dtype) -> int:
    """Return the bytes of the workspace of oneDNN's lstm.

    `steps`: positions of a sequence. `rows`: number of sequences. `width`: size of the hidden state. The workspace
    grows linearly with each of these sizes, so it is measured on small tensors and extrapolated. The error is at most
    5% for 2 rows and 1% for 16 or more, because parts of the workspace are rounded up to pages."""
    few_rows, narrow = min(rows, MOST_ROWS), min(width, MOST_WIDTH)
    few, more = (_lstm_workspace(number, few_rows, narrow, dtype) for number in (MOST_STEPS // 2, MOST_STEPS))
    if steps <= MOST_STEPS:
        found = float(_lstm_workspace(steps, few_rows, narrow, dtype))
    else:
        found = more + (steps - MOST_STEPS) * (more - few) / (MOST_STEPS // 2)
    return round(found * (rows / few_rows) * (width / narrow))


@cache
def _lstm_workspace(steps: int, rows: int, width: int, dtype: torch.dtype) -> int:
    """Run oneDNN's lstm on small tensors and return the bytes of its workspace. It runs in a thread of its own,
    without the dispatch modes of this thread, and with gradients enabled: without gradients the lstm has no workspace.
    """

    def run() -> int:
        x, state = torch.zeros(steps, rows, width, dtype=dtype), torch.zeros(rows, width, dtype=dtype)
        weight, bias = torch.zeros(4 * width, width, dtype=dtype), torch.zeros(4 * width, dtype=dtype)
        found = _LSTM(x, weight, weight, bias, bias, state, state, False, [], 2, width, 1, True, False, False, True)
        return int(found[-1].nbytes)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def fake_step(plan: Plan, rank: int, *, is_begun: bool = False) -> LiveBytes:
    """Run a step of rank `rank` and return its live bytes. Optimizer state exists from the beginning, as in every step
    but the first. `is_begun`: gradients of earlier accumulation steps exist too."""
    has_compiled_losses = plan.training.compile and plan.layout.device == "cuda"
    plan = replace(plan, weights=(), training=replace(plan.training, compile=False))
    live = LiveBytes(copies_reduced=plan.layout.device != "cuda")
    with ExitStack() as stack:
        stack.enter_context(default_dtype(plan))
        if not plan.layout.is_one_process:
            stack.enter_context(_ranks(rank, len(plan.layout.ranks)))
        if plan.layout.pipeline is not None:
            stack.enter_context(_hold_messages())
        place = MeshPosition(plan.layout, _CPU, is_traced=True)
        start_autograd()
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(treat_as_gpu(plan.layout.device == "cuda"))
        stack.enter_context(FakeResultsMode())  # type: ignore[no-untyped-call]
        engine = Engine(plan, _CPU, position=place, fill=_without_values)
        if has_compiled_losses:
            for module in losses_to_compile(engine.objective.modules):
                module.sum = _sum_as_compiled  # type: ignore[method-assign, assignment]
        _begin_state(engine)
        if is_begun or keeps_buckets(plan):
            engine.optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
        else:
            engine.optimizer.zero_grad()
        batches = _batches(plan)
        memory_observer.step(
            engine, live, 1, batches, num_rows=plan.batch.global_batch_size, lr_factor=1.0, measure=False
        )
    return live


class _FusedLoss(torch.autograd.Function):
    """Sum of cross entropies that needs as much memory as a compiled loss. The scores are not copied, the forward
    keeps one number for each item, and the backward writes the gradient of the scores."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, num_items: int) -> torch.Tensor:
        ctx.save_for_backward(scores, scores.new_empty(num_items, dtype=torch.float32))
        return scores.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.empty_like(ctx.saved_tensors[0]), None


def _sum_as_compiled(scores: torch.Tensor, target: torch.Tensor, *_: Any) -> torch.Tensor:
    return _FusedLoss.apply(scores, target.numel())  # type: ignore[no-untyped-call, no-any-return]


def keeps_buckets(plan: Plan) -> bool:
    """Return whether the plan uses torch's DistributedDataParallel, which keeps memory for all gradients between
    steps."""
    return plan.layout.has("replicate") and not plan.layout.is_sharded and plan.layout.pipeline is None


def _without_values(held: BuiltModel, plan: Plan, device: torch.device) -> None:
    if plan.training.precision == "fp64" and not plan.layout.is_sharded:
        materialise(held.roots, device, torch.float64)  # torch cannot swap a fake tensor for a wider one
    else:
        allocate(held, plan, device)
        widen(held, plan)
    lay_out(held, plan, torch.device("cuda") if plan.layout.device == "cuda" else device)


def _begin_state(engine: Engine) -> None:
    """Run an update with gradients of zero, so that optimizer state and gradients exist as they do after the first
    step."""
    for parameter in engine.optimizer.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    engine.optimizer.step()


def _batches(plan: Plan) -> list[Batch]:
    batch = get_process_batch(plan)
    rows = batch.microbatch_size
    fields = {field.name: field.tensor for field in plan.data.fields}
    return [
        Batch(
            {name: torch.zeros((rows, *spec.shape), dtype=getattr(torch, spec.dtype)) for name, spec in fields.items()},
            rows,
            None,
            np.arange(rows),
        )
        for _ in range(batch.accumulation * batch.num_microbatches)
    ]


class PendingSend:
    """Message that is being sent. It keeps its tensors alive until the pipeline schedule waits for it, as gloo and
    NCCL do."""

    def __init__(self, work: Any, tensors: list[Any]) -> None:
        self._work, self._tensors = work, tensors

    def wait(self) -> None:
        self._work.wait()


@contextmanager
def _hold_messages() -> Iterator[None]:
    """Keep sent tensors alive, within the `with` block, until the pipeline schedule waits for their messages. Without
    this, fake process groups would free the tensors at once."""
    from torch.distributed.pipelining import schedules

    send = schedules._batch_p2p

    def batch_send(operations: list[Any], *more: Any, **named: Any) -> list[Any]:
        tensors = [each.tensor for each in operations]
        return [PendingSend(work, tensors) for work in send(operations, *more, **named)]

    schedules._batch_p2p = batch_send  # type: ignore[assignment]
    try:
        yield
    finally:
        schedules._batch_p2p = send


@contextmanager
def _ranks(rank: int, number: int) -> Iterator[None]:
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=number)
    try:
        yield
    finally:
        distributed.destroy_process_group()
