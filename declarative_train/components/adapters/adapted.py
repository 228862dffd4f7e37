"""Layer with adapters (LoRA) on its linear maps. A graph treats it like any other layer.

In the plan, the data of such a layer have an additional key `adapters`: {path of a linear map in the layer's module:
its adapter}. The path is "" if the module itself is the linear map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from declarative_train.components.adapters import ADAPTERS
from declarative_train.components.adapters.adapter import Adapter
from declarative_train.components.component import Init, Layer, Port, ShapeError
from declarative_train.components.matrix_products import Product, Use, Weight
from declarative_train.core.cuts import CutKind, LayerCut

if TYPE_CHECKING:
    from torch import nn

    from declarative_train.core.tensor_spec import TensorSpec

KEY = "adapters"
ADDED = ".lora_"


class Adapted(Layer):
    """Layer `base` with adapters on its linear maps. It has the inputs, outputs and parameter names of `base`, and the
    parameters of the adapters as well."""

    base: Layer
    adapters: dict[str, Adapter]

    @classmethod
    def of(cls, base: Layer, adapters: Mapping[str, Adapter]) -> Adapted:
        return cls(type=base.type, base=base, adapters=dict(adapters))

    @classmethod
    def read(cls, base: Layer, data: Mapping[str, Mapping[str, object]]) -> Adapted:
        return cls.of(base, {path: ADAPTERS.read(each) for path, each in data.items()})

    def as_data(self, *, defaults: bool = True) -> dict[str, object]:
        adapters = {path: each.as_data(defaults=defaults) for path, each in self.adapters.items()}
        return self.base.as_data(defaults=defaults) | {KEY: adapters}

    @property
    def ports(self) -> tuple[Port, ...]:  # type: ignore[override]
        return self.base.ports

    @property
    def outputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.base.outputs

    @property
    def keeps_range(self) -> bool:  # type: ignore[override]
        return self.base.keeps_range

    @property
    def mixes_samples(self) -> bool:  # type: ignore[override]
        return self.base.mixes_samples

    @property
    def is_random(self) -> bool:
        return self.base.is_random or any(each.is_random for each in self.adapters.values())

    def check(self, inputs: Mapping[str, TensorSpec]) -> ShapeError | None:
        return self.base.check(inputs)

    def build(self, inputs: Mapping[str, TensorSpec]) -> nn.Module:
        module: Any = self.base.build(inputs)
        for path, adapter in self.adapters.items():
            if not path:
                return adapter.build(module)
            holder, _, name = path.rpartition(".")
            setattr(module.get_submodule(holder), name, adapter.build(module.get_submodule(path)))
        return module  # type: ignore[no-any-return]

    def init_of(self, parameter: str, inputs: Mapping[str, TensorSpec]) -> Init:
        path, own = split_name(parameter)
        return self.base.init_of(parameter, inputs) if own is None else self.adapters[path].init_of(own)

    def cut(self, kind: CutKind, inputs: Mapping[str, TensorSpec], size: int) -> LayerCut | str | None:
        cut = self.base.cut(kind, inputs, size)
        if not isinstance(cut, LayerCut) or kind == "positions":
            return cut
        if kind == "tokens":  # ranks would draw the same random numbers for different tokens
            return None if self.is_random else cut
        parameters, summed = dict(cut.parameters), [*cut.summed]
        for path, adapter in self.adapters.items():
            prefix = f"{path}." if path else ""
            weight = cut.parameters.get(f"{prefix}weight")
            own = LayerCut(kind, {}) if weight is None else adapter.cut(weight)
            if isinstance(own, str):
                return own
            parameters |= {f"{prefix}{name}": each for name, each in own.parameters.items()}
            summed += [f"{prefix}{name}" for name in own.summed]
        return replace(cut, parameters=parameters, summed=tuple(summed))

    def split(self, inputs: Mapping[str, TensorSpec]) -> str:
        return "it has adapters"

    def products(self, use: Use) -> Iterable[Product]:
        """Yield the matrix products of the layer `base`, then two for each adapter: one with each of its matrices."""
        own = [each for each in use.weights if is_added(each.name)]
        others = tuple(each for each in use.weights if not is_added(each.name))
        trains = Weight("adapters", (1,), bool(own))  # stands for the adapters: intermediate results need a gradient
        yield from self.base.products(use._replace(weights=(*others, trains)))
        for path in self.adapters:
            name = f"{path}.weight" if path else "weight"
            weight = next(each for each in others if each.name == name)
            first = next(iter(self.base.products(use._replace(weights=(weight, trains)))))
            vectors, sides = first.flops // (2 * prod(weight.shape)), first.num_graded - weight.is_trained
            mine = (each for each in own if split_name(each.name)[0] == path)
            down, up = (each for each in mine if len(each.shape) == 2)
            yield Product(2 * vectors * prod(down.shape), sides + down.is_trained)
            yield Product(2 * vectors * prod(up.shape), int(sides + down.is_trained > 0) + up.is_trained)


def is_added(name: str) -> bool:
    """Return whether the parameter `name` belongs to an adapter. `name`: its name in a layer or in the model."""
    return ADDED in f".{name}"


def split_name(name: str) -> tuple[str, str | None]:
    """Return (path of the linear map, name within its adapter) if `name` belongs to a parameter of an adapter. Return
    (`name`, None) for other parameters. `name`: name of the parameter in the layer or model."""
    at = f".{name}".find(ADDED)
    return (name, None) if at < 0 else (name[: max(at - 1, 0)], name[at:])


def with_added(
    parameters: Mapping[str, tuple[int, ...]], adapters: Mapping[str, Adapter], maps: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} for all parameters of a layer with adapters, in the order of its module. The parameters of
    an adapter come after those of its linear map. `parameters`: shapes of the layer's own parameters. `adapters`: {path
    of an adapted linear map: its adapter}. `maps`: {path of a linear map: (out, in)}."""
    found: dict[str, tuple[int, ...]] = {}
    names = list(parameters)
    for at, name in enumerate(names):
        found[name] = parameters[name]
        path = name.rpartition(".")[0]
        is_last = at + 1 == len(names) or names[at + 1].rpartition(".")[0] != path
        if path in adapters and is_last:
            added = adapters[path].shapes(maps[path])
            found |= {f"{path}.{own}" if path else own: shape for own, shape in added.items()}
    return found
