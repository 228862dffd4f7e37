"""Mixture of experts: feed-forward networks (experts) of which each position uses a few."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, Port, ShapeError
from declarative_train.components.layers.default_inits import linear_weight, start
from declarative_train.components.layers.shape_checks import (
    Inputs,
    divisors,
    dtype_of,
    needs_dimensions,
    needs_parameter_dtype,
)
from declarative_train.components.matrix_products import Product, Use
from declarative_train.core.amounts import format_count
from declarative_train.core.cuts import CutKind, LayerCut, ParameterCut
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from torch import nn


_INNER = ("experts.gate", "experts.up")  # their rows are hidden features


class Moe(Layer):
    """Mixture of experts: (B, ..., D) to (B, ..., D). A router chooses `top_k` of the experts for each position and
    gives each a weight; the weighted outputs are added. No position is dropped.

    An expert is a small network, `down(activation(gate(x)) * up(x))`; with `activation: clipped_silu`, another formula
    (see this key). A shared expert is an ordinary feed-forward network whose output is added.

    The output `balance` (B,) is the balance loss of each sample. For each expert, take the share of the choices that
    it got, times its mean score; the loss is the sum of these products, times the number of experts. It is 1 if all
    experts are used equally; a loss `mean` with a small `weight` reads it. The balance loss of a sample depends on no
    other sample, so every layout computes the same gradients. `mask` (B, ...) is true for positions that count in the
    balance loss. The input `balance` is the balance loss of earlier layers, to which that of this layer is added.

    Parameters `router.weight` (experts, D), `experts.gate` and `experts.up` (experts * hidden, D), `experts.down`
    (experts * D, hidden): the matrices of all experts, stacked by rows; with `bias` also `router.bias` and
    `experts.gate_bias`, `up_bias`, `down_bias`. Shazeer et al., Outrageously large neural networks, 2017; Liu et al.,
    DeepSeek-V3, 2024."""

    ports: ClassVar[tuple[Port, ...]] = (Port("x"), Port("mask", optional=True), Port("balance", optional=True))
    outputs: ClassVar[tuple[str, ...]] = ("output", "balance")

    type: Literal["moe"] = "moe"
    experts: int = Field(ge=2)
    """Number of experts."""
    top_k: int = Field(ge=1)
    """Number of experts that each position uses."""
    hidden: int = Field(ge=1)
    """Width inside an expert."""
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "clipped_silu"] = "silu"
    """Activation of the gate; `gelu_tanh` is GPT-2's formula. With `clipped_silu`, as in gpt-oss, an expert is
    `down(g * sigmoid(1.702 g) * (u + 1))`: g is `gate(x)`, at most `limit`, and u is `up(x)`, between `-limit` and
    `limit`."""
    limit: float = Field(default=7.0, gt=0, allow_inf_nan=False)
    """Limit of `clipped_silu`."""
    bias: bool = False
    """Biases of the router and of the experts."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """Function of the router's outputs: `softmax` over all experts, or `sigmoid` of each, as in DeepSeek-V3."""
    normalize: bool = True
    """Divide the weights of a position's experts by their sum."""
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Factor on the weights of the experts."""
    groups: int | None = Field(default=None, ge=1)
    """Number of equal groups of experts. A position uses experts of only `top_groups` groups: those with the largest
    sum of their two best scores.
    """
    top_groups: int | None = Field(default=None, ge=1)
    """Number of groups that a position uses."""
    bias_rate: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Balance the experts by a bias per expert, which is added to its score only to choose experts. After every step,
    the bias grows by this number if fewer positions of the global batch chose the expert than the mean over the
    experts, and shrinks by it if more did; 0 keeps it. Wang et al., Auxiliary-loss-free load balancing, 2024;
    DeepSeek-V3 uses 0.001.
    """

    def check(self, inputs: Inputs) -> ShapeError | None:
        return (
            needs_dimensions(self, inputs, "(B, ..., D)", 1)
            or needs_parameter_dtype(self, inputs, "x")
            or self._check_choice()
            or _check_other(self, inputs, "mask", TensorSpec(inputs["x"].shape[:-1], "bool"))
            or _check_other(self, inputs, "balance", TensorSpec((), inputs["x"].dtype))
        )

    def _check_choice(self) -> ShapeError | None:
        groups, used = self.groups or 1, self.top_groups or 1
        if (self.groups is None) != (self.top_groups is None):
            lacking = "groups" if self.groups is None else "top_groups"
            return ShapeError(f"`groups` and `top_groups` belong together, `{lacking}` is missing", field="top_groups")
        if self.experts % groups or self.experts // groups < 2 <= groups:
            message = f"{self.experts} experts do not divide into {groups} groups of two or more"
            return ShapeError(message, field="groups", help=f"set `groups` to one of {divisors(self.experts // 2)}")
        if used > groups:
            return ShapeError(f"a position uses {used} of {groups} groups", field="top_groups")
        known = self.experts // groups * used
        if self.top_k > known:
            message = f"a position uses {self.top_k} experts, and can choose from {known}"
            return ShapeError(message, field="top_k", help=f"set `top_k` to {known} or less")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.moe import ExpertKind, MoeModule, Routing

        routing = Routing(
            self.experts,
            self.top_k,
            self.scores == "sigmoid",
            self.normalize,
            self.scale,
            self.groups or 1,
            self.top_groups or 1,
            self.bias_rate,
        )
        kind = ExpertKind(self.hidden, self.activation, self.bias, self.limit)
        return MoeModule(inputs["x"].shape[-1], kind, routing, dtype_of(inputs["x"]))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter in ("router.weight", "experts.gate", "experts.up", "experts.down"):
            return linear_weight()
        return start("zeros") if parameter.endswith("bias") else super().init_of(parameter, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        if kind == "hidden":
            if self.hidden % size:
                what = format_count(self.hidden, "hidden feature")
                return f"the {what} of an expert cannot be divided evenly over {size} ranks"
            inner, last = ParameterCut(0, (self.hidden,) * self.experts), ParameterCut(1, (self.hidden,))
            cuts = {"experts.gate": inner, "experts.up": inner, "experts.down": last}
            if not self.bias:
                return LayerCut(kind, cuts)
            return LayerCut(kind, cuts | {f"{name}_bias": inner for name in _INNER}, ("experts.down_bias",))
        if kind == "experts":
            if self.experts % size:
                return f"its {self.experts} experts cannot be divided evenly over {size} ranks"
            inner = ParameterCut(0, (self.experts * self.hidden,))
            last = ParameterCut(0, (self.experts * inputs["x"].shape[-1],))
            cuts = {"experts.gate": inner, "experts.up": inner, "experts.down": last}
            return LayerCut(kind, cuts | ({f"{name}_bias": cut for name, cut in cuts.items()} if self.bias else {}))
        return LayerCut(kind, {}, whole=("balance",)) if kind == "positions" else None

    def products(self, use: Use) -> Iterable[Product]:
        """Yield the matrix products of the router and of the experts that the positions use."""
        *leading, width = use.inputs["x"].shape
        rows = prod(leading)
        for each in use.matrices:
            if each.name == "router.weight":
                yield Product(2 * rows * prod(each.shape), use.graded["x"] + each.is_trained)
                continue
            side = use.is_inner_graded if each.name == "experts.down" else use.graded["x"]
            yield Product(2 * rows * self.top_k * width * self.hidden, side + each.is_trained)


def _check_other(layer: Layer, inputs: Inputs, port: str, wanted: TensorSpec) -> ShapeError | None:
    given = inputs.get(port, wanted)
    if (given.shape, given.dtype) == (wanted.shape, wanted.dtype):
        return None
    message = f"`{port}` of `{layer.type}` must be {wanted} {wanted.dtype} here, it is {given} {given.dtype}"
    return ShapeError(message, port=port)
