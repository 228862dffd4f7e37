"""Checks of the tensors of losses and metrics. Each check returns a ShapeError, which describes a mistake, or None.
Input and target must have equal shapes. torch would broadcast (B,) and (B, 1) to (B, B), and train without an error.
"""

from __future__ import annotations

from declarative_train.components.component import ShapeError
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec, interval_in_words

MANY_CLASSES = 1000  # from which on the number of scores may be rounded up


def needs_float(type: str, port: str, spec: TensorSpec) -> ShapeError | None:
    if spec.is_floating:
        return None
    return ShapeError(f"`{type}` needs floating-point numbers, but the {port} is {spec.dtype}", port=port)


def needs_number(type: str, port: str, spec: TensorSpec) -> ShapeError | None:
    """Return a ShapeError if `spec`, the tensor of input `port`, has no elements. `type`: type of the loss or metric,
    for the message.
    """
    if spec.num_elements:
        return None
    return ShapeError(f"`{type}` needs at least one value, but the {port} {spec} is empty", port=port)


def needs_same_shape(type: str, input: TensorSpec, target: TensorSpec) -> ShapeError | None:
    """Return a ShapeError unless input and target have the same shape. `type`: type of the loss or metric, for
    the message.
    """
    if input.shape == target.shape:
        return None
    message = f"`{type}` compares element by element and does not broadcast: the input is {input}, the target {target}"
    return ShapeError(message, port="target", help=_both_ways(input, target))


def needs_target(type: str, target: TensorSpec | None) -> ShapeError | None:
    return None if target is not None else ShapeError(f"`{type}` needs a target", port="target")


def needs_no_target(type: str, target: TensorSpec | None) -> ShapeError | None:
    return None if target is None else ShapeError(f"`{type}` accepts no target", port="target")


def needs_mask_shape(type: str, mask: TensorSpec | None, shape: tuple[int, ...]) -> ShapeError | None:
    """Return a ShapeError if there is a mask whose shape per sample is not `shape`. `type`: type of the loss or
    metric, for the message.
    """
    if mask is None or mask.shape == shape:
        return None
    wanted = TensorSpec(shape)
    message = f"`{type}` has items of shape {wanted}, but the mask is {mask}: a mask has a value for each item"
    return ShapeError(message, port="mask", help=_both_ways(wanted, mask, "items", "mask"))


