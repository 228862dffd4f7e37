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
        """Folder of a saved adapter, from which settings and start values are read. None if the recipe itself has the
        settings; then `with_folder`, `read_for` and `plan_weights` are not called."""
        return None

    def with_folder(self, folder: str) -> Adapter:
        """Return a copy of the adapter whose `made_from`, the folder of the saved adapter, is the absolute path
        `folder`. Raises PublishedError if the folder cannot be read."""
        raise NotImplementedError

    def read_for(self, scope: Any, path: str, rows: int) -> Adapter | None:
        """Return a copy of the adapter for one linear map, with the settings that the saved adapter (folder
        `made_from`) has for it. Return None if the saved adapter does not change this map. `path`: path of the linear
        map in the model. `rows`: its number of outputs. `scope`: the model, a `Scope`. Raises PublishedError."""
        raise NotImplementedError

    def plan_weights(self, recipe: Any, lowered: Any, span: Span) -> tuple[Any, list[Diagnostic]]:
        """Return (plan, diagnostics) for a saved adapter, whose folder is the property `made_from`. `plan`: a
        `WeightsPlan`, by which a run loads the saved tensors. `diagnostics`: one for each tensor that does not fit the
        model.

        `recipe`: a `Recipe`. `lowered`: the recipe after lowering, a `Lowered`. `span`: position of the diagnostics."""
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
        """Return the init (rule for start values) of the adapter's parameter with the name `parameter`."""

    @abstractmethod
    def cut(self, weight: ParameterCut) -> LayerCut | str:
        """Return how the adapter's parameters are divided over the ranks of the `tensor` axis, or the reason why they
        cannot be. `weight`: division of the frozen weight. If the division also changes the computation, the module has
        a method `divide(kind, ranks)` (`modules/divided_linear.py`)."""

    @abstractmethod
    def build(self, base: nn.Linear) -> nn.Module:
        """Return a module that replaces `base`. It has the `weight` and `bias` of `base`, and the adapter's parameters.

        The module can have a method `start_from_weights(path, given)`, which computes start values from the weights.
        dtrain calls it after all other parameters have their start values. `path`: path of the module in the model.
        `given`: full names of the adapter's parameters that already have values."""

    @abstractmethod
    def merge(self, weight: torch.Tensor, own: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return one weight that replaces the frozen weight and the adapter: a plain linear map with it gives the same
        results. `weight`: the frozen weight. `own`: the adapter's parameters by name."""
