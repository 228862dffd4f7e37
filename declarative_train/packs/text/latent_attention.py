"""Latent attention (layer `latent_attention`): keys and values are computed from a small vector for each position."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Port, ShapeError
from declarative_train.components.layers.attention import Rotary, angles_of
from declarative_train.components.layers.default_inits import linear_weight, start
from declarative_train.components.layers.shape_checks import (
    Inputs,
    dtype_of,
    needs_dimensions,
    needs_parameter_dtype,
    needs_positions,
)
from declarative_train.components.matrix_products import Product, Use
from declarative_train.core.amounts import format_count
from declarative_train.core.cuts import CutKind, LayerCut, ParameterCut

if TYPE_CHECKING:
    from torch import nn

_BEFORE_HEADS = ("query_down", "query_norm", "latent", "latent_norm")


class LatentAttention(Layer):
    """Causal attention of a sequence to itself: (B, ..., T, D) to (B, ..., T, D), each sequence separately. For each
    position, the keys and values of all heads are linear maps of one vector of `kv_rank` elements. Only the rotary part
    of a key is computed from the input itself; it is the same for all heads. Liu et al., DeepSeek-V2, 2024.

    `segments` and `positions` are as in `self_attention`. Parameters `query_down.*`, `query_norm.weight` and
    `query_up.weight` (without `query_rank` only `query.weight`), `latent.*`, `latent_norm.weight`, `key_value.weight`
    and `out.*`.
    """

    ports: ClassVar[tuple[Port, ...]] = (
        Port("x"),
        Port("segments", optional=True),
        Port("positions", optional=True),
    )

    type: Literal["latent_attention"] = "latent_attention"
    heads: int = Field(ge=1)
    """Number of heads."""
    query_rank: int | None = Field(default=None, ge=1)
    """Elements of the vector that the queries are made from; by default they are made from the input."""
    kv_rank: int = Field(ge=1)
    """Elements of the vector that the keys and values are made from."""
    plain_width: int = Field(ge=1)
    """Elements of a query and key of a head without rotary positions."""
    rotary_width: int = Field(ge=2)
    """Elements of a query and key with rotary positions, in addition; even."""
    value_width: int = Field(ge=1)
    """Elements of a value of a head."""
    rotary: Rotary = Rotary()
    """Rotary positions, `{base: 10000}`."""
    interleaved: bool = True
    """A rotary pair is two neighbours; false: an element of the first half with that of the second half."""
    bias: bool = False
    """Biases of `query_down`, `latent` and `out`."""
    norm_eps: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    """Added to the mean square in the norms of the two vectors."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return (
            needs_dimensions(self, inputs, "(B, ..., T, D)", 2)
            or needs_parameter_dtype(self, inputs, "x")
            or self._check_rotary()
            or needs_positions(self, inputs, "segments")
            or needs_positions(self, inputs)
        )

    def _check_rotary(self) -> ShapeError | None:
        if self.rotary.scaling is not None and (why := self.rotary.scaling.problem()):
            return ShapeError(why, field="rotary")
        if self.rotary_width % 2:
            message = f"rotary positions turn pairs, a `rotary_width` of {self.rotary_width} is odd"
            return ShapeError(message, field="rotary_width", help="give an even number")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.packs.text.modules.latent_attention import LatentAttentionModule, LatentHeads

        rotary = angles_of(self.rotary)
        assert rotary is not None
        heads = LatentHeads(
            self.heads,
            self.query_rank,
            self.kv_rank,
            self.plain_width,
            self.rotary_width,
            self.value_width,
            rotary,
            self.interleaved,
            self.bias,
            self.norm_eps,
        )
        x, places = inputs["x"], inputs.get("positions")
        num_positions = 0 if places is None else places.num_values or 0
        return LatentAttentionModule(x.shape[-1], heads, dtype_of(x), num_positions)

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter.endswith("_norm.weight"):
            return start("ones")
        if parameter.endswith(".bias"):
            return start("zeros")
        return linear_weight() if parameter.endswith(".weight") else super().init_of(parameter, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        if kind == "positions":
            return "its ranks would have to gather the vectors of all positions, which is not supported"
        if kind != "heads":
            return None
        if self.heads % size:
            return f"its {format_count(self.heads, 'head')} cannot be divided evenly over {size} ranks"
        rows, value = self.heads * (self.plain_width + self.rotary_width), self.heads * self.value_width
        cuts = {
            f"{'query' if self.query_rank is None else 'query_up'}.weight": ParameterCut(0, (rows,)),
            "key_value.weight": ParameterCut(0, (self.heads * self.plain_width + value,)),
            "out.weight": ParameterCut(1, (value,)),
        }
        biases = {"query_down": self.bias, "latent": self.bias}
        names = _BEFORE_HEADS if self.query_rank is not None else _BEFORE_HEADS[2:]
        words = [(name, word) for name in names for word in ("weight", "bias") if word == "weight" or biases.get(name)]
        return LayerCut("heads", cuts, tuple(f"{name}.{word}" for name, word in words))

    def products(self, use: Use) -> Iterable[Product]:
        """Yield the matrix products of a forward: the projections, queries times keys, and attention weights times
        values."""
        *leading, T, _ = use.inputs["x"].shape
        sequences, inner = prod(leading), use.is_inner_graded
        for each in use.matrices:
            name = each.name.partition(".")[0]
            side = use.graded["x"] if name in ("query", "query_down", "latent") else inner
            yield Product(2 * prod(each.shape) * sequences * T, side + each.is_trained)
            if name == "out":
                heads = each.shape[1] // self.value_width
                for width in (self.plain_width + self.rotary_width, self.value_width):
                    yield Product(2 * sequences * T * T * heads * width, 2 * inner)
