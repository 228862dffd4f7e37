"""Output shapes of a layer or expression, found by running it.

It is run with two odd batch sizes. The output shapes must differ in dimension 0 only, which must be the batch. A small
layer runs on real CPU tensors, because the first forward on the meta device imports `torch._dynamo` (0.9 s). A layer
that exceeds the limits in this file runs on the meta device, without memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from declarative_train.components.component import Layer
from declarative_train.components.expressions.dtypes import read_range, result_spec, with_known
from declarative_train.components.expressions.functions import OPERATORS
from declarative_train.components.expressions.grammar import Expression
from declarative_train.components.expressions.lower import infer as evaluate
from declarative_train.components.expressions.ranges import of_operation
from declarative_train.components.layers.modules.packed import weights_in
from declarative_train.components.layers.shape_checks import FunctionLayer
from declarative_train.components.plugin_layer import PluginLayer, seed_generators
from declarative_train.core.tensor_spec import DType, TensorSpec
from declarative_train.graph.grouped_products import EmptyGroupedProducts
from declarative_train.graph.inspect_plugin import Habits, examine
from declarative_train.graph.read import order_ports

BATCH_SIZES = (3, 5)
SMALL_PARAMETERS = 1 << 20
"""Largest number of parameter and buffer elements of one layer that may be allocated to find its shapes."""
MOST_PARAMETERS = 1 << 26
"""The same limit for a library's model whose shapes cannot be found on tensors without memory."""
SMALL_ACTIVATIONS = 1 << 20
"""Largest number of elements of all inputs, for the larger batch, that may be computed with to find shapes."""
SMALL_RESULTS, SMALL_LOOKUPS = 1 << 27, 1 << 25
"""Largest numbers of elements of possible results, and of results from ids, if each input element becomes as many as
the largest number among the layer's fields: an image with a thousand output channels, or many ids in a wide table.
"""

Specs = Mapping[str, TensorSpec]
_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})


class RefusedError(Exception):
    """Error: torch does not accept the inputs. The text is torch's message, in one line."""


class BatchMovedError(Exception):
    """Error: dimension 0 of an output is not the batch, or another dimension depends on the batch size. The message
    says which of the two."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Result of running a layer. `outputs`: specs of its outputs. `parameters`: shapes by name within the layer.
    `habits`: for a plugin's layer, behaviour that its signature does not show (such as random numbers)."""

    outputs: tuple[TensorSpec, ...]
    parameters: Mapping[str, tuple[int, ...]]
    habits: Habits | None = None
    maps: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Linear maps, which may have adapters: (out, in) by path; "" is the layer's module itself."""
    tables: tuple[str, ...] = ()
    """Names of weights that can be stored as bytes: those of linear maps and embeddings."""
    units: tuple[str, ...] = ()
    """Paths of the parts of a library's model that are gathered, recomputed and compiled one by one."""


def probe_layer(layer: Layer, inputs: Mapping[str, TensorSpec], built_for: Mapping[str, TensorSpec]) -> Probed:
    """Run a layer, and return the specs of its outputs and other facts about its module. `inputs`: specs of the inputs.
    `built_for`: specs of the inputs for which the module was built; they can differ from `inputs` if a `reuse` node
    calls the layer again. Raises RefusedError and BatchMovedError."""
    if layer.is_library:
        return _probe_library(layer, inputs, built_for)
    if not isinstance(layer, PluginLayer):
        return _probe(layer, inputs, built_for)
    with seed_generators(0):
        try:
            return _probe(layer, inputs, built_for)
        except RefusedError:  # on meta, code cannot read values, when it is built (a pretrained model) or run
            module: nn.Module = _in_one_line(lambda: layer.build(built_for))
            return _probe_module(layer, inputs, module, torch.device("cpu"))


