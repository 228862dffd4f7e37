"""Kernels of a model: for each node, the operations that torch runs in its forward and backward, with their arithmetic
and memory traffic.

Each different layer or expression is run on tensors without memory, with two numbers of rows, because arithmetic and
traffic are linear in it. Views start no kernel. Attention is one fused kernel; causal attention computes half of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.lower import infer
from declarative_train.components.layers.modules.packed import unpack
from declarative_train.components.matrix_products import Weight
from declarative_train.components.storages import StorageName, row_bytes
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.cost import Work, measure_leaves
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.probe import without_memory
from declarative_train.graph.read import order_ports, read_layer
from declarative_train.plan.plan import ParameterPlan
from declarative_train.planner.estimate.rank_model import Sums

ROWS = (2, 4)
MEMORY, PRODUCT, ATTENTION = 0, 1, 2  # kinds of kernels: elementwise and moves, matrix products, fused attention
CONVOLUTION = 5
SUMMED, SUMMED_FAR = 3, 4  # all-reduce between the ranks that divide a layer, inside a node and beyond
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES = {"fp32": torch.float32, "fp64": torch.float64} | HALF
_NO_KERNEL = ("empty", "new_empty", "_unsafe_view", "lift_fresh")


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """Kernels of one forward or backward through a part of the model, as arrays with one entry for each kernel.

    flops   (kernels, 2) operations: constant, and for each row of the batch; for MEMORY: random numbers that it draws
    moved   (kernels, 2) bytes read and written: constant, and for each row
    kind    MEMORY, PRODUCT, ATTENTION, ...
    calls   how often the kernel starts (in a recurrent layer, once for each position)
    """

    flops: np.ndarray
    moved: np.ndarray
    kind: np.ndarray
    calls: np.ndarray

    @staticmethod
    def join(parts: Sequence[Kernels]) -> Kernels:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Kernels(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, int), np.zeros(0))
        return Kernels(*(np.concatenate([getattr(each, name) for each in parts]) for name in Kernels.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class NodeKernels:
    """Kernels of a node in the forward and in the backward. Equal nodes share one object."""

    forward: Kernels
    backward: Kernels


def kernels_of(
    graph: Graph, parameters: Sequence[ParameterPlan], works: Mapping[str, tuple[Work, ...]], precision: str
) -> dict[str, NodeKernels]:
    """Return the kernels of each node of a graph, by name, from traces of the node's layers and expressions. A layer
    that cannot be traced, such as one of a plugin, gets kernels from `works` instead. `works`: {name of a node:
    arithmetic and memory traffic of its layers, computed from shapes}."""
    stored = {item.name: item for item in parameters if item.storage is not None}

    def measure(
        node: Node, called: Node, specs: Mapping[str, TensorSpec], graded: Mapping[str, bool], weights: list[Weight]
    ) -> NodeKernels | None:
        text = called.expression if called.component is None else json.dumps(called.component, sort_keys=True)
        trained = tuple(each.name for each in weights if each.is_trained)
        is_expression = called.component is None
        return _leaf(str(text), is_expression, tuple(specs.items()), tuple(graded.items()), trained, precision)

    shapes = {item.name: item.shape for item in parameters}
    leaves = measure_leaves(graph, shapes, frozenset(item.name for item in parameters if item.frozen), measure)
    known: dict[tuple[object, ...], NodeKernels] = {}
    found = {}
    for name, parts in leaves.items():
        each = [
            _from_work(work, precision) if leaf is None else leaf for leaf, work in zip(parts, works[name], strict=True)
        ]
        each += [
            unpacking(item.storage, item.shape, precision)
            for key, item in stored.items()
            if key.startswith(f"{name}.") and item.storage is not None
        ]
        key = tuple(map(id, each))
        if key not in known:
            ahead, back = ([getattr(leaf, way) for leaf in each] for way in ("forward", "backward"))
            known[key] = NodeKernels(Kernels.join(ahead), Kernels.join(back))
        found[name] = known[key]
    return found


def divide_kernels(kernels: NodeKernels, size: int) -> NodeKernels:
    """Return the kernels of a node on one of `size` ranks, if the ranks divide the work of each kernel equally."""
    return NodeKernels(
        *(
            Kernels(each.flops / size, each.moved / size, each.kind, each.calls / size)
            for each in (kernels.forward, kernels.backward)
        )
    )


def with_sums(kernels: NodeKernels, sums: Sums, size: int, devices_per_node: int, width: int) -> NodeKernels:
    """Return `kernels` with one kernel added for each collective in `sums.forward` and `sums.backward`.

    `size`: number of ranks in the collective. `devices_per_node`: devices of one machine. If the ranks are on several
    machines, all network adapters of a machine share the traffic. `width`: bytes per element; for an all-reduce twice
    the size of the dtype, because a ring of ranks sends each element twice.
    """
    is_far = size > devices_per_node
    share = (size - 1) / size * width / (devices_per_node if is_far else 1)

    def append(to: Kernels, elements: Sequence[int]) -> Kernels:
        number = len(elements)
        moved = np.array([[0.0, share * each] for each in elements]).reshape(-1, 2)
        kind = np.full(number, SUMMED_FAR if is_far else SUMMED)
        return Kernels.join([to, Kernels(np.zeros((number, 2)), moved, kind, np.full(number, size))])

    return NodeKernels(append(kernels.forward, sums.forward), append(kernels.backward, sums.backward))


@lru_cache(maxsize=256)
def unpacking(storage: StorageName, shape: tuple[int, ...], precision: str) -> NodeKernels:
    """Return the kernels that unpack a weight stored in fewer bits. They run in the forward and again in the backward.
    `storage`: the number format. `shape`: (rows, columns) of the weight."""
    rows, columns = shape
    with without_memory(nn.Identity()):
        packed = torch.empty(rows, row_bytes(storage, columns), dtype=torch.uint8)
        pairs = torch.empty(256, 2, dtype=torch.int32) if storage == "nf4" else None
        with _Recording() as recorded:
            unpack(packed, pairs, storage, columns, DTYPES[precision])
    once = _linear_in_rows(recorded.calls, recorded.calls)
    return NodeKernels(once, once)


@lru_cache(maxsize=4096)
def _from_work(work: Work, precision: str) -> NodeKernels:
    """Return kernels for a layer that was not traced. One kernel stands for its forward, and two equal ones for its
    backward. `work`: arithmetic and memory traffic of the layer, computed from shapes."""
    width = torch.finfo(DTYPES[precision]).bits // 8
    moved = [width * work.parameters, width * work.elements]
    kind = PRODUCT if work.forward else MEMORY

    def kernels(flops: int, times: int) -> Kernels:
        return Kernels(
            np.array([[0.0, flops / times]] * times), np.array([moved] * times), np.full(times, kind), np.ones(times)
        )

    return NodeKernels(kernels(work.forward, 1), kernels(work.backward, 2))


@lru_cache(maxsize=4096)
def _leaf(
    text: str,
    is_expression: bool,
    specs: tuple[tuple[str, TensorSpec], ...],
    graded: tuple[tuple[str, bool], ...],
    trained: tuple[str, ...],
    precision: str,
) -> NodeKernels | None:
    """Return the kernels of one layer or expression from a trace, or None if it cannot be traced.

    `text`: the layer's component as JSON, or the expression. `specs`: (name, spec) of each input. `graded`: (name,
    whether it needs a gradient) of each input. `trained`: names of the layer's parameters that are trained.
    """
    try:
        few, many = (_trace(text, is_expression, dict(specs), dict(graded), trained, precision, rows) for rows in ROWS)
    except Exception:  # a layer of a library may raise anything on tensors without memory
        return None
    if any(len(a) != len(b) for a, b in zip(few, many, strict=True)):
        return None
    return NodeKernels(*(_linear_in_rows(a, b) for a, b in zip(few, many, strict=True)))


Call = tuple[float, float, int, int]  # operations, bytes, kind, kernels


def _linear_in_rows(few: Sequence[Call], many: Sequence[Call]) -> Kernels:
    a, b = (np.array(each, dtype=float).reshape(-1, 4) for each in (few, many))
    slope = (b[:, :2] - a[:, :2]) / (ROWS[1] - ROWS[0])
    start = a[:, :2] - slope * ROWS[0]
    pairs = np.stack([start, slope], axis=-1)
    return Kernels(pairs[:, 0], pairs[:, 1], a[:, 2].astype(int), a[:, 3])


def _trace(
    text: str,
    is_expression: bool,
    specs: Mapping[str, TensorSpec],
    graded: Mapping[str, bool],
    trained: Sequence[str],
    precision: str,
    rows: int,
) -> tuple[list[Call], list[Call]]:
    dtype = DTYPES[precision]
    module: nn.Module = nn.Identity()
    ports: Sequence[str | None] = tuple(specs)
    if not is_expression:
        layer = read_layer(json.loads(text))
        with torch.device("meta"):
            module = layer.build(specs)
        ports = order_ports(layer, specs)
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in trained and parameter.is_floating_point())
    module.train()
    with without_memory(module), torch.enable_grad():
        given = {port: _example(spec, rows, dtype, graded[port]) for port, spec in specs.items()}
        run: Callable[[], Any]
        if is_expression:
            run = lambda: infer(parse(text), given)  # noqa: E731
        else:
            run = lambda: module(*(None if port is None else given[port] for port in ports))  # noqa: E731
        with torch.autocast("cpu", dtype, enabled=precision in HALF), _AsOnGpus(), _Recording() as ahead:
            outputs = run()
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        ends = [each for each in outputs if isinstance(each, torch.Tensor) and each.requires_grad]
        with _Recording() as back:
            if ends:
                torch.autograd.backward(ends, [torch.empty_like(each) for each in ends])
    return ahead.calls, back.calls


def _example(spec: TensorSpec, rows: int, dtype: torch.dtype, wants_gradient: bool) -> torch.Tensor:
    made = torch.empty((rows, *spec.shape), dtype=dtype if spec.is_floating else getattr(torch, spec.dtype))
    return made.requires_grad_(wants_gradient and spec.is_floating)


class _AsOnGpus(TorchFunctionMode):
    """Mode in which dropout runs as on a GPU: as one operation, or inside the kernel of attention. On a CPU, torch runs
    several operations instead."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.dropout and args[1] and args[2]:
            return torch.native_dropout(args[0], args[1], True)[0]
        if func is nn.functional.scaled_dot_product_attention and kwargs:
            kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **(kwargs or {}))


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """torch dispatch mode that records the operations that start a kernel on the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if func.namespace == "prim" or func.is_view or name.startswith(_NO_KERNEL):
            return result
        read = _tensors([*args, *(kwargs or {}).values()])
        written = _tensors([result])
        if not written:
            return result
        moved = sum(map(_num_bytes, read)) + sum(map(_num_bytes, written))
        if name == "embedding":  # reads the rows of the ids only
            moved = 2 * sum(map(_num_bytes, written))
        if "batch_norm" in name:  # reads its inputs twice: for the statistics, and to apply them
            moved += sum(_num_bytes(each) for each in read if each.dim() > 1)
        if name.startswith("_scaled_dot_product"):
            self.calls.append((_attention_flops(name, args), moved, ATTENTION, 1))
        elif "rnn" in name or "lstm" in name or "gru" in name:
            self.calls.append((*_recurrent(name, read, moved), PRODUCT, read[0].shape[0]))
        else:
            count = flop_registry.get(func.overloadpacket)
            flops = 0 if count is None else count(*args, **(kwargs or {}), out_val=result)
            draws = args[0].numel() if name == "native_dropout" else 0
            kind = (CONVOLUTION if "convolution" in name else PRODUCT) if flops else MEMORY
            self.calls.append((flops or draws, moved, kind, 1))
        return result


def _attention_flops(name: str, args: tuple[Any, ...]) -> float:
    """Return the floating-point operations of fused attention. These are two matrix products in the forward, and five
    in the backward, which computes the scores again."""
    is_backward = "backward" in name
    query, key = args[1:3] if is_backward else args[:2]
    is_causal = any(each is True for each in args)
    products = 5 if is_backward else 2
    return float(products * 2 * prod(query.shape) * key.shape[-2] * (0.5 if is_causal else 1.0))


def _recurrent(name: str, read: Sequence[torch.Tensor], moved: float) -> tuple[float, float]:
    steps, rows = read[0].shape[:2]
    weights = sum(each.numel() for each in read[1:5] if each.dim() == 2)
    return 2.0 * steps * rows * weights * (2 if "backward" in name else 1), moved


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    found = []
    for each in values:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += _tensors(each)
    return found


def _num_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor occupies in memory, which are fewer than its shape suggests if it is an expanded
    tensor."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return prod(sizes) * tensor.element_size()
