"""Evaluation of the nodes that depend only on fields, for the first rows of the data. Shape inference uses it.

Specs give only an interval of possible values; the rows show values that really occur. It is an error if a layer or
loss cannot accept a value that occurs. If it cannot accept another value of the interval, this is at most a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.components.component import Layer, ShapeError
from declarative_train.components.expressions.grammar import Expression
from declarative_train.components.expressions.lower import infer as evaluate
from declarative_train.components.plugin_layer import PluginLayer
from declarative_train.core.span import Span
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.read import order_ports

if TYPE_CHECKING:
    from declarative_train.data.shared_sets import Sample

_COLUMNS = 4096  # with more columns, one interval is found for all of them
_MOST_ELEMENTS = 1 << 23  # of the result of a node, so that its computation takes no noticeable time


@dataclass(frozen=True, slots=True, eq=False)
class ObservedValues:
    """Values of a wire (a value in the model graph) for the first rows of the data.

    is_field  whether the wire is a field
    made_by   where the first nan or infinite value arose: (place of the node in the recipe, description of its inputs);
              None: all values are finite, or the field itself has such values"""

    values: torch.Tensor
    is_field: bool = False
    made_by: tuple[Span, str] | None = None


class Observer:
    """Evaluator of the nodes of a graph on sample rows. Without a sample, its methods return None."""

    def __init__(self, sample: Sample | None, double: bool = False) -> None:
        self.sample, self._double = sample, double

    def field(self, name: str, spec: TensorSpec) -> ObservedValues | None:
        values = None if self.sample is None else self.sample.values(name)
        if values is None or not len(values):
            return None
        return ObservedValues(torch.from_numpy(values).to(self._dtype(spec)), is_field=True)

    def expression(
        self, expression: Expression, inputs: Mapping[str, ObservedValues], spec: TensorSpec, span: Span
    ) -> ObservedValues | None:
        """Return the values of an expression on the sample rows; None if the values of its inputs are unknown, or if it
        draws random numbers. `spec`: spec of the result. `span`: place of the expression in the recipe. Raises
        ExpressionError if an operation does not accept its inputs."""
        given = self._select_rows(inputs, spec)
        if given is None or expression.is_random:
            return None
        with torch.no_grad():
            return self._observe(evaluate(expression, given), inputs, given, span)

    def layer(
        self,
        layer: Layer,
        inputs: Mapping[str, ObservedValues],
        specs: Mapping[str, TensorSpec],
        spec: TensorSpec,
        span: Span,
    ) -> ObservedValues | None:
        """Return the values of a layer on the sample rows. Return None if the values of its inputs are unknown, or if
        the layer fails. Layers of plugins are not evaluated (None), nor layers that have parameters or buffers, draw
        random numbers or mix samples.

        `inputs`, `specs`: values and specs of the inputs by port. `spec`: spec of the output. `span`: the layer's place
        in the recipe."""
        given = self._select_rows(inputs, spec)
        if given is None or isinstance(layer, PluginLayer) or layer.is_random or layer.mixes_samples:
            return None
        module = layer.build(specs).eval()
        if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
            return None
        try:
            with torch.no_grad():
                found = module(*[None if port is None else given[port] for port in order_ports(layer, given)])
        except Exception:  # the dry run reports what fails
            return None
        return self._observe(found, inputs, given, span)

    def check(
        self,
        check: Callable[[Mapping[str, TensorSpec]], ShapeError | None],
        specs: Mapping[str, TensorSpec],
        seen: Mapping[str, ObservedValues | None],
        mask: ObservedValues | None = None,
        ignored: int | None = None,
    ) -> tuple[ShapeError | None, dict[str, str]]:
        """Call `check`, a method of a layer, loss or metric, with all possible values of its inputs (`specs`) and with
        the values in the sample rows (`seen`). Return (error or None, notes). `mask`, `ignored`: as in `narrow`.

        fails only with possible values   a warning, or None if the sample has all rows of the data
        fails with values in the sample   an error; notes: {input: text that names the row with its most extreme value}
        """
        close = {port: narrow(spec, seen.get(port), mask, ignored) for port, spec in specs.items()}
        said = check(specs)
        if close == specs:
            return said, {}
        occurs = check(close)
        if occurs == said:
            return said, {}
        if occurs is not None and not occurs.is_warning:
            far = {port: seen[port] for port, spec in close.items() if spec != specs[port]}
            rows = {port: self.row(row_of(each)) for port, each in far.items() if each is not None}
            return (said or occurs), {port: f"the most extreme value is in {row}" for port, row in rows.items()}
        if said is None or said.is_warning or said.lacks_key or self.sample is None:
            return said, {}
        if self.sample.is_whole:
            return None, {}
        return said._replace(is_warning=True), {}

    def row(self, row: int) -> str:
        assert self.sample is not None
        return self.sample.place(row)

    def _dtype(self, spec: TensorSpec) -> torch.dtype:
        return torch.float64 if self._double and spec.is_floating else getattr(torch, spec.dtype)

    def _select_rows(self, inputs: Mapping[str, ObservedValues], spec: TensorSpec) -> dict[str, torch.Tensor] | None:
        if not inputs or self.sample is None:
            return None
        most = max(1, _MOST_ELEMENTS // max(spec.num_elements, 1))
        rows = min(most, *(len(seen.values) for seen in inputs.values()))
        return {name: seen.values[:rows] for name, seen in inputs.items()}

    def _observe(
        self, found: torch.Tensor, inputs: Mapping[str, ObservedValues], given: Mapping[str, torch.Tensor], span: Span
    ) -> ObservedValues:
        made_by = next((seen.made_by for seen in inputs.values() if seen.made_by is not None), None)
        row = first_row(~found.isfinite()) if found.is_floating_point() else None
        if row is None:
            return ObservedValues(found)
        if made_by is None:
            shown = ", ".join(f"`{name}` is {_format_values(each[row])}" for name, each in given.items())
            made_by = span, f"{shown} in {self.row(row)}"
        return ObservedValues(found, made_by=made_by)


def first_row(bad: torch.Tensor) -> int | None:
    if not bad.numel():
        return None
    rows = bad.reshape(len(bad), -1).any(dim=1).nonzero()
    return int(rows[0]) if len(rows) else None


def narrow(
    spec: TensorSpec, seen: ObservedValues | None, mask: ObservedValues | None = None, ignored: int | None = None
) -> TensorSpec:
    """Return `spec` with the interval from the least to the greatest of the values `seen` on the sample rows. Values
    where `mask` is 0, and values equal to `ignored` (such as `ignore_index`), do not count.

    Return `spec` unchanged if it needs no interval: its dtype is bool, or its field declares the range. Do the same if
    there are no values, a value is not finite, or the mask has another shape."""
    if seen is None or (seen.is_field and spec.intervals) or spec.dtype == "bool":
        return spec
    values = seen.values
    if mask is not None:
        rows = min(len(values), len(mask.values))
        kept = mask.values[:rows] != 0
        if kept.shape != values[:rows].shape[: kept.ndim]:
            return spec
        values = values[:rows][kept]
    if ignored is not None:
        values = values[values != ignored]
    if not values.numel() or not bool(values.isfinite().all()):
        return spec
    columns = (
        values.reshape(-1, values.shape[-1]) if values.ndim > 1 and not spec.is_floating else values.reshape(-1, 1)
    )
    if columns.shape[1] > _COLUMNS:
        columns = values.reshape(-1, 1)
    least, greatest = columns.amin(dim=0).tolist(), columns.amax(dim=0).tolist()
    return replace(spec, num_values=None, bounds=()).between(list(zip(least, greatest, strict=True)))


def row_of(seen: ObservedValues) -> int:
    """Return the index of the row with the least value of all rows if this value is negative, otherwise of the row with
    the greatest value."""
    values = seen.values.reshape(len(seen.values), -1).double()
    least, greatest = values.amin(dim=1), values.amax(dim=1)
    return int(least.argmin()) if bool(least.min() < 0) else int(greatest.argmax())


def _format_values(values: torch.Tensor) -> str:
    flat: list[Any] = values.reshape(-1).tolist()
    shown = ", ".join(f"{value:g}" for value in flat[:4])
    return shown if len(flat) == 1 else f"[{shown}{', ...' if len(flat) > 4 else ''}]"