def _probe(layer: Layer, inputs: Specs, built_for: Specs) -> Probed:
    if _is_small(layer, inputs.values()):
        try:
            return _probe_module(layer, inputs, _build_small(layer, built_for), torch.device("cpu"))
        except _TooLargeError:
            pass
    return _probe_module(layer, inputs, _build_on_meta(layer, built_for), torch.device("meta"))


def _probe_library(layer: Layer, inputs: Specs, built_for: Specs) -> Probed:
    """Run a layer that is a whole model of a library (transformers, timm), as `probe_layer` does. A small model runs in
    memory, a large one on fake tensors. A model that fails on fake tensors runs in memory too, unless it has more than
    MOST_PARAMETERS elements."""
    with torch.device("meta"):
        module: nn.Module = _in_one_line(lambda: layer.build(built_for))
    units = layer.find_units(module)
    num_elements = sum(parameter.numel() for parameter in module.parameters())
    if num_elements <= SMALL_PARAMETERS and _num_activations(inputs.values()) <= SMALL_ACTIVATIONS:
        found = _probe_module(layer, inputs, _in_memory(layer, built_for), torch.device("cpu"))
    else:
        try:
            with without_memory(module):
                found = _probe_module(layer, inputs, module, torch.device("cpu"))
        except RefusedError:
            if num_elements > MOST_PARAMETERS:
                raise
            found = _probe_module(layer, inputs, _in_memory(layer, built_for), torch.device("cpu"))
    return replace(found, units=units)


@contextmanager
def without_memory(module: nn.Module) -> Iterator[None]:
    """Turn the meta tensors of the module into fake CPU tensors, in place. Tensors that are created in the `with` block
    are fake too."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # imported late: it imports torch._dynamo

    with FakeTensorMode(allow_non_fake_inputs=True), EmptyGroupedProducts():  # type: ignore[no-untyped-call]
        move(module, torch.device("cpu"))
        yield


def move(module: nn.Module, device: torch.device) -> None:
    """Replace the module's parameters and buffers by tensors without values on `device`. A tensor with several names
    becomes one new tensor."""
    moved: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None or tensor.device == device:
                    continue
                if id(tensor) not in moved:
                    there = torch.empty_like(tensor, device=device)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    moved[id(tensor)] = nn.Parameter(there, tensor.requires_grad) if is_parameter else there
                tensors[name] = moved[id(tensor)]  # type: ignore[assignment]


def _in_memory(layer: Layer, inputs: Specs) -> nn.Module:
    with torch.device("cpu"), torch.no_grad():
        module: nn.Module = _in_one_line(lambda: layer.build(inputs))
        for parameter in module.parameters():
            parameter.zero_()
    return module


def linear_maps(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Return a dict from the path of each linear map in the module ("": the module itself) to its shape (out, in).
    Linear maps inside another linear map, such as those of its adapter, are left out. So are linear maps that share
    their weight with another part of the module, such as a tied head."""
    users: dict[int, int] = {}
    for _, item in module.named_parameters(remove_duplicate=False):
        users[id(item)] = users.get(id(item), 0) + 1
    found = ((path, part) for path, part in _linear(module, "") if users.get(id(part.weight), 1) == 1)
    return {path: (part.out_features, part.in_features) for path, part in found}


def _linear(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Linear]]:
    if isinstance(module, nn.Linear):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _linear(child, f"{path}.{name}" if path else name)


def _probe_module(layer: Layer, inputs: Specs, module: nn.Module, device: torch.device) -> Probed:
    module.eval()
    ports = order_ports(layer, inputs)

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
        () if isinstance(layer, PluginLayer) or layer.is_library else tuple(weights_in(module)),
    )


def probe_expression(expression: Expression, inputs: Mapping[str, TensorSpec]) -> TensorSpec:
    """Return the spec of an expression's result. Raises ExpressionError, which has the place in the text, and
    BatchMovedError."""
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
    """Error: building this layer on the CPU would allocate more than SMALL_PARAMETERS elements."""


class _AllocationCounting(TorchFunctionMode):
    """Torch function mode that counts the elements that `torch.empty` and similar functions allocate. It raises
    _TooLargeError instead of allocating more than SMALL_PARAMETERS elements."""

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


