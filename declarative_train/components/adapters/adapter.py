"""Interface of adapters: parameters trained in addition to a frozen weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from declarative_train.components.component import Component, Init
from declarative_train.core.cuts import LayerCut, ParameterCut

if TYPE_CHECKING:
    import torch
    from torch import nn

    from declarative_train.core.diagnostics.diagnostic import Diagnostic
    from declarative_train.core.span import Span


class Adapter(Component, ABC):
    """Trained parameters that are added to the frozen weight (out, in) of a linear map."""

    @property
    def made_from(self) -> str | None:
        """Folder that defines the adapter and holds its start values; None if there is none. With a folder, the three
        methods below are called."""
        return None

    def with_folder(self, folder: str) -> Adapter:
        """Return the same adapter with the absolute path of its folder. Raises PublishedError if it cannot be read."""
        raise NotImplementedError

    def read_for(self, scope: Any, path: str, rows: int) -> Adapter | None:
        """Return the adapter that the folder has for a linear map of a model (`Scope`); None if it has none. Raises
        PublishedError."""
        raise NotImplementedError

    def plan_weights(self, recipe: Any, lowered: Any, span: Span) -> tuple[Any, list[Diagnostic]]:
        """Return the `WeightsPlan` of the tensors in the folder, and what does not fit."""
        raise NotImplementedError

    @property
    def is_random(self) -> bool:
        """True if it draws random numbers in training."""
        return False

    @abstractmethod
    def shapes(self, weight: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its parameters, by the names that they get in the adapted map: PEFT's, which begin with
        `lora_`."""

    @abstractmethod
    def init_of(self, parameter: str) -> Init:
        """Return how the parameter of this name starts."""

    @abstractmethod
    def cut(self, weight: ParameterCut) -> LayerCut | str:
        """Return how the ranks of the `tensor` axis divide its parameters if they divide the weight so; a reason if
        they cannot. Its module has a method `divide(kind, ranks)` (`modules/divided_linear.py`)."""

    @abstractmethod
    def build(self, base: nn.Linear) -> nn.Module:
        """Return the module that replaces `base`: its `weight` and `bias` are those of `base`, the adapter's parameters
        are added. If it has a method `start_from_weights(path, given)`, that is called when all other parameters have
        their start values, except those of `given` (names in the model)."""

    @abstractmethod
    def merge(self, weight: torch.Tensor, own: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weight with which a map without an adapter gives the same; `own` are the adapter's parameters."""
