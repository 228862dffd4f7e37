"""Low-rank adaptation (LoRA), which adds the product of two thin matrices to a frozen weight, and DoRA, which also
trains the length of each row."""

from __future__ import annotations

from itertools import accumulate
from math import sqrt
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from declarative_train.components.adapters.adapter import Adapter
from declarative_train.components.component import Init
from declarative_train.components.layers.default_inits import linear_weight, start
from declarative_train.core.cuts import LayerCut, ParameterCut
from declarative_train.packs.pretrained.adapters import MAGNITUDE, A, B

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from declarative_train.core.diagnostics.diagnostic import Diagnostic
    from declarative_train.core.span import Span
    from declarative_train.graph.lower import Lowered
    from declarative_train.plan.plan import WeightsPlan
    from declarative_train.recipe.model.tree import Scope
    from declarative_train.recipe.recipe import Recipe

FROM = "from"


class LowRank(Adapter):
    """Base class of low-rank adapters: two thin matrices, `lora_A.weight` (rank, in) and `lora_B.weight` (out, rank).

    A linear map such as `qkv` can join several maps that PEFT adapted separately (q, k and v). With `from`, it then has
    the adapters of all of them: A of shape (number of maps * rank, in), and B with the rows of all maps. `split` has
    the range of rows of each map."""

    internal: ClassVar[frozenset[str]] = frozenset({"split"})

    rank: int = Field(default=8, ge=1)
    """Rows of A and columns of B."""
    alpha: float = Field(default=8.0, gt=0, allow_inf_nan=False)
    """The scaling is alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability that an element of the input of A is dropped in training."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank), so that large ranks learn as well. Kalajdzievski, 2023."""
    folder: Annotated[str, Field(min_length=1)] | None = Field(default=None, alias=FROM)
    """A folder of PEFT: it gives `rank`, `alpha`, `rslora` and the start values. Of the linear maps that the selector
    matches, those that it names are adapted."""
    split: tuple[tuple[int, int], ...] | None = None
    """Row ranges (first, end) of a joined map (`qkv`), each with an A of its own. Set by `from`."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        both = {"rank", "alpha", "rslora", "split"} & self.model_fields_set
        if self.folder is not None and both:
            raise ValueError(f"`{sorted(both)[0]}` is set, but `from` already defines it")
        ends = [0, *(row for rows in self.split or () for row in rows)]
        if ends != sorted(ends) or any(first == last for first, last in self.split or ()):
            raise ValueError("`split` is ranges of rows in order: [[0, 64], [96, 128]]")
        return self

    def as_data(self, *, defaults: bool = True) -> dict[str, object]:
        """Return the keys of the adapter as data, without `from` and `split` if they are not set. With `from`, also
        leave out the keys whose values are read from that folder. `defaults`: as in `Component.as_data`."""
        data = super().as_data(defaults=defaults)
        given = ("rank", "alpha", "rslora", "split") if self.folder is not None else ()
        absent = [key for key in (FROM, "split") if data.get(key) is None]
        return {key: value for key, value in data.items() if key not in given and key not in absent}

    @property
    def made_from(self) -> str | None:
        return self.folder

    def with_folder(self, folder: str) -> LowRank:
        from declarative_train.packs.pretrained.adapters.peft_folder import peft_folder

        peft_folder(folder)
        return self.model_copy(update={"folder": folder})

    def read_for(self, scope: Scope, path: str, rows: int) -> LowRank | None:
        from declarative_train.packs.pretrained.adapters.peft_folder import peft_folder
        from declarative_train.packs.pretrained.published_names import PublishedNames

        found = peft_folder(str(self.folder))
        return found.adapter_of(PublishedNames(scope).slices(found, path, rows), self.type, type(self), self.dropout)

    def plan_weights(self, recipe: Recipe, lowered: Lowered, span: Span) -> tuple[WeightsPlan, list[Diagnostic]]:
        from declarative_train.packs.pretrained.adapters.peft_weights import plan_folder

        return plan_folder(str(self.folder), recipe, lowered, span)

    @property
    def is_random(self) -> bool:
        return self.dropout > 0

    @property
    def has_magnitude(self) -> bool:
        return False

    @property
    def scaling(self) -> float:
        return self.alpha / (sqrt(self.rank) if self.rslora else self.rank)

    def shapes(self, weight: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        return {A: (self.rank * len(self.split or "1"), weight[1]), B: (self.num_rows(weight[0]), self.rank)}

    def num_rows(self, rows: int) -> int:
        """Return the number of rows that the adapter changes, in a weight with `rows` rows."""
        return rows if self.split is None else sum(last - first for first, last in self.split)

    def init_of(self, parameter: str) -> Init:
        return linear_weight() if parameter == A else start("zeros")

    def cut(self, weight: ParameterCut) -> LayerCut | str:
        """Return how the ranks of the axis `tensor` divide the adapter, or as text why they cannot. `weight`: how they
        divide the adapted weight. If they divide its columns, they divide those of A; if its rows, those of B. The
        other matrix is whole on each rank, and its gradient is summed over the ranks."""
        if weight.dim == 1:
            return LayerCut("rows", {A: ParameterCut(1, weight.pieces)}, (B, MAGNITUDE) if self.has_magnitude else (B,))
        ends = [*accumulate(weight.pieces, initial=0)]
        parts = self.split or ((0, ends[-1]),)
        if not {row for rows in parts for row in rows} <= {*ends}:
            return "its adapter changes other rows than those of its projections"
        pieces = (weight.pieces[ends.index(first) : ends.index(last)] for first, last in parts)
        cut = ParameterCut(0, tuple(size for part in pieces for size in part))
        return LayerCut("columns", {B: cut, MAGNITUDE: cut} if self.has_magnitude else {B: cut}, (A,))

    def build(self, base: nn.Linear) -> nn.Module:
        from declarative_train.packs.pretrained.adapters.modules.lora import LoraLinear

        return LoraLinear(base, self)

    def merge(self, weight: torch.Tensor, own: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.add_product(weight, own[A], own[B])

    def add_product(self, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the weight plus the scaled product of the matrices `a` and `b`."""
        if self.split is None:
            return weight + b @ a * self.scaling
        changed, first_b = weight.clone(), 0
        for at, (first, last) in enumerate(self.split):
            rows = b[first_b : first_b + last - first]
            changed[first:last] += rows @ a[at * self.rank : (at + 1) * self.rank] * self.scaling
            first_b += last - first
        return changed


