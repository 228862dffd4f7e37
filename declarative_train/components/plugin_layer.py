"""What every plugin's layer is: fields found in the file's text, a module from its code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from declarative_train.components.component import Init, Layer
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from types import ModuleType

    import torch
    from torch import nn

FROM_EDGE: dict[str, int] = {"in_features": -1, "in_channels": 0, "input_size": -1, "input_dim": -1}
"""Arguments that are sizes of the first edge, and which: an index into the shape of a sample."""


class PluginLayer(Layer):
    """The subclasses are made by `components/plugins.py`. `may_import` False: the code may not run, so that shapes
    behind the layer are unknown."""

    plugin_path: ClassVar[str] = ""
    plugin_class: ClassVar[str] = ""
    may_import: ClassVar[bool] = False
    list_fields: ClassVar[frozenset[str]] = frozenset()
    computed_defaults: ClassVar[frozenset[str]] = frozenset()

    @property
    def is_random(self) -> bool:
        """Nobody can tell; seeding a step for nothing costs microseconds, not seeding it costs reproducibility."""
        return True

    def build(self, inputs: Mapping[str, TensorSpec]) -> nn.Module:
        """Imports the file. Raises whatever its code raises."""
        made: nn.Module = getattr(import_plugin(self.plugin_path), self.plugin_class)(**self._arguments(inputs))
        if any(True for _ in made.buffers()) and not hasattr(made, "reset_buffers"):
            made.reset_buffers = partial(_reset_buffers, made, self, dict(inputs))  # type: ignore[assignment]
        return made

    def init_of(self, parameter: str, inputs: Mapping[str, TensorSpec]) -> Init:
        """As the code starts it."""
        return _AsTheCodeDoes(layer=self, parameter=parameter, inputs=dict(inputs))

    def _arguments(self, inputs: Mapping[str, TensorSpec]) -> dict[str, object]:
        first = next(iter(inputs.values()), None)
        arguments: dict[str, object] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name == "type" or (name in self.computed_defaults and value is None):
                continue
            if name in FROM_EDGE and value is None:
                if first is None or not first.shape:
                    raise ValueError(
                        f"`{name}` of `{self.type}` cannot be taken from its input, a sample of which has no dimensions"
                    )
                value = first.shape[FROM_EDGE[name]]
            arguments[name] = list(value) if name in self.list_fields and isinstance(value, tuple) else value
        return arguments


class _AsTheCodeDoes(Init):
    """The start values that the plugin's constructor gives, drawn from the parameter's own seed."""

    type: Literal["as_the_code_does"] = "as_the_code_does"
    layer: Any
    parameter: str
    inputs: Any

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        import torch

        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(generator.initial_seed() & 0x7FFF_FFFF_FFFF_FFFF)
            made = self.layer.build(self.inputs)
        found = dict(made.named_parameters())
        if self.parameter not in found:
            raise LookupError(f"`{self.layer.type}` has no parameter {self.parameter}")
        tensor.copy_(found[self.parameter].detach())


def _reset_buffers(module: nn.Module, layer: PluginLayer, inputs: Mapping[str, TensorSpec]) -> None:
    """Write the buffers anew, after the module was built on the meta device."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        fresh = dict(layer.build(inputs).named_buffers())
        for name, buffer in module.named_buffers():
            buffer.copy_(fresh[name])


@lru_cache(maxsize=16)
def import_plugin(path: str) -> ModuleType:
    """Run a plugin's file as a module of its own. Raises whatever its code raises."""
    from importlib.util import module_from_spec, spec_from_file_location

    name = f"dtrain_plugin_{Path(path).stem}_{sha256(path.encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # its own classes look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