def elementwise(type: str, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
    """Check that the input is floating-point and not empty, and that target and mask have its shape. Return the first
    error, or None. The mask is optional, the target is not. `type`: type of the loss, for the message."""
    if (shape_error := needs_target(type, target)) is not None or target is None:
        return shape_error
    return (
        needs_float(type, "input", input)
        or needs_number(type, "input", input)
        or needs_same_shape(type, input, target)
        or needs_mask_shape(type, mask, input.shape)
    )


def needs_values(type: str, target: TensorSpec, low: float, high: float, what: str, help: str) -> ShapeError | None:
    """Return a ShapeError if the range of the target's values is known and not within `low` to `high`. The other
    arguments are for the message: the `type` of the loss, `what` (words for an allowed target), and the hint `help`.
    """
    found = target.interval
    if found is None or (low <= found[0] and found[1] <= high):
        return None
    message = f"the target of `{type}` is {what}, but its values go from {interval_in_words(found)}"
    return ShapeError(message, port="target", help=help)


def class_axis(shape: tuple[int, ...], class_dim: int) -> int | None:
    """Return the index of the dimension `class_dim` in `shape`, the shape of one sample. `class_dim` counts the batch
    as dimension 0 and may be negative. Return None if it is the batch, or if there is no such dimension."""
    rank = len(shape) + 1
    dim = class_dim + rank if class_dim < 0 else class_dim
    return dim - 1 if 1 <= dim < rank else None


def classes(
    type: str, input: TensorSpec, target: TensorSpec | None, class_dim: int, *, soft: bool, ignore_index: int | None
) -> ShapeError | None:
    """Return a ShapeError unless dimension `class_dim` of the input has a score for each class, and the target has
    class numbers. More scores than classes give only a warning.

    `soft`          the target may also have a probability for each class
    `ignore_index`  further number that the target may have
    `type`          type of the loss, for the message
    """
    if (shape_error := needs_target(type, target)) is not None or target is None:
        return shape_error
    if (shape_error := needs_float(type, "input", input)) is not None:
        return shape_error
    axis = class_axis(input.shape, class_dim)
    if axis is None:
        return _no_class_dimension(type, input, class_dim)
    if input.shape[axis] == 1:
        message = f"`{type}` needs two classes or more: the input is {input}, with one value in dimension {class_dim}"
        hint = "for one score, use `bce_with_logits`; a node `flat: INPUT[:, 0]` gives the input the target's shape"
        return ShapeError(message, port="input", help=hint)
    if target.is_floating:
        return _soft_target(type, input, target, soft)
    return _class_numbers(type, input, target, axis, class_dim, ignore_index)


def _no_class_dimension(type: str, input: TensorSpec, class_dim: int) -> ShapeError:
    if not input.shape:
        message = f"`{type}` needs a score for each class, but the input is {input}: one number per sample"
        hint = "set the outputs of the last layer to the number of classes, or use `bce_with_logits` for two classes"
        return ShapeError(message, port="input", help=hint)
    known = ", ".join(str(dim) for dim in range(1, len(input.shape) + 1))
    message = f"`class_dim: {class_dim}` is not a dimension of the input, which is {input}"
    return ShapeError(message, field="class_dim", help=f"use -1 for the last one, or one of {known}")


def _soft_target(type: str, input: TensorSpec, target: TensorSpec, soft: bool) -> ShapeError | None:
    if soft and target.shape == input.shape:
        return None
    parts = f", or class probabilities in the input's shape {input}" if soft else ""
    message = f"the target of `{type}` is {target.dtype} {target}; it must be the class number{parts}"
    return ShapeError(message, port="target", help="set the field's `dtype: int64`, or `type: category`")


def _class_numbers(
    type: str, input: TensorSpec, target: TensorSpec, axis: int, class_dim: int, ignore_index: int | None
) -> ShapeError | None:
    items = TensorSpec(input.shape[:axis] + input.shape[axis + 1 :])
    if target.dtype == "bool":
        hint = "set the field's `dtype: int64`, or use `bce_with_logits` for two classes"
        return ShapeError(f"the target of `{type}` is bool; it must be the class number", port="target", help=hint)
    if target.shape != items.shape:
        return ShapeError(
            f"`{type}` with classes in dimension {class_dim} of {input} needs a target {items}, but it is {target}",
            port="target",
            help=_other_class_dim(input, target)
            or _one_too_many(items, target, axis == len(input.shape) - 1)
            or _pooling_hint(items, target),
        )
    num_classes, found = input.shape[axis], target.num_values
    low, high = target.interval or (0, 0)
    if low < 0 and low != ignore_index:
        message = f"the target's classes go from {interval_in_words((low, high))}, and classes are counted from 0"
        hint = "shift the classes so that the lowest is 0, or set the one to ignore: `ignore_index`"
        return ShapeError(message, port="target", help=hint)
    if low < 0 and high >= num_classes:
        found = int(high) + 1
    if found is None or found == num_classes or _is_padded(found, num_classes):
        return None
    if found > num_classes:
        if ignore_index == found - 1 == num_classes:  # the value after the last class is the ignored one
            return None
        return ShapeError(
            f"the target's classes go from {interval_in_words((max(low, 0), found - 1))}, but the input has "
            f"{format_count(num_classes, 'score')} in "
            f"dimension {class_dim}",
            port="input",
            help=f"set the outputs of the node that makes the scores to {found}",
        )
    return ShapeError(
        f"the input has {format_count(num_classes, 'score')} in dimension {class_dim}, but the target only "
        f"{format_count(found, 'class')}",
        port="input",
        help=f"set the outputs of the node that makes the scores to {found}, unless the others are intended",
        is_warning=True,
    )


def _is_padded(num_classes: int, num_scores: int) -> bool:
    """Return whether `num_scores` is `num_classes` rounded up to a multiple of 8. This is usual for large vocabularies,
    because products on a GPU are faster with such sizes.
    """
    return num_classes >= MANY_CLASSES and 0 < num_scores - num_classes < 128 and num_scores % 8 == 0


def _other_class_dim(input: TensorSpec, target: TensorSpec) -> str | None:
    for axis in range(len(input.shape)):
        if input.shape[:axis] + input.shape[axis + 1 :] == target.shape:
            return f"the shapes fit with `class_dim: {axis + 1}`"
    return None


def _pooling_hint(items: TensorSpec, target: TensorSpec) -> str | None:
    """Return a hint to insert a pooling layer, or None. The hint is for scores of several items per sample, with one
    target per sample. `items`: spec of the scores without the class dimension.
    """
    if target.shape or not items.shape:
        return None
    pool = "`sequence_pool`" if len(items.shape) == 1 else "`flatten` or `global_avg_pool`"
    return f"the target has one class per sample: insert {pool} before the layer that makes the scores"


def _one_too_many(items: TensorSpec, target: TensorSpec, classes_last: bool) -> str | None:
    if items.shape == (*target.shape, 1) and classes_last:
        slicing = ", ".join(":" for _ in range(len(items.shape)))
        from_field = f"give the target's field `columns: [NAME]`, which makes it {items}"
        return f"add a node `flat: INPUT[{slicing}, 0]`; or {from_field}"
    return _both_ways(items, target, "items")


def _both_ways(first: TensorSpec, second: TensorSpec, name: str = "input", other: str = "target") -> str | None:
    """Return a hint about how to give two tensors the same shape, or None. There is a hint for three differences: a
    last dimension of size 1 in one tensor, scores of classes in `first` and class numbers in `second`, or another shape
    of equally many elements. `name`, `other`: names of `first` and `second` in the hint."""
    if second.shape == (*first.shape, 1):
        slicing = ", ".join(":" for _ in range(len(first.shape) + 1))
        from_field = f"give the {other}'s field `column: NAME` instead of `columns: [NAME]`, which makes it {first}"
        return f"{from_field}; or add a node `flat: {other.upper()}[{slicing}, 0]`"
    if first.shape == (*second.shape, 1) and name != "items":
        slicing = ", ".join(":" for _ in range(len(second.shape) + 1))
        from_field = f"give the {other}'s field `columns: [NAME]` instead of `column: NAME`, which makes it {first}"
        return f"add a node `flat: {name.upper()}[{slicing}, 0]`, which is {second}; or {from_field}"
    if first.shape[:-1] == second.shape and first.shape and not second.is_floating and name == "input":
        return "for a target of classes, use the loss `cross_entropy`, or the metrics `accuracy` and `f1`"
    if first.num_elements == second.num_elements:
        same = "one value" if first.num_elements == 1 else f"the same {first.num_elements} values"
        return f"reshape one of them: they have {same} per sample"
    return None
