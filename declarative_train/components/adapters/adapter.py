"""Interface of adapters, which add trained parameters to a frozen weight."""

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
    """Adapter: trained parameters that are added to the frozen weight (out, in) of a linear map."""

    @property
    def made_from(self) -> str | None:
        """Folder of a saved adapter, with its settings and start values. None if the recipe defines the adapter; then
        `with_folder`, `read_for` and `plan_weights` are not called."""
        return None

    def with_folder(self, folder: str) -> Adapter:
        """Return a copy of the adapter that reads the saved adapter in `folder`, an absolute path (`made_from`). Raises
        PublishedError if the folder cannot be read."""
        raise NotImplementedError

    def read_for(self, scope: Any, path: str, rows: int) -> Adapter | None:
        """Return the adapter that the folder `made_from` has for the linear map at `path` of the model, or None if it
        has none for this map. `scope`: the model, a `Scope`. `rows`: number of outputs of the linear map. Raises
        PublishedError."""
        raise NotImplementedError

    def plan_weights(self, recipe: Any, lowered: Any, span: Span) -> tuple[Any, list[Diagnostic]]:
        """Return the `WeightsPlan` that loads the tensors in the folder `made_from`, and a diagnostic for each tensor
        that does not fit. `recipe`: a `Recipe`. `lowered`: its `Lowered`. `span`: position of the diagnostics."""
        raise NotImplementedError

    @property
    def is_random(self) -> bool:
        """True if the adapter draws random numbers in training (dropout)."""
        return False

    @abstractmethod
    def shapes(self, weight: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the adapter's parameters for a weight (out, in) by name. The names are those of PEFT,
        which begin with `lora_`."""

    @abstractmethod
    def init_of(self, parameter: str) -> Init:
        """Return the init of the adapter's parameter of this name."""

    @abstractmethod
    def cut(self, weight: ParameterCut) -> LayerCut | str:
        """Return how the ranks of the `tensor` axis divide the adapter's parameters, or a text with the reason why they
        cannot. `weight`: how the ranks divide the frozen weight. If the ranks must also compute differently, the module
        has a method `divide(kind, ranks)` (`modules/divided_linear.py`)."""

    @abstractmethod
    def build(self, base: nn.Linear) -> nn.Module:
        """Return a module that replaces `base`. It has the `weight` and `bias` of `base` and the adapter's parameters.

        If the module has a method `start_from_weights(path, given)`, dtrain calls it after all other parameters got
        their start values. `path`: path of the module in the model. `given`: names in the model of those parameters of
        the adapter that already have values."""

    @abstractmethod
    def merge(self, weight: torch.Tensor, own: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return a weight with which a plain linear map gives the results of the adapted one. `weight`: the frozen
        weight. `own`: the adapter's parameters by name."""
