"""Module that calls a function of the expression language."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from declarative_train.components.expressions.lower import target_of


class FunctionModule(nn.Module):
    """Module that applies a function of expressions to its inputs."""

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        super().__init__()
        self.name, self.function, self.options = name, target_of(name), dict(options)

    def forward(self, *tensors: Tensor) -> Tensor:
        found: Tensor = self.function(*tensors, **self.options)
        return found

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])
