"""What a layer or expression gives for known inputs, found by running it: shapes come from torch itself.

Two runs with different odd batch sizes: shapes must agree but for dimension 0, and dimension 0 must be the batch. (A
symbolic batch fails in LSTMs and specialises silently in `reshape`: torch-facts, section 6.)

Small things run on real CPU tensors, since the first forward on the meta device imports `torch._dynamo` (0.9 s); what
is larger than the limits below runs on meta, where it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from declarative_train.components.adapters.adapted import Adapted
from declarative_train.components.adapters.modules.lora import linear_maps
from declarative_train.components.component import Layer
from declarative_train.components.expressions.dtypes import known_of, result_spec, with_known
from declarative_train.components.expressions.functions import OPERATORS
from declarative_train.components.expressions.grammar import Expression
from declarative_train.components.expressions.lower import infer as evaluate
from declarative_train.components.expressions.ranges import of_operation
from declarative_train.components.layers.libraries.layer import LibraryLayer
from declarative_train.components.layers.libraries.modules.node import units_in, without_memory
from declarative_train.components.layers.modules.packed import weights_in
from declarative_train.components.layers.shape_checks import FunctionLayer
from declarative_train.components.plugin_layer import PluginLayer, seed_generators
from declarative_train.core.tensor_spec import DType, TensorSpec
from declarative_train.graph.inspect_plugin import Habits, examine
from declarative_train.graph.read import ordered_ports

BATCH_SIZES = (3, 5)
SMALL_PARAMETERS = 1 << 20
"""Elements of parameters and buffers of one layer that may be allocated to find its shapes."""
MOST_PARAMETERS = 1 << 26
"""The same of a library's model whose shapes cannot be found without."""
SMALL_ACTIVATIONS = 1 << 20
"""Elements of all inputs together, for the larger batch, that may be computed with to find shapes."""
SMALL_RESULTS, SMALL_LOOKUPS = 1 << 27, 1 << 25
"""And elements of what may come of them, or of ids, if each becomes as many as the largest number among the layer's
fields: an image that gets a thousand channels, or a long row of ids looked up in a wide table, is small only before."""

Specs = Mapping[str, TensorSpec]
_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})


class RefusedError(Exception):
    """torch does not take these inputs; the message is its own, in one line."""


class BatchMovedError(Exception):
    """An output whose dimension 0 is not the batch, or that has the batch elsewhere; the message says which."""


@dataclass(frozen=True, slots=True)
class Probed:
    """`parameters` by torch's name within the layer; `habits` of a plugin's."""

    outputs: tuple[TensorSpec, ...]
    parameters: Mapping[str, tuple[int, ...]]
    habits: Habits | None = None
    maps: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Its linear maps, which may have adapters: (out, in) by path; "" is the layer's module itself."""
    tables: tuple[str, ...] = ()
    """Its weights that can be held as bytes, by name: those of linear maps and embeddings."""
    units: tuple[str, ...] = ()
    """Of a library's model: the parts that are gathered, computed again and compiled one by one, by path."""


def probe_layer(layer: Layer, inputs: Mapping[str, TensorSpec], built_for: Mapping[str, TensorSpec]) -> Probed:
    """`built_for` differs from `inputs` where a layer is called again (`reuse`).

    Raises RefusedError and BatchMovedError."""
    if isinstance(base := layer.base if isinstance(layer, Adapted) else layer, LibraryLayer):
        return _probe_library(base, inputs, built_for)
    if not isinstance(layer, PluginLayer):
        return _probe(layer, inputs, built_for)
    with seed_generators(0):
        try:
            return _probe(layer, inputs, built_for)
        except RefusedError:  # on meta, code cannot read numbers while it is made (a pretrained model) or while it runs
            module: nn.Module = _in_one_line(lambda: layer.build(built_for))
            return _probed(layer, inputs, module, torch.device("cpu"))


def _probe(layer: Layer, inputs: Specs, built_for: Specs) -> Probed:
    if _is_small(layer, inputs.values()):
        try:
            return _probed(layer, inputs, _built_small(layer, built_for), torch.device("cpu"))
        except _TooLargeError:
            pass
    return _probed(layer, inputs, _built_on_meta(layer, built_for), torch.device("meta"))