class Lora(LowRank):
    """Trains `scaling * B A`, added to a linear map's frozen weight: `lora_A.weight` (rank, in), `lora_B.weight` (out,
    rank).

    A starts as in PEFT, B at zero, so that the first step uses the base alone. Hu et al., LoRA, 2021.
    """

    type: Literal["lora"] = "lora"


class Dora(LowRank):
    """Trains the length and the direction of a weight's rows separately. Each row of `W + scaling * B A` is divided by
    its length, and multiplied by a trained length.

    In addition to `lora_A.weight` and `lora_B.weight` it has `lora_magnitude_vector` (out,), the trained lengths. They
    start as the lengths of the rows. No gradient flows through the divisor, as the paper advises. Liu et al., DoRA,
    2024.
    """

    type: Literal["dora"] = "dora"

    @property
    def has_magnitude(self) -> bool:
        return True

    def shapes(self, weight: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        return super().shapes(weight) | {MAGNITUDE: (self.num_rows(weight[0]),)}

    def init_of(self, parameter: str) -> Init:
        return start("ones") if parameter == MAGNITUDE else super().init_of(parameter)

    def merge(self, weight: torch.Tensor, own: Mapping[str, torch.Tensor]) -> torch.Tensor:
        from declarative_train.packs.pretrained.adapters.modules.lora import row_factors

        summed = self.add_product(weight, own[A], own[B])
        return summed * row_factors(summed.norm(dim=1), own[MAGNITUDE], self.split).unsqueeze(1)
