"""Checks of a recipe with images: fields with positions in an image that the transforms do not move, images that are
normalised twice, and formats of boxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from declarative_train.components.component import ShapeError
from declarative_train.components.transform import Transform
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.graph.checks.objective import objective_does_not_fit
from declarative_train.packs.images.checks.moved import scaled_twice, target_stays
from declarative_train.plan.plan import ParameterPlan
from declarative_train.recipe.recipe import Recipe

_FAR = 10.0  # distance of a pixel from 0: after one `normalize`, pixels are about -3 to 3


def check_recipe(recipe: Recipe, data: DataSpec, parameters: Sequence[ParameterPlan]) -> Iterator[Diagnostic]:
    """Check the transforms of a recipe, and yield a diagnostic for each probable mistake."""
    transforms = [TRANSFORMS.read(each) for each in data.transforms]
    fields = {field.name: field for field in data.fields}
    pictures = [name for name, field in fields.items() if field.component["type"] == "image"]
    for number, transform in enumerate(transforms):
        span = recipe.span(("data", "transforms", number))
        if transform.moves and transform.is_random and any(transform.changes(name) for name in pictures):
            yield from _check_motion(recipe, transform, span, fields)
    yield from _check_formats(recipe, fields)
    for name in pictures:
        yield from _check_scale(recipe, transforms, name, fields[name])


def _check_motion(
    recipe: Recipe, transform: Transform, span: Span, fields: dict[str, FieldSpec]
) -> Iterator[Diagnostic]:
    targets = {term.target for term in recipe.objective.losses.values()}
    for name, field in fields.items():
        kind = field.component["type"]
        if kind == "mask":
            if not transform.changes(name):
                yield target_stays(span, transform.type, name, is_certain=True)
        elif kind == "tensor" and name in targets and field.tensor.is_floating and field.tensor.shape[-1:] == (2,):
            yield target_stays(span, transform.type, name, is_certain=False)


def _check_formats(recipe: Recipe, fields: dict[str, FieldSpec]) -> Iterator[Diagnostic]:
    """Warn about each loss or metric that expects boxes in another format than its target has."""
    objective = recipe.objective
    for section, terms in (("losses", objective.losses), ("metrics", objective.metrics)):
        for name, term in terms.items():
            of = objective.losses.get(getattr(term, "of", None) or next(iter(objective.losses), ""))
            target = term.target or (of.target if of is not None and section == "metrics" else None)
            field, read = fields.get(target or ""), getattr(term.component, "format", None)
            if field is None or field.component["type"] != "boxes" or read is None:
                continue
            made = field.component.get("out_format", "xyxy")
            if made != read:
                message = f"`{name}` reads boxes as {read}, but its target `{target}` has them as {made}"
                shape_error = ShapeError(message, help=f"set `format: {made}`", is_warning=True)
                yield objective_does_not_fit(recipe.span(("objective", section, name, "format")), shape_error)


def _check_scale(recipe: Recipe, transforms: list[Transform], name: str, field: FieldSpec) -> Iterator[Diagnostic]:
    interval, num_scaled, channels = (0.0, 1.0), 0, field.tensor.shape[0]
    for number, transform in enumerate(transforms):
        if not transform.changes(name) or transform.only == "evaluation":
            continue
        interval = transform.interval_after(interval, channels)
        if transform.type != "normalize":
            continue
        num_scaled += 1
        if num_scaled > 1 or max(map(abs, interval)) > _FAR or interval[0] > 0 or interval[1] < 0:
            span = recipe.span(("data", "transforms", number))
            yield scaled_twice(span, name, interval, is_second=num_scaled > 1)
            return