def _probe_library(layer: LibraryLayer, inputs: Specs, built_for: Specs) -> Probed:
    """Its code asks tensors for values, which those on meta do not have: a small model runs in memory, a larger one on
    tensors that tell their size and device alone, as `torch.compile` traces it."""
    with torch.device("meta"):
        module: nn.Module = _in_one_line(lambda: layer.build(built_for))
    units = units_in(module, layer.unit_classes(module))
    num_elements = sum(parameter.numel() for parameter in module.parameters())
    if num_elements <= SMALL_PARAMETERS and _num_activations(inputs.values()) <= SMALL_ACTIVATIONS:
        found = _probed(layer, inputs, _in_memory(layer, built_for), torch.device("cpu"))
    else:
        try:
            with without_memory(module):
                found = _probed(layer, inputs, module, torch.device("cpu"))
        except RefusedError:
            if num_elements > MOST_PARAMETERS:
                raise
            found = _probed(layer, inputs, _in_memory(layer, built_for), torch.device("cpu"))
    return replace(found, units=units)


def _in_memory(layer: LibraryLayer, inputs: Specs) -> nn.Module:
    with torch.device("cpu"), torch.no_grad():
        module: nn.Module = _in_one_line(lambda: layer.build(inputs))
        for parameter in module.parameters():
            parameter.zero_()
    return module


def _probed(layer: Layer, inputs: Specs, module: nn.Module, device: torch.device) -> Probed:
    module.eval()
    ports = ordered_ports(layer, inputs)

    def run(batch_size: int) -> tuple[torch.Tensor, ...]:
        tensors = [None if port is None else _example(inputs[port], batch_size, device) for port in ports]
        with torch.no_grad():
            found = _in_one_line(lambda: module(*tensors))
        return found if isinstance(found, tuple) else (found,)

    outputs = _specs(run, layer.outputs)
    if layer.keeps_range and inputs:
        outputs = tuple(_with_intervals(spec, next(iter(inputs.values()))) for spec in outputs)
    if layer.operation:
        outputs = tuple(_by_operation(layer, inputs, spec) for spec in outputs)
    specs = [None if port is None else inputs[port] for port in ports]
    return Probed(
        outputs,
        {name: tuple(parameter.shape) for name, parameter in module.named_parameters()},
        examine(module, specs, device, mixes_in_training=layer.mixes) if isinstance(layer, PluginLayer) else None,
        {} if isinstance(layer, PluginLayer) else linear_maps(module),
        () if isinstance(layer, PluginLayer | LibraryLayer) else tuple(weights_in(module)),
    )


def probe_expression(expression: Expression, inputs: Mapping[str, TensorSpec]) -> TensorSpec:
    """Raises ExpressionError (with the place in the text) and BatchMovedError."""
    is_small = _num_activations(inputs.values()) <= SMALL_ACTIVATIONS
    device = torch.device("cpu" if is_small else "meta")

    def run(batch_size: int) -> tuple[torch.Tensor, ...]:
        tensors = {name: _example(spec, batch_size, device) for name, spec in inputs.items()}
        with torch.no_grad():
            return (evaluate(expression, tensors),)

    (found,) = _specs(run, ("output",))
    return result_spec(expression, inputs, found.shape)


def _num_activations(specs: Iterable[TensorSpec]) -> int:
    return sum(spec.num_elements for spec in specs) * max(BATCH_SIZES)


def _is_small(layer: Layer, inputs: Collection[TensorSpec]) -> bool:
    growth = max((value for value in dict(layer).values() if isinstance(value, int)), default=1)
    num_elements = _num_activations(inputs)
    num_ids = _num_activations(spec for spec in inputs if not spec.is_floating)
    return (
        num_elements <= SMALL_ACTIVATIONS
        and num_elements * growth <= SMALL_RESULTS
        and num_ids * growth <= SMALL_LOOKUPS
    )


class _TooLargeError(Exception):
    """Building this on the CPU would allocate more than SMALL_PARAMETERS."""


