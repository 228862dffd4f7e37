"""Layers that turn whole numbers into vectors: learned vectors (embedding, embeddings, embedding_bag) and one-hot
vectors (one_hot).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from declarative_train.components.component import Init, Layer, ShapeError
from declarative_train.components.expressions.functions import default
from declarative_train.components.layers.default_inits import start
from declarative_train.components.layers.shape_checks import (
    FunctionLayer,
    Inputs,
    needs_dimensions,
    needs_integer,
    needs_shape,
)
from declarative_train.core.amounts import format_count
from declarative_train.core.cuts import CutKind, LayerCut, ParameterCut
from declarative_train.core.tensor_spec import TensorSpec, interval_in_words

if TYPE_CHECKING:
    from torch import nn


class Embedding(Layer):
    """A learned vector for each integer of the input: (B, ...) integers to (B, ..., D).

    Parameter `weight` (num_embeddings, embedding_dim)."""

    type: Literal["embedding"] = "embedding"
    num_embeddings: int | None = Field(default=None, ge=1)
    """Number of rows of the table; by default one more than the largest number that the input can have."""
    embedding_dim: int = Field(ge=1)
    """Width of a vector."""
    padding_idx: int | None = Field(default=None, ge=0)
    """A number whose vector starts at zero and is not trained."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return (
            needs_integer(self, inputs)
            or _check_rows(self, self.num_embeddings, inputs["x"])
            or _check_padding(self, self.padding_idx, self.num_embeddings or _rows_of(inputs["x"]))
        )

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.embedding import EmbeddingModule

        return EmbeddingModule(self.num_embeddings or _rows_of(inputs["x"]), self.embedding_dim, self.padding_idx)

    def with_sizes(self, inputs: Inputs) -> Self:
        return self.model_copy(update={"num_embeddings": self.num_embeddings or _rows_of(inputs["x"])})

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter == "weight":
            return start("normal", zero_row=self.padding_idx)
        return super().init_of(parameter, inputs)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        if kind == "positions":
            return LayerCut(kind, {})
        if kind != "vocabulary":
            return None
        rows = self.num_embeddings or _rows_of(inputs["x"])
        if rows % size:
            return f"its {format_count(rows, 'row')} cannot be divided evenly over {size} ranks"
        return LayerCut(kind, {"weight": ParameterCut(0, (rows,))})


class Embeddings(Layer):
    """A table of learned vectors for each of K columns, whose K vectors are concatenated: (B, ..., K) integers to (B,
    ..., D1 + ... + DK).

    Parameters `tables.0` .. `tables.K-1`.
    """

    type: Literal["embeddings"] = "embeddings"
    num_embeddings: tuple[int, ...] | None = None
    """Number of rows of each table, one number per column; by default one more than the largest number that the column
    can have or, if the columns are not known separately, that the whole input can have.
    """
    embedding_dim: int | tuple[int, ...]
    """Width of a vector: one number for all columns, or one per column."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        x = inputs["x"]
        if shape_error := needs_integer(self, inputs) or needs_dimensions(self, inputs, "(B, ..., K)", 1):
            return shape_error
        for field in ("num_embeddings", "embedding_dim"):
            value = getattr(self, field)
            sizes = value if isinstance(value, tuple) else () if value is None else (value,)
            if isinstance(value, tuple) and len(value) != x.shape[-1]:
                message = (
                    f"`{field}` has {format_count(len(value), 'entry')}, `x` {x} has "
                    f"{format_count(x.shape[-1], 'column')}"
                )
                return ShapeError(message, field=field, help="write one number per column")
            if any(size < 1 for size in sizes):
                return ShapeError(f"`{field}` holds {min(sizes)}, every table needs at least 1", field=field)
        if self.num_embeddings is None:
            return _check_rows(self, None, x)
        columns = x.intervals if len(x.intervals) == x.shape[-1] else x.intervals * x.shape[-1]
        for column, (rows, (low, high)) in enumerate(zip(self.num_embeddings, columns, strict=False)):
            if low < 0 or high >= rows:
                return ShapeError(
                    f"`num_embeddings` gives column {column} a table of {format_count(rows, 'row')}, and its "
                    "values are "
                    f"{interval_in_words((low, high))}",
                    field="num_embeddings",
                    help="remove `num_embeddings`: each table gets the rows of its column" if low >= 0 else None,
                )
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.embedding import EmbeddingsModule

        columns = inputs["x"].shape[-1]
        rows = self.num_embeddings or _rows_by_column(inputs["x"])
        widths = self.embedding_dim if isinstance(self.embedding_dim, tuple) else (self.embedding_dim,) * columns
        return EmbeddingsModule(rows, widths)

    def with_sizes(self, inputs: Inputs) -> Self:
        return self.model_copy(update={"num_embeddings": self.num_embeddings or _rows_by_column(inputs["x"])})

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter in {f"tables.{column}" for column in range(inputs["x"].shape[-1])}:
            return start("normal")
        return super().init_of(parameter, inputs)


class EmbeddingBag(Layer):
    """Looks up a learned vector for each of T integers, and takes the mean, sum or maximum of the vectors: (B, T)
    integers to (B, D).

    Parameter `weight` (num_embeddings, embedding_dim).
    """

    type: Literal["embedding_bag"] = "embedding_bag"
    num_embeddings: int | None = Field(default=None, ge=1)
    """Number of rows of the table; by default one more than the largest number that the input can have."""
    embedding_dim: int = Field(ge=1)
    """Width of a vector."""
    mode: Literal["mean", "sum", "max"] = "mean"
    """How the vectors of a bag become one."""
    padding_idx: int | None = Field(default=None, ge=0)
    """A number that is left out of the bag."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return (
            needs_integer(self, inputs)
            or needs_shape(self, inputs, "(B, T)", 1)
            or _check_rows(self, self.num_embeddings, inputs["x"])
            or _check_padding(self, self.padding_idx, self.num_embeddings or _rows_of(inputs["x"]))
        )

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.embedding import EmbeddingBagModule

        rows = self.num_embeddings or _rows_of(inputs["x"])
        return EmbeddingBagModule(rows, self.embedding_dim, self.mode, self.padding_idx)

    def with_sizes(self, inputs: Inputs) -> Self:
        return self.model_copy(update={"num_embeddings": self.num_embeddings or _rows_of(inputs["x"])})

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter == "weight":
            return start("normal", zero_row=self.padding_idx)
        return super().init_of(parameter, inputs)


