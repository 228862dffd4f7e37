"""Base class of layers that are a model of another library (transformers, timm). The layer's fields determine the
module; its parameters have the library's names.

The module is created once per process, with parameters on the meta device (`modules/node.py`). They get values later:
from the model's files, of which a rank reads only its rows, or from the library's code, seeded by (seed, path).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from declarative_train.components.component import Init, Layer, ShapeError
from declarative_train.components.counter_rng import key_of
from declarative_train.components.layers.sample_groups import Over
from declarative_train.components.matrix_products import Product, Use, Weight
from declarative_train.core.machine import install
from declarative_train.packs.pretrained.libraries import model_name
from declarative_train.packs.pretrained.libraries.problem import LibraryError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from declarative_train.components.inits.draws import Draws
    from declarative_train.core.diagnostics.diagnostic import Diagnostic
    from declarative_train.core.span import Span
    from declarative_train.core.tensor_spec import TensorSpec
    from declarative_train.packs.pretrained.libraries.files import Files
    from declarative_train.source.node import Mapping as Fields

Inputs = Mapping[str, "TensorSpec"]


class LibraryLayer(Layer):
    """Base class of layers that are a model of another library. `library`: the name of the library's package, and of
    the extra of dtrain that installs it."""

    library: ClassVar[str]
    is_library: ClassVar[bool] = True

    over: Over = "microbatch"
    """Samples that its batch normalisations work on: `N samples` or `microbatch`, as in the layer `batch_norm`."""

    @classmethod
    def complete_fields(cls, fields: Fields, resolve: Callable[[str, Span], str]) -> tuple[Fields, list[Diagnostic]]:
        from declarative_train.packs.pretrained.libraries.node_fields import library_fields

        return library_fields(cls.library, fields, resolve)

    def shorten(self, copies: int, kept: int) -> LibraryLayer | None:
        """Return a copy of the layer whose model has only `kept` of its `copies` equal blocks. The copy can be traced
        faster. Return None if the model cannot be made with fewer blocks."""
        return None

    @classmethod
    def describe_data(cls, data: Mapping[str, object]) -> str:
        return f"{data['type']} {model_name(data)}"

    @property
    def mixes_samples(self) -> bool:  # type: ignore[override]
        """True if the model has batch normalisations. Only valid if `check` found no error."""
        from declarative_train.packs.pretrained.libraries.modules.node import has_batch_norms

        return has_batch_norms(self)

    @property
    def is_random(self) -> bool:
        """True if the model has a dropout above 0."""
        from declarative_train.packs.pretrained.libraries.modules.node import has_dropout

        return has_dropout(self)

    def check(self, inputs: Inputs) -> ShapeError | None:
        if (missing := self._lacks_library()) is not None:
            return missing
        try:
            return self.check_inputs(inputs)
        except LibraryError as problem:
            return ShapeError(str(problem), port=problem.port, field=problem.field, help=problem.hint)

    def _lacks_library(self) -> ShapeError | None:
        from importlib import import_module
        from importlib.util import find_spec

        if find_spec(self.library) is None:
            message = f"`{self.type}` needs the package {self.library}"
            return ShapeError(message, field="type", help=install(self.library))
        try:
            import_module(self.library)
        except Exception as problem:  # a broken installation may raise anything
            reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            message = f"the package {self.library} is installed but cannot be imported: {reason}"
            return ShapeError(message, field="type", help=f"`python -c 'import {self.library}'` shows the whole error")
        return None

    @abstractmethod
    def check_inputs(self, inputs: Inputs) -> ShapeError | None:
        """Return an error if the keys or inputs of the node do not fit the model, otherwise None. Raises LibraryError
        if the library cannot create the model. The check may import the library."""

    @abstractmethod
    def make(self, inputs: Inputs, *, draws: bool) -> nn.Module:
        """Create the library's own model on the CPU. `draws`: whether parameters get random initial values; if False,
        their values do not matter. Raises LibraryError."""

    @abstractmethod
    def call(
        self, module: nn.Module, forward: Callable[..., Any], values: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        """Call the model's own `forward` and return its output. `values`: the inputs in the order of `ports`, None for
        an input without a value."""

    @abstractmethod
    def save(self, model: nn.Module, inputs: Inputs, folder: str, classes: Sequence[str]) -> None:
        """Write a model that `make` returned to a folder, with the library's own code: config and safetensors.
        `classes`: the names of the classes, () if unknown."""

    @abstractmethod
    def load(self, folder: str, model: nn.Module) -> nn.Module:
        """Load a model that `save` wrote to a folder, with the library's own code, and return it. `model`: the model
        that was saved; its class loads the files."""

    def files(self, module: nn.Module) -> Files | None:
        """Return the tensors of published files with which the model starts, under the names of the model's parameters.
        Return None if all parameters start at random. Raises LibraryError."""
        return None

    def persistent(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        """Return {name: value} for the buffers whose values are in the model's files; {} if there are no files, or if
        they can no longer be read (the values then come from a checkpoint)."""
        from declarative_train.packs.pretrained.libraries.modules.node import bare

        module = bare(self, inputs)
        try:
            files = self.files(module)
        except LibraryError:
            return {}
        names = {name for name, _ in module.named_buffers()} if files is not None else set()
        return {} if files is None else {name: files.read(name, 0, None) for name in names if name in files.names}

    def unit_classes(self, module: nn.Module) -> frozenset[str]:
        """Return the names of the module classes that the library says must not be split over devices."""
        return frozenset()

    def find_units(self, module: nn.Module) -> tuple[str, ...]:
        from declarative_train.packs.pretrained.libraries.modules.node import units_in

        return units_in(module, self.unit_classes(module))

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.packs.pretrained.libraries.modules.node import build_node

        return build_node(self, inputs)

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return AsTheLibraryDoes(layer=self, inputs=inputs, parameter=parameter)

    def _count_elements(self, inputs: Inputs, matrices: Sequence[Weight]) -> tuple[list[int], int]:
        """Return (numbers, total): sum(numbers) / total is the share of the model's operations that this rank computes.

        numbers  elements of each of `matrices` on this rank; stacked experts count whole, because a rank with a part of
                 the experts computes them for the rows of all ranks
        total    elements of all matrices before they are divided"""
        from declarative_train.packs.pretrained.libraries.modules.node import bare

        shapes = {name: item.shape for name, item in bare(self, inputs).named_parameters(remove_duplicate=False)}
        own, whole = list[int](), 0
        for each in matrices:
            shape = shapes.get(each.name, each.shape)
            own.append(prod((shape[0], *each.shape[1:])) if len(shape) > 2 else prod(each.shape))
            whole += prod(shape)
        return own, max(1, whole)

    def products(self, use: Use) -> list[Product]:
        """Return the matrix products of a forward: one for all trained weights, and one for all frozen weights. A trace
        counts the operations of the whole model, which are divided in proportion to the elements of the weights. With a
        single weight, or if the trace fails, there is a product for each weight: the weight times the vectors of the
        input."""
        from declarative_train.packs.pretrained.libraries.modules.node import forward_flops

        sides = int(any(use.graded.values()) or use.is_inner_graded)
        matrices = use.matrices
        whole = forward_flops(self, use.inputs) if len(matrices) > 1 else None
        if whole is not None:
            own, elements = self._count_elements(use.inputs, matrices)
            whole = whole * sum(own) // elements  # fewer on a rank that has only a part of the weights
            of_trained = sum(count for count, each in zip(own, matrices, strict=True) if each.is_trained)
            trained = whole * of_trained // max(sum(own), 1)
            return [Product(trained, sides + 1), Product(whole - trained, sides)]
        first = next(iter(use.inputs.values()))
        vectors = prod(first.shape) // (first.shape[-1] if first.is_floating and first.shape else 1)
        return [Product(2 * prod(each.shape) * vectors, sides + each.is_trained) for each in matrices]


class AsTheLibraryDoes(Init):
    """Initialisation of a parameter in a library's model. Its value is the one in the model's files. If the files lack
    it, the library's code draws it."""

    of_layer: ClassVar[bool] = True

    type: Literal["as_the_library_does"] = "as_the_library_does"
    layer: Any
    inputs: Any
    parameter: str
    """Its name in that model."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        from declarative_train.packs.pretrained.libraries.modules.node import rows_of

        path = draws.name.removesuffix(f".{self.parameter}")
        count = len(tensor) if tensor.dim() else None
        tensor.copy_(rows_of(self.layer, self.inputs, _key(draws.seed, path), self.parameter, draws.first_row, count))

    def whole(self, seed: int, path: str) -> torch.Tensor:
        from declarative_train.packs.pretrained.libraries.modules.node import rows_of

        return rows_of(self.layer, self.inputs, _key(seed, path), self.parameter, 0, None)


def _key(seed: int, path: str) -> int:
    """Return a hash of `seed` and `path` with 63 bits, a valid seed for torch's generators."""
    return key_of(seed, path) >> 1
