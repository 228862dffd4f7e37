"""Messages about transforms and the fields that they change, or should change too.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, unverified, warning
from declarative_train.core.span import Span


def target_stays(span: Span, transform: str, field: str, *, is_certain: bool) -> Diagnostic:
    """target-stays (D043)

    Finds: a random transform that moves a picture (a flip, crop or rotation) but not what belongs to it: a field of
           `type: mask` that is not among its `fields`, or a target of pairs of numbers, which may be points in the
           picture.
    Why:   after the transform, the target does not match the picture, so the model learns an average of wrong
           positions.
    Diff:
        data:
          fields:
            digit: null
            pixels: {column: picture, mode: L}
            place: {column: points}
          source: {type: npy, path: data/points.npz}
          transforms:
    -       - {type: random_flip}
    +       - {type: color_jitter, brightness: 0.2}
        objective:
          loss: {type: mse, input: logits, target: place}
          metrics: null
    """
    if is_certain:
        message = f"`{transform}` moves a picture, but not `{field}`, which has a value for each of its pixels"
        return warning("D043", span, message, f"add `{field}` to `fields`, or leave `fields` out")
    message = f"`{transform}` moves a picture, but not `{field}`: if these numbers are points in it, they become wrong"
    hint = "remove the transform; boxes and masks are moved, as fields of `type: boxes` and `type: mask`"
    return unverified("D043", span, message, hint)


def scaled_twice(span: Span, field: str, ends: tuple[float, float], *, is_second: bool) -> Diagnostic:
    """scaled-twice (D044)

    Finds: a second `normalize` of the same pictures; or a `normalize` after which all pixels are above 0, all are below
           0, or some are beyond -10 or 10. A mean for pixels from 0 to 255 is a common cause.
    Why:   pixels are from 0 to 1 before the first `normalize`. With such a mean or std, all pixels get nearly the same
           value or large values, for which the initial weights of the layers are not made.
    Diff:
        data:
          transforms:
    -       - {type: normalize, mean: [123.7, 116.3, 103.5], std: [58.4, 57.1, 57.4]}
    +       - {type: normalize, mean: imagenet, std: imagenet}
    """
    message = f"`{field}` is {ends[0]:.3g} to {ends[1]:.3g} after this `normalize`, but should be around 0"
    hint = "divide `mean` and `std` by 255: pixels are 0 to 1 before it"
    if is_second:
        message, hint = (
            f"`{field}` is normalised twice, and is {ends[0]:.3g} to {ends[1]:.3g} after it",
            "remove one `normalize`",
        )
    return warning("D044", span, message, hint)
