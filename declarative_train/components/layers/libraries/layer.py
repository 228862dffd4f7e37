"""A model of another library as a layer: fields -> a module under the library's own names, with its start values.

The module is made once per process with parameters on meta and real buffers (`modules/node.py`): what the library
computes while it makes it, such as the frequencies of rotary positions, is not lost. Parameters start as its own code
starts them, under a generator keyed by (seed, path), or as its files say, of which a rank reads its rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from declarative_train.components.component import Init, Layer, Misfit
from declarative_train.components.counter_rng import key_of
from declarative_train.components.layers.libraries.problem import LibraryError
from declarative_train.components.layers.sample_groups import Over
from declarative_train.components.products import Product, Use
from declarative_train.core.machine import install

if TYPE_CHECKING:
    import torch
    from torch import nn

    from declarative_train.components.inits.draws import Draws
    from declarative_train.components.layers.libraries.files import Files
    from declarative_train.core.tensor_spec import TensorSpec

Inputs = Mapping[str, "TensorSpec"]


class LibraryLayer(Layer):
    """`library`: the package, and our extra of the same name."""

    library: ClassVar[str]

    over: Over = "microbatch"
    """Of the batch normalisations in it: `N samples`, or `microbatch`, as of the layer `batch_norm`."""

    @property
    def mixes_samples(self) -> bool:  # type: ignore[override]
        """It has batch normalisations. Asked when `check` found nothing."""
        from declarative_train.components.layers.libraries.modules.node import has_batch_norms

        return has_batch_norms(self)

    @property
    def is_random(self) -> bool:
        """It has a dropout above 0."""
        from declarative_train.components.layers.libraries.modules.node import has_dropout

        return has_dropout(self)

    def check(self, inputs: Inputs) -> Misfit | None:
        if (missing := self._lacks_library()) is not None:
            return missing
        try:
            return self.misfit(inputs)
        except LibraryError as problem:
            return Misfit(str(problem), port=problem.port, field=problem.field, help=problem.hint)

    def _lacks_library(self) -> Misfit | None:
        from importlib import import_module
        from importlib.util import find_spec

        if find_spec(self.library) is None:
            message = f"`{self.type}` needs the package {self.library}"
            return Misfit(message, field="type", help=install(self.library))
        try:
            import_module(self.library)
        except Exception as problem:  # whatever a broken installation raises
            said = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            message = f"the package {self.library} is here and cannot be imported: {said}"
            return Misfit(message, field="type", help=f"`python -c 'import {self.library}'` shows all of it")
        return None

    @abstractmethod
    def misfit(self, inputs: Inputs) -> Misfit | None:
        """What is wrong with fields or inputs, once the library is there. Raises LibraryError, too."""

    @abstractmethod
    def make(self, inputs: Inputs, *, draws: bool) -> nn.Module:
        """The library's own model on the CPU; with `draws` False the values of its parameters do not matter. Raises
        LibraryError."""

    @abstractmethod
    def call(
        self, module: nn.Module, forward: Callable[..., Any], values: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        """The model's own `forward` on the values of `ports`, in their order."""

    @abstractmethod
    def save(self, model: nn.Module, inputs: Inputs, folder: str, classes: Sequence[str]) -> None:
        """`model`, one of `made`, in a folder as the library writes it: config and safetensors. `classes`: the names of
        its scores; () where nothing is known of them."""

    @abstractmethod
    def loaded(self, folder: str, model: nn.Module) -> nn.Module:
        """What the library reads of a folder that `save` has written `model` to."""

    def files(self, module: nn.Module) -> Files | None:
        """The published tensors that it starts from, by the names of its parameters; None where it starts at random.
        Raises LibraryError."""
        return None

    def persistent(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        """The saved buffers that its files have, by name; none where the files are gone: then a checkpoint brings
        them."""
        from declarative_train.components.layers.libraries.modules.node import bare

        module = bare(self, inputs)
        try:
            files = self.files(module)
        except LibraryError:
            return {}
        names = {name for name, _ in module.named_buffers()} if files is not None else set()
        return {} if files is None else {name: files.read(name, 0, None) for name in names if name in files.names}

    def unit_classes(self, module: nn.Module) -> frozenset[str]:
        """The names of classes that the library says not to split, as far as it says so."""
        return frozenset()

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.libraries.modules.node import built

        return built(self, inputs)

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return AsTheLibraryDoes(layer=self, inputs=inputs, parameter=parameter)

    def products(self, use: Use) -> list[Product]:
        """What torch's own counter finds in a forward without values; shared out over what is trained and what is not
        as the elements of the weights are. Of single weights, and where there is no such forward, each is taken to meet
        every vector of the first input once."""
        from declarative_train.components.layers.libraries.modules.node import forward_flops

        sides = int(any(use.graded.values()) or use.is_inner_graded)
        matrices = use.matrices
        whole = forward_flops(self, use.inputs) if len(matrices) > 1 else None
        if whole is not None:
            elements = sum(prod(each.shape) for each in matrices)
            trained = whole * sum(prod(each.shape) for each in matrices if each.is_trained) // max(elements, 1)
            return [Product(trained, sides + 1), Product(whole - trained, sides)]
        first = next(iter(use.inputs.values()))
        vectors = prod(first.shape) // (first.shape[-1] if first.is_floating and first.shape else 1)
        return [Product(2 * prod(each.shape) * vectors, sides + each.is_trained) for each in matrices]


class AsTheLibraryDoes(Init):
    """What the library's code, or its file, gives for a parameter of its model."""

    type: Literal["as_the_library_does"] = "as_the_library_does"
    layer: Any
    inputs: Any
    parameter: str
    """Its name in that model."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        from declarative_train.components.layers.libraries.modules.start import rows_of

        path = draws.name.removesuffix(f".{self.parameter}")
        count = len(tensor) if tensor.dim() else None
        tensor.copy_(rows_of(self.layer, self.inputs, _key(draws.seed, path), self.parameter, draws.first_row, count))

    def whole(self, seed: int, path: str) -> torch.Tensor:
        """Of the node at `path`, in a run of this seed."""
        from declarative_train.components.layers.libraries.modules.start import rows_of

        return rows_of(self.layer, self.inputs, _key(seed, path), self.parameter, 0, None)


def _key(seed: int, path: str) -> int:
    """63 bits, as torch's generator takes them."""
    return key_of(seed, path) >> 1