class OneHot(FunctionLayer):
    """One-hot vectors: (B, ...) integers become (B, ..., N) floating-point numbers. The vector of an integer i is 1 at
    index i, and 0 elsewhere."""

    type: Literal["one_hot"] = "one_hot"
    num_classes: int | None = Field(default=default("one_hot", "num_classes"), ge=1)
    """Size of the last dimension; by default one more than the largest number that the input can have. A number
    outside of it gives only zeros.
    """

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_integer(self, inputs) or _check_rows(self, self.num_classes, inputs["x"], "num_classes")

    def build(self, inputs: Inputs) -> nn.Module:
        return super(OneHot, self.with_sizes(inputs)).build(inputs)

    def with_sizes(self, inputs: Inputs) -> Self:
        return self.model_copy(update={"num_classes": self.num_classes or _rows_of(inputs["x"])})


def _check_rows(layer: Layer, rows: int | None, x: TensorSpec, field: str = "num_embeddings") -> ShapeError | None:
    """Return an error if the input `x` can have a number for which the embedding table has no row. `rows`: number of
    rows of the table; None if the recipe does not set it. `field`: the key of the recipe that sets it.
    """
    if rows is None and x.interval is None:
        hint = f"write `{field}:`, or make the field a `category` or `tokens` field, whose range is known"
        return ShapeError(f"`{layer.type}` needs `{field}`: the range of `x` is not known", help=hint, lacks_key=True)
    low, high = x.interval or (0, 0)
    if low < 0:
        message = (
            f"`{layer.type}` takes numbers of 0 and more, and `x` holds numbers from {interval_in_words((low, high))}"
        )
        return ShapeError(message, port="x", help="add a number to it, or `clamp` it")
    if rows is not None and high >= rows:
        message = f"`{field}: {rows}` is too small, `x` holds numbers from {interval_in_words((low, high))}"
        return ShapeError(message, field=field, help=f"set `{field}` to {int(high) + 1}, or remove it")
    return None


def _rows_of(x: TensorSpec) -> int:
    """Return the number of rows that an embedding table needs for the values of the input `x`: the greatest value plus
    1. Values below 0 are not considered; `_check_rows` reports them."""
    return max(_rows_by_column(x))


def _rows_by_column(x: TensorSpec) -> tuple[int, ...]:
    """Return, for each column of `x` (entry of its last dimension), how many rows an embedding table for its values
    needs: the greatest value plus 1."""
    columns = x.intervals or ((0, 0),)
    wide = columns if not x.shape or len(columns) == x.shape[-1] else columns * x.shape[-1]
    return tuple(max(int(high), 0) + 1 for _, high in wide)


def _check_padding(layer: Layer, padding_idx: int | None, rows: int | None) -> ShapeError | None:
    if padding_idx is None or rows is None or padding_idx < rows:
        return None
    message = f"`padding_idx: {padding_idx}` is outside the {format_count(rows, 'row')} of the table"
    return ShapeError(message, field="padding_idx", help=f"it must lie in 0..{rows - 1}")
