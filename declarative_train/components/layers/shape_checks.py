"""Base classes of layers, and checks of their inputs. A check returns a ShapeError, which describes a mistake, or
None.

Layers with parameters accept float32 or float64 inputs, and their parameters have the dtype of the input;
`training.precision` decides in which dtype the model computes. Layers without parameters accept any floating-point
dtype.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from declarative_train.components.component import Layer, ShapeError
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

Inputs = Mapping[str, TensorSpec]


class FieldsLayer(Layer, ABC):
    """Base class of layers whose keys in the recipe are the arguments of an `nn.Module`, in the same order. `module`:
    the class of this module, in `torch.nn` (such as `nn.GELU`) or in the folder `layers/modules` (such as
    `shapes.AddModule`).
    """

    module: ClassVar[str]

    def build(self, inputs: Inputs) -> nn.Module:
        file, _, name = self.module.partition(".")
        where = "torch.nn" if file == "nn" else f"declarative_train.components.layers.modules.{file}"
        fields = [getattr(self, field) for field in type(self).model_fields if field != "type"]
        made: nn.Module = getattr(import_module(where), name)(*fields)
        return made


class FunctionLayer(Layer, ABC):
    """Base class of layers that only apply a function of the expression language. The function has the name of the
    layer; it defines the computation and the defaults of the fields.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "type" in cls.model_fields:
            cls.operation = cls.model_fields["type"].default

    def options(self) -> Mapping[str, object]:
        """Return the keyword arguments of the layer's function: the fields of the layer, without `type`."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "type"}

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.shapes import FunctionModule

        return FunctionModule(self.type, self.options())


def needs_float(layer: Layer, inputs: Inputs, *ports: str) -> ShapeError | None:
    """Return an error unless each of the inputs `ports` has floating-point numbers and at least one element. No
    `ports` means all inputs.
    """
    for port in ports or tuple(inputs):
        spec = inputs[port]
        if not spec.is_floating:
            return ShapeError(
                f"`{layer.type}` computes with floating-point numbers, `{port}` is {spec.dtype}",
                port=port,
                help="put an `embedding` or `one_hot` before it"
                if spec.num_values is not None
                else "set the field's `dtype: float32`",
            )
        if not spec.num_elements:
            return ShapeError(f"`{layer.type}` takes no empty tensor, `{port}` is {spec}", port=port)
    return None


def needs_parameter_dtype(layer: Layer, inputs: Inputs, *ports: str) -> ShapeError | None:
    """Return an error unless the inputs `ports` are all float32 or all float64. No `ports` means all inputs."""
    names = ports or tuple(inputs)
    if shape_error := needs_float(layer, inputs, *names):
        return shape_error
    for port in names:
        if inputs[port].dtype not in ("float32", "float64"):
            message = f"`{layer.type}` has float32 parameters, `{port}` is {inputs[port].dtype}"
            hint = "set the field's `dtype: float32`; `training.precision` sets the dtype in which the model computes"
            return ShapeError(message, port=port, help=hint)
    return needs_same_dtype(layer, inputs, *names)


def needs_same_dtype(layer: Layer, inputs: Inputs, *ports: str) -> ShapeError | None:
    """Return an error unless the inputs `ports` all have the same dtype. No `ports` means all inputs."""
    names = ports or tuple(inputs)
    for port in names[1:]:
        if inputs[port].dtype != inputs[names[0]].dtype:
            return ShapeError(
                f"`{layer.type}` takes inputs of one dtype, {name_port(names[0])} is {inputs[names[0]].dtype} "
                f"and {name_port(port)} is {inputs[port].dtype}",
                port=port,
            )
    return None


def name_port(port: str) -> str:
    """Return the name of the input `port` for messages. The inputs of a variadic port are numbered: "input 1"."""
    name, _, number = port.partition(".")
    return f"input {int(number) + 1}" if number else f"`{name}`"


def needs_integer(layer: Layer, inputs: Inputs, port: str = "x") -> ShapeError | None:
    """Return an error unless the input `port` has whole numbers, such as token ids or categories, and at least
    one element.
    """
    spec = inputs[port]
    if spec.is_floating or spec.dtype == "bool":
        message = f"`{layer.type}` looks up whole numbers, `{port}` is {spec.dtype}"
        return ShapeError(message, port=port, help="give the field an integer `dtype`, or make it `type: category`")
    if not spec.num_elements:
        return ShapeError(f"`{layer.type}` takes no empty tensor, `{port}` is {spec}", port=port)
    return None


def needs_positions(layer: Layer, inputs: Inputs, port: str = "positions") -> ShapeError | None:
    """Return an error if the input `port` is connected, but is not one integer per position of `x`. The port
    `positions` must also have a known largest value."""
    if port not in inputs:
        return None
    spec, wanted = inputs[port], TensorSpec(inputs["x"].shape[:-1], "int64")
    if spec.shape != wanted.shape or spec.is_floating or spec.dtype == "bool":
        message = f"`{port}` of `{layer.type}` must be {wanted} of whole numbers here, it is {spec} {spec.dtype}"
        return ShapeError(message, port=port)
    if port == "positions" and spec.num_values is None:
        hint = "use the positions of a `tokens` field, `NAME.positions`: their range is known"
        message = f"the largest value that `{port}` of `{layer.type}` can have is not known"
        return ShapeError(message, port=port, help=hint, lacks_key=True)
    return None


def needs_shape(layer: Layer, inputs: Inputs, wanted: str, *ranks: int, port: str = "x") -> ShapeError | None:
    """Return an error unless the number of dimensions per sample of the input `port` is one of `ranks`.
    `wanted`: the expected shape for the message, such as `(B, C, H, W)`.
    """
    spec = inputs[port]
    if len(spec.shape) in ranks:
        return None
    return ShapeError(
        f"`{layer.type}` takes {wanted}, {name_port(port)} is {spec}", port=port, help=_reshaping(spec, ranks)
    )


def needs_dimensions(layer: Layer, inputs: Inputs, wanted: str, least: int, port: str = "x") -> ShapeError | None:
    """Return an error that names the expected shape `wanted`, unless the input `port` has at least `least` dimensions
    per sample."""
    spec = inputs[port]
    if len(spec.shape) >= least:
        return None
    return ShapeError(
        f"`{layer.type}` takes {wanted}, {name_port(port)} is {spec}", port=port, help=_reshaping(spec, (least,))
    )


def needs_trailing(layer: Layer, inputs: Inputs, num_dims: int) -> ShapeError | None:
    """Return an error unless the input of a norm has at least `num_dims` dimensions per sample and dtype float32 or
    float64. The norm is computed over the last `num_dims` dimensions.
    """
    wanted = "(B, ..., D)" if num_dims == 1 else f"at least {num_dims} dimensions apart from the batch"
    return needs_dimensions(layer, inputs, wanted, num_dims) or needs_parameter_dtype(layer, inputs)


def needs_along(layer: Layer, dim: int, inputs: Inputs) -> ShapeError | None:
    """Return an error unless dimension `dim` exists in the input and is not the batch dimension."""
    if shape_error := needs_dimensions(layer, inputs, "(B, ..., C)", 1):
        return shape_error
    found = resolve_dim("dim", dim, len(inputs["x"].shape) + 1)
    return found if isinstance(found, ShapeError) else None


def _reshaping(spec: TensorSpec, ranks: tuple[int, ...]) -> str | None:
    if len(spec.shape) > max(ranks):
        return "put a `flatten` or `reshape` before it, to remove dimensions"
    if spec.shape == ():
        return "`columns: [NAME]` instead of `column: NAME` gives the field shape (B, 1)"
    return "put an `unsqueeze` or `reshape` before it, to add dimensions"


def resolve_dim(field: str, dim: int, rank: int) -> int | ShapeError:
    """Return the index of dimension `dim`, counted from 0 (the batch); `dim` may be negative. Return a ShapeError if
    there is no such dimension, or if it is the batch. `field`: the key of the recipe that sets `dim`. `rank`: number
    of dimensions, including the batch.
    """
    known = f"1 to {rank - 1} or -1 to {1 - rank}" if rank > 1 else "none"
    found = dim + rank if dim < 0 else dim
    if found == 0 and dim in (0, -rank):
        return ShapeError(
            f"`{field}: {dim}` is the batch, which every layer keeps", field=field, help=f"dimensions here: {known}"
        )
    if not 0 < found < rank:
        message = f"there is no dimension {dim} in an input of {format_count(rank, 'dimension')}, the batch included"
        return ShapeError(message, field=field, help=f"dimensions here: {known}")
    return found


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """Return the dtype of `spec` as a torch dtype."""
    import torch

    found: torch.dtype = getattr(torch, spec.dtype)
    return found


def divisors(number: int) -> str:
    """Return the divisors of `number` as a text, such as `1, 2, 4, 8`."""
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
