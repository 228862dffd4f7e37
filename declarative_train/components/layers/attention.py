"""Attention within a sequence (self_attention) and from one sequence to another (cross_attention)."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from declarative_train.components.component import Init, Layer, Port, ShapeError
from declarative_train.components.layers.default_inits import linear_weight, start
from declarative_train.components.layers.shape_checks import (
    Inputs,
    divisors,
    dtype_of,
    needs_dimensions,
    needs_parameter_dtype,
    needs_positions,
)
from declarative_train.components.matrix_products import Product, Use
from declarative_train.core.amounts import format_count
from declarative_train.core.cuts import CutKind, LayerCut, ParameterCut
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from torch import nn

    from declarative_train.components.layers.modules.attention import Heads
    from declarative_train.components.layers.modules.rotary import Angles

_STARTS = {  # as in torch's nn.MultiheadAttention
    "sinks": "zeros",
    "query_norm.weight": "ones",
    "key_norm.weight": "ones",
    **{f"{name}.weight": "xavier_uniform" for name in ("qkv", "query", "key", "value", "key_value")},
    **{f"{name}.bias": "zeros" for name in ("qkv", "query", "key", "value", "key_value", "out")},
}


class RotaryScaling(BaseModel):
    """Scaling of the rotary angles, for sequences longer than those that the model was trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    type: Literal["linear", "llama3", "yarn"]
    """`linear` slows all pairs down by the same factor. `llama3` and `yarn` slow down only the slow pairs; between
    slow and fast ones the factor changes gradually.
    """
    factor: float = Field(ge=1, allow_inf_nan=False)
    """Ratio of the new length to the original one."""
    original_length: int | None = Field(default=None, ge=1)
    """The length of the sequences in training, for `llama3` and `yarn`."""
    low_freq_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """`llama3`: pairs that turn fewer times than this within the original length are slowed down by the whole
    factor."""
    high_freq_factor: float = Field(default=4.0, gt=0, allow_inf_nan=False)
    """`llama3`: pairs that turn more times than this are not changed."""
    beta_fast: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    """`yarn`: pairs that turn more times than this within the original length are not changed."""
    beta_slow: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """`yarn`: pairs that turn fewer times than this are slowed down by the whole factor."""
    attention_factor: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """`yarn`: queries and keys are multiplied by it; by default 0.1 ln(factor) + 1."""
    mscale: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """`yarn`, with `mscale_all_dim`: the default of `attention_factor` is (0.1 mscale ln(factor) + 1) / (0.1
    mscale_all_dim ln(factor) + 1)."""
    mscale_all_dim: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """`yarn`: see `mscale`. In `latent_attention` the products of queries and keys are also multiplied by the square of
    0.1 mscale_all_dim ln(factor) + 1."""
    truncate: bool = True
    """`yarn`: the gradual change from slow to fast pairs begins and ends at whole pairs."""

    def problem(self) -> str | None:
        """Return a sentence about a mistake in the keys, or None if there is none. The mistakes are a key that the
        scaling `type` does not use, a missing key, and a lower limit that is not below the upper limit.
        """
        read = _READ_BY[self.type]
        defaults = {key: field.default for key, field in type(self).model_fields.items()}
        others = (key for key in defaults if key not in (*read, "type", "factor"))
        odd = next((key for key in others if getattr(self, key) != defaults[key]), None)
        if odd is not None:
            return f"`scaling.{odd}` means nothing with `type: {self.type}`"
        if "original_length" in read and self.original_length is None:
            return f"`scaling` with `type: {self.type}` needs `original_length`"
        if self.type == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            return "`scaling.low_freq_factor` must be below `high_freq_factor`"
        if self.type == "yarn" and self.beta_slow >= self.beta_fast:
            return "`scaling.beta_slow` must be below `beta_fast`"
        return None