class _Counting(TorchFunctionMode):
    """Counts what `torch.empty` and the like are asked for, before they allocate it."""

    def __init__(self) -> None:
        super().__init__()
        self._num_elements = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _FACTORIES:
            self._num_elements += _num_elements(args, kwargs or {})
            if self._num_elements > SMALL_PARAMETERS:
                raise _TooLargeError
        return func(*args, **(kwargs or {}))


def _num_elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    sizes = kwargs.get("size", args[0] if args and not isinstance(args[0], int) else args)
    return math.prod(size for size in sizes if isinstance(size, int))


def _built_small(layer: Layer, inputs: Mapping[str, TensorSpec]) -> nn.Module:
    with _Counting():
        module: nn.Module = _in_one_line(lambda: layer.build(inputs))
    return module


def _built_on_meta(layer: Layer, inputs: Mapping[str, TensorSpec]) -> nn.Module:
    with torch.device("meta"):
        module: nn.Module = _in_one_line(lambda: layer.build(inputs))
    return module


def _example(spec: TensorSpec, batch_size: int, device: torch.device) -> torch.Tensor:
    """Ones where floats are wanted, so that nothing is divided by zero; the smallest value of every range elsewhere."""
    dtype = getattr(torch, spec.dtype)
    value = 1.0 if spec.is_floating else 0
    return torch.full((batch_size, *spec.shape), value, dtype=dtype, device=device)


def _in_one_line(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except _TooLargeError:
        raise
    except Exception as error:  # whatever torch or a plugin raises is what the user has to hear
        lines = str(error).strip().splitlines()
        said = lines[0] if lines else type(error).__name__
        raise RefusedError(said[:1].lower() + said[1:]) from error


def _specs(run: Callable[[int], tuple[torch.Tensor, ...]], names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    small, large = (run(batch_size) for batch_size in BATCH_SIZES)
    if len(small) != len(names) or not all(isinstance(item, torch.Tensor) for item in small):
        raise RefusedError(f"it gives {len(small)} results where {', '.join(names)} are declared")
    return tuple(_spec(*case) for case in zip(small, large, names, strict=True))


def _spec(small: torch.Tensor, large: torch.Tensor, name: str) -> TensorSpec:
    """One output of the two runs as what it is per sample."""
    shapes = (tuple(small.shape), tuple(large.shape))
    which = "" if name == "output" else f"`{name}`: "
    if any(not shape or shape[0] != size for shape, size in zip(shapes, BATCH_SIZES, strict=True)):
        sizes = " and ".join(f"{_shown(shape)} for {size}" for shape, size in zip(shapes, BATCH_SIZES, strict=True))
        raise BatchMovedError(f"{which}dimension 0 is not the batch any more: the shape is {sizes} samples")
    if shapes[0][1:] != shapes[1][1:]:
        sizes = " and ".join(f"{_shown(shape)} for {size}" for shape, size in zip(shapes, BATCH_SIZES, strict=True))
        raise BatchMovedError(f"{which}a dimension but 0 depends on the batch: the shape is {sizes} samples")
    dtype: DType = str(small.dtype).removeprefix("torch.")  # type: ignore[assignment]
    return TensorSpec(shapes[0][1:], dtype)


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def _by_operation(layer: Layer, inputs: Specs, spec: TensorSpec) -> TensorSpec:
    """Of a layer that an expression could stand for: of its inputs together, or of one after the other."""
    options = layer.options() if isinstance(layer, FunctionLayer) else {}
    known = [known_of(each) for each in inputs.values()]
    if layer.operation in OPERATORS:
        found = reduce(lambda a, b: of_operation(layer.operation, options, [a, b], spec.dtype), known)
    else:
        found = of_operation(layer.operation, options, known, spec.dtype)
    return with_known(spec, found)


def _with_intervals(spec: TensorSpec, first: TensorSpec) -> TensorSpec:
    """Of a layer that moves values and makes none: whatever it moves, they lie in the interval of all."""
    return spec if first.interval is None or first.dtype != spec.dtype else spec.between((first.interval,))