def _build_small(layer: Layer, inputs: Mapping[str, TensorSpec]) -> nn.Module:
    with _AllocationCounting():
        module: nn.Module = _in_one_line(lambda: layer.build(inputs))
    return module


def _build_on_meta(layer: Layer, inputs: Mapping[str, TensorSpec]) -> nn.Module:
    with torch.device("meta"):
        module: nn.Module = _in_one_line(lambda: layer.build(inputs))
    return module


def _example(spec: TensorSpec, batch_size: int, device: torch.device) -> torch.Tensor:
    """Return an input (batch_size, ...) for the run of a layer: ones for floats, so that no division by zero occurs;
    zeros for integers and booleans, because 0 is in every range."""
    dtype = getattr(torch, spec.dtype)
    value = 1.0 if spec.is_floating else 0
    return torch.full((batch_size, *spec.shape), value, dtype=dtype, device=device)


def _in_one_line(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except _TooLargeError:
        raise
    except Exception as error:  # errors of torch and of plugins are shown to the user
        lines = str(error).strip().splitlines()
        said = lines[0] if lines else type(error).__name__
        raise RefusedError(said[:1].lower() + said[1:]) from error


def _specs(run: Callable[[int], tuple[torch.Tensor, ...]], names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    small, large = (run(batch_size) for batch_size in BATCH_SIZES)
    if len(small) != len(names) or not all(isinstance(item, torch.Tensor) for item in small):
        raise RefusedError(f"it gives {len(small)} results, but {', '.join(names)} are declared")
    return tuple(_spec(*case) for case in zip(small, large, names, strict=True))


def _spec(small: torch.Tensor, large: torch.Tensor, name: str) -> TensorSpec:
    """Return the spec of one output of a layer that was run with two batch sizes. `small`, `large`: the output in these
    two runs. `name`: its name. Raises BatchMovedError if dimension 0 is not the batch, or another dimension depends on
    the batch size."""
    shapes = (tuple(small.shape), tuple(large.shape))
    which = "" if name == "output" else f"`{name}`: "
    if any(not shape or shape[0] != size for shape, size in zip(shapes, BATCH_SIZES, strict=True)):
        sizes = _format_shapes(shapes)
        raise BatchMovedError(f"{which}dimension 0 is no longer the batch: the shape is {sizes} samples")
    if shapes[0][1:] != shapes[1][1:]:
        sizes = _format_shapes(shapes)
        raise BatchMovedError(f"{which}a dimension other than 0 depends on the batch: the shape is {sizes} samples")
    dtype: DType = str(small.dtype).removeprefix("torch.")  # type: ignore[assignment]
    return TensorSpec(shapes[0][1:], dtype)


def _format_shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(f"{_format_shape(shape)} for {size}" for shape, size in zip(shapes, BATCH_SIZES, strict=True))


def _format_shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def _by_operation(layer: Layer, inputs: Specs, spec: TensorSpec) -> TensorSpec:
    """Return `spec`, the spec of a layer's output, with the value range that follows from the ranges of `inputs`. The
    layer must compute the same as the operation `layer.operation` of expressions."""
    options = layer.options() if isinstance(layer, FunctionLayer) else {}
    known = [read_range(each) for each in inputs.values()]
    if layer.operation in OPERATORS:
        found = reduce(lambda a, b: of_operation(layer.operation, options, [a, b], spec.dtype), known)
    else:
        found = of_operation(layer.operation, options, known, spec.dtype)
    return with_known(spec, found)


def _with_intervals(spec: TensorSpec, first: TensorSpec) -> TensorSpec:
    """Return `spec`, the output of a layer that only moves values, with the interval of values of the layer's first
    input, `first`. If the interval is unknown or the dtypes differ, return `spec` unchanged."""
    return spec if first.interval is None or first.dtype != spec.dtype else spec.between((first.interval,))