_READ_BY = {
    "linear": (),
    "llama3": ("original_length", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("original_length", "beta_fast", "beta_slow", "attention_factor"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
}


class Rotary(BaseModel):
    """Rotary positions: each pair of elements of a query or key is rotated by an angle that grows with its position."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    base: float = Field(default=10000.0, gt=1, allow_inf_nan=False)
    """The larger it is, the slower the slowest pair turns; longer contexts need a larger one."""
    scaling: RotaryScaling | None = None
    """Scaling for a model that was trained on shorter sequences, `{type: llama3, factor: 8, original_length: 8192}`."""


class SelfAttention(Layer):
    """Multi-head attention of a sequence to itself: (B, ..., T, D) to (B, ..., T, D), each sequence separately.

    `mask` is true where a position may be seen: (B, ..., T), or (B, ..., T, T) for each pair (query, key). Leading
    dimensions of size 1 are repeated. `segments` (B, ..., T), whole numbers, divides a sequence into several texts: a
    position sees only positions with the same number. `positions` (B, ..., T) are the positions for `rotary`; without
    this input they are 0 to T - 1. Parameters `qkv.*` (or `query.*`, `key.*`, `value.*`) and `out.*`. Vaswani et al.,
    Attention is all you need, 2017.
    """

    ports: ClassVar[tuple[Port, ...]] = (
        Port("x"),
        Port("mask", optional=True),
        Port("segments", optional=True),
        Port("positions", optional=True),
    )

    type: Literal["self_attention"] = "self_attention"
    heads: int = Field(ge=1)
    """Number of query heads."""
    kv_heads: int | None = Field(default=None, ge=1)
    """Number of key and value heads, a divisor of `heads` (grouped-query attention); by default equal to `heads`."""
    head_width: int | None = Field(default=None, ge=1)
    """Width of a head; by default the width of the input divided by `heads`."""
    causal: bool = False
    """A position sees only itself and those before it."""
    rotary: Rotary | None = None
    """Rotary positions in queries and keys, `{base: 10000}`; by default none."""
    qk_norm: bool = False
    """Normalise queries and keys of each head by their root mean square, with a learned scale."""
    qk_norm_eps: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    """Added to the mean square of `qk_norm`."""
    qk_norm_zero_centered: bool = False
    """The learned scale of `qk_norm` is 1 + the parameter, which starts at 0."""
    scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Factor on the products of queries and keys; by default 1 / sqrt(head width)."""
    softcap: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Limit of the products of queries and keys: softcap * tanh(product / softcap), as in Gemma 2. No fused kernel
    supports it, so the weights of all pairs are held in memory, T * T for each head."""
    sinks: bool = False
    """Adds a learned logit to the softmax of each head. It has no value, so a position may attend to nothing
    (gpt-oss). As with `softcap`, the weights of all pairs are held in memory.
    """
    window: int | None = Field(default=None, ge=1)
    """With `causal`: the number of positions that a position sees at most, which are itself and those just before it;
    by default all.
    """
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability that an attention weight is dropped in training."""
    bias: bool = True
    """Biases in all projections."""
    out_bias: bool | None = None
    """A bias in the projection `out`; by default the same as `bias`."""
    fused: bool = True
    """One matrix `qkv` for the three projections, which is faster; false: `query`, `key` and `value` separately, as in
    most published weights."""

    @property
    def is_random(self) -> bool:
        return self.dropout > 0

    def check(self, inputs: Inputs) -> ShapeError | None:
        return (
            needs_dimensions(self, inputs, "(B, ..., T, D)", 2)
            or needs_parameter_dtype(self, inputs, "x")
            or _check_heads(self, inputs["x"].shape[-1])
            or _check_rotary(self, inputs["x"].shape[-1])
            or _check_window(self)
            or _check_mask(self, inputs, "x", "x")
            or needs_positions(self, inputs, "segments")
            or needs_positions(self, inputs)
        )

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.attention import SelfAttentionModule

        x = inputs["x"]
        num_positions = inputs["positions"].num_values if "positions" in inputs else None
        return SelfAttentionModule(x.shape[-1], _heads(self, x.shape[-1]), self.causal, dtype_of(x), num_positions or 0)

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if self.qk_norm_zero_centered and parameter in ("query_norm.weight", "key_norm.weight"):
            return start("zeros")
        return _start_of(parameter) or super().init_of(parameter, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        if kind == "positions":
            return self._exchange_keys(inputs)
        return _cut_heads(self, inputs["x"].shape[-1], size) if kind == "heads" else None

    def _exchange_keys(self, inputs: Inputs) -> LayerCut | str:
        if len(inputs["x"].shape) > 2:
            return "its sequences are only parts of a sample"
        if "mask" in inputs and len(inputs["mask"].shape) > 1:
            return "its mask has a value for each pair of positions"
        return LayerCut("positions", {})

    def products(self, use: Use) -> Iterable[Product]:
        return _products(use, "x", "x")


class CrossAttention(Layer):
    """Multi-head attention: the positions of `query` (B, ..., T, D) attend to those of `context` (B, ..., S, E), with
    the result (B, ..., T, D). Each sequence of `query` attends only to the sequence of `context` at the same index.

    `mask` is true where a position of the context may be seen: (B, ..., S), or (B, ..., T, S) for each pair (query,
    key). Leading dimensions of size 1 are repeated. Parameters `query.*`, `key_value.*` (or `key.*`, `value.*`) and
    `out.*`.
    """

    ports: ClassVar[tuple[Port, ...]] = (Port("query"), Port("context"), Port("mask", optional=True))

    type: Literal["cross_attention"] = "cross_attention"
    heads: int = Field(ge=1)
    """Number of query heads."""
    kv_heads: int | None = Field(default=None, ge=1)
    """Number of key and value heads, a divisor of `heads` (grouped-query attention); by default equal to `heads`."""
    head_width: int | None = Field(default=None, ge=1)
    """Width of a head; by default the width of the query divided by `heads`."""
    qk_norm: bool = False
    """Normalise queries and keys of each head by their root mean square, with a learned scale."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability that an attention weight is dropped in training."""
    bias: bool = True
    """Biases in all projections."""
    fused: bool = True
    """One matrix `key_value` for both projections of the context, which is faster; false: `key` and `value`
    separately."""

    @property
    def is_random(self) -> bool:
        return self.dropout > 0

    def check(self, inputs: Inputs) -> ShapeError | None:
        return (
            needs_dimensions(self, inputs, "(B, ..., T, D)", 2, port="query")
            or needs_dimensions(self, inputs, "(B, ..., S, E)", 2, port="context")
            or _check_leading(self, inputs)
            or needs_parameter_dtype(self, inputs, "query", "context")
            or _check_heads(self, inputs["query"].shape[-1])
            or _check_mask(self, inputs, "query", "context")
        )

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.attention import CrossAttentionModule

        query, context = inputs["query"], inputs["context"]
        return CrossAttentionModule(query.shape[-1], context.shape[-1], _heads(self, query.shape[-1]), dtype_of(query))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return _start_of(parameter) or super().init_of(parameter, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return _cut_heads(self, inputs["query"].shape[-1], size) if kind == "heads" else None

    def products(self, use: Use) -> Iterable[Product]:
        return _products(use, "query", "context")


def _heads(layer: SelfAttention | CrossAttention, width: int) -> Heads:
    from declarative_train.components.layers.modules.attention import Heads

    own = layer if isinstance(layer, SelfAttention) else None
    return Heads(
        num_heads=layer.heads,
        num_kv_heads=layer.kv_heads or layer.heads,
        head_width=layer.head_width or width // layer.heads,
        dropout=layer.dropout,
        rotary=None if own is None else angles_of(own.rotary),
        qk_norm=layer.qk_norm,
        qk_norm_eps=1e-6 if own is None else own.qk_norm_eps,
        qk_norm_zero_centered=own is not None and own.qk_norm_zero_centered,
        bias=layer.bias,
        out_bias=layer.bias if own is None or own.out_bias is None else own.out_bias,
        fused=layer.fused,
        window=None if own is None else own.window,
        scale=None if own is None else own.scale,
        softcap=None if own is None else own.softcap,
        sinks=own is not None and own.sinks,
    )


def _cut_heads(layer: SelfAttention | CrossAttention, width: int, size: int) -> LayerCut | str:
    """Return how the heads of an attention layer are divided over `size` ranks, or a sentence that says why they cannot
    be. The matrices of queries, keys and values are divided by rows, the matrix `out` by columns. `width`: width of the
    layer's input.
    """
    heads = _heads(layer, width)
    for number, what in ((heads.num_heads, "head"), (heads.num_kv_heads, "key head")):
        if number % size:
            return f"its {format_count(number, what)} cannot be divided evenly over {size} ranks"
    if layer.dropout > 0:
        return "its dropout draws random numbers for all heads together"
    query, kv = heads.query_width, heads.kv_width
    pieces: dict[str, tuple[int, ...]] = {"query": (query,), "key": (kv,), "value": (kv,)}
    if heads.fused and isinstance(layer, SelfAttention):
        pieces = {"qkv": (query, kv, kv)}
    elif heads.fused:
        pieces = {"query": (query,), "key_value": (kv, kv)}
    words = ("weight", "bias") if heads.bias else ("weight",)
    cuts = {f"{name}.{word}": ParameterCut(0, sizes) for name, sizes in pieces.items() for word in words}
    cuts |= {"out.weight": ParameterCut(1, (query,))}
    if heads.sinks:
        cuts["sinks"] = ParameterCut(0, (heads.num_heads,))
    summed = ("query_norm.weight", "key_norm.weight") if heads.qk_norm else ()
    return LayerCut("heads", cuts, summed)


def angles_of(rotary: Rotary | None) -> Angles | None:
    from declarative_train.components.layers.modules.rotary import Angles

    if rotary is None:
        return None
    scaling = rotary.scaling
    given = {} if scaling is None else {key: getattr(scaling, key) for key in ("factor", *_READ_BY[scaling.type])}
    return Angles(rotary.base, "" if scaling is None else scaling.type, **given)


def _check_window(layer: SelfAttention) -> ShapeError | None:
    if layer.window is None or layer.causal:
        return None
    return ShapeError("`window` is for a layer with `causal: true`", field="window", help="add `causal: true`")


def _check_heads(layer: SelfAttention | CrossAttention, width: int) -> ShapeError | None:
    if layer.head_width is None and width % layer.heads:
        message = f"a width of {width} does not divide into {layer.heads} heads"
        return ShapeError(message, field="heads", help=f"set `heads` to one of {divisors(width)}, or give `head_width`")
    if layer.kv_heads is not None and layer.heads % layer.kv_heads:
        message = f"{format_count(layer.heads, 'head')} cannot share {layer.kv_heads} key and value heads evenly"
        return ShapeError(message, field="kv_heads", help=f"set `kv_heads` to one of {divisors(layer.heads)}")
    return None


def _check_rotary(layer: SelfAttention, width: int) -> ShapeError | None:
    head_width = layer.head_width or width // layer.heads
    if layer.rotary is not None and layer.rotary.scaling is not None and (why := layer.rotary.scaling.problem()):
        return ShapeError(why, field="rotary")
    if layer.rotary is None or head_width % 2 == 0:
        return None
    message = f"rotary positions rotate pairs of elements, and a head width of {head_width} is odd"
    return ShapeError(message, field="head_width" if layer.head_width else "heads", help="give an even `head_width`")


def _check_mask(layer: Layer, inputs: Inputs, queries: str, keys: str) -> ShapeError | None:
    if "mask" not in inputs:
        return None
    mask, (*leading, T, _), S = inputs["mask"], inputs[queries].shape, inputs[keys].shape[-2]
    if mask.dtype != "bool":
        message = f"`mask` of `{layer.type}` is true where a position may be seen, but it is {mask.dtype}"
        return ShapeError(message, port="mask", help="compare first, as in `keep: tokens != 0`")
    given, last = mask.shape[: len(leading)], mask.shape[len(leading) :]
    if last in ((S,), (T, S)) and all(size in (1, each) for size, each in zip(given, leading, strict=True)):
        return None
    ways = " or ".join(str(TensorSpec((*leading, *each), "bool")) for each in ((S,), (T, S)))
    hint = (
        "one of the first dimensions may also be 1 (use `unsqueeze`): the mask is then repeated along it"
        if leading
        else None
    )
    return ShapeError(f"`mask` of `{layer.type}` must be {ways} here, it is {mask}", port="mask", help=hint)


def _check_leading(layer: CrossAttention, inputs: Inputs) -> ShapeError | None:
    query, context = inputs["query"], inputs["context"]
    if query.shape[:-2] == context.shape[:-2]:
        return None
    message = (
        f"each sequence of `query` attends to the sequence of `context` at the same index, but `query` is {query} and "
        f"`context` is {context}"
    )
    return ShapeError(message, port="context", help="give both the same dimensions before the last two")


def _start_of(parameter: str) -> Init | None:
    if parameter == "out.weight":
        return linear_weight()
    return start(_STARTS[parameter]) if parameter in _STARTS else None


def _products(use: Use, query: str, context: str) -> Iterable[Product]:
    """Yield the matrix products of an attention layer: the projections, queries times keys, and weights times values.
    `query`: name of the input from which queries are computed. `context`: name of the input from which keys and values
    are computed. A causal mask does not lower the number of operations, as in torch's flop counter.
    """
    (*leading, T, _), S = use.inputs[query].shape, use.inputs[context].shape[-2]
    sequences = prod(leading)
    for each in use.matrices:
        name = each.name.partition(".")[0]
        source = context if name in ("key", "value", "key_value") else query
        rows, side = (T, use.is_inner_graded) if name == "out" else (use.inputs[source].shape[-2], use.graded[source])
        yield Product(2 * prod(each.shape) * sequences * rows, side + each.is_trained)
        if name == "out":
            yield Product(4 * sequences * T * S * each.shape[1], 2 * use.is_inner_graded)
