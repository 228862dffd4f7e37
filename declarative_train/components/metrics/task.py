"""Yes or no, or one class of several: what a metric of classes is asked, decided by the shapes of its edges."""

from __future__ import annotations

from typing import Literal

from declarative_train.components.component import Judged, Misfit
from declarative_train.components.losses.fit import class_axis, classes, elementwise, needs_mask_shape, needs_target
from declarative_train.terms.tensor_spec import TensorSpec

Task = Literal["binary", "multiclass"]


def task_of(given: Task | None, edges: Judged) -> Task:
    """Input and target of one shape are scores and answers, element by element; otherwise one dimension of the input
    is the classes."""
    if given is not None:
        return given
    same = edges.target is not None and edges.input.shape == edges.target.shape
    return "binary" if same else "multiclass"


def fits_task(type: str, task: Task, edges: Judged, *, needs_bool_mask: bool = False) -> Misfit | None:
    """The sentence for edges that are not what the task takes."""
    target, mask = edges.target, edges.mask
    if (misfit := needs_target(type, target)) is not None or target is None:
        return misfit
    if needs_bool_mask and mask is not None and mask.dtype != "bool":
        message = f"`{type}` takes items or leaves them, but the mask is {mask.dtype}, a weight for each"
        hint = "give the metric a `mask` of its own: a comparison, such as `weight > 0`, is bool"
        return Misfit(message, port="mask", help=hint)
    if task == "binary":
        return elementwise(type, edges.input, target, mask) or _yes_or_no(type, target)
    misfit = classes(type, edges.input, target, edges.class_dim, soft=True, ignore_index=edges.ignore_index)
    if misfit is not None and not misfit.is_warning:  # of scores without a class the loss has warned
        return misfit
    axis = class_axis(edges.input.shape, edges.class_dim)
    assert axis is not None
    return needs_mask_shape(type, mask, edges.input.shape[:axis] + edges.input.shape[axis + 1 :])


def _yes_or_no(type: str, target: TensorSpec) -> Misfit | None:
    if target.is_floating or target.num_values is None or target.num_values <= 2:
        return None
    return Misfit(
        f"`{type}` of an input and a target of one shape is about yes and no, but the target's values go from 0 to "
        f"{target.num_values - 1}",
        port="target",
        help="give the input a dimension for the classes",
    )
