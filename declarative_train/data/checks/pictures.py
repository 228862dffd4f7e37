"""Messages about image files and about transforms of images.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error
from declarative_train.core.span import Span


def broken_picture(span: Span, field: str, message: str, place: str, help: str | None) -> Diagnostic:
    """broken-picture (D040)

    Finds: a picture that cannot be read. Before a run, only the first 16 MB of the files of each set are checked.
    Why:   the run would stop at the step that reads this picture.
    Diff:
        data:
          fields:
    -       pixels: {type: image, column: label, size: 16, folder: data}
    +       pixels: {type: image, column: path, size: 16}
    """
    return error("D040", span, f"field `{field}`: {message}, in {place}", help)


def pictures_without_size(span: Span, field: str, message: str, help: str | None) -> Diagnostic:
    """pictures-without-size (D041)

    Finds: a field whose pictures do not all have the same size after the transforms, in training or in evaluations.
    Why:   the pictures of a batch are stacked to one tensor, and the layers are made for one size.
    Diff:
        data:
          fields:
    -       pixels: {type: image, column: image, size: null}
    +       pixels: {type: image, column: image, size: 16}
    """
    return error("D041", span, f"field `{field}`: {message}", help)


def transform_does_not_fit(span: Span, message: str, help: str | None) -> Diagnostic:
    """transform-does-not-fit (D042)

    Finds: a transform that cannot be applied: it does not fit the pictures of a field, names a field that does not
           exist or has no pictures, or cannot be combined with `window`, `shuffle`, `workers` or `only`.
    Why:   the run would stop at the first sample, or its results could not be reproduced.
    Diff:
        data:
          transforms:
    -       - {type: normalize, fields: [pixels], mean: [0.5, 0.5], std: [0.2, 0.2]}
    +       - {type: normalize, fields: [pixels], mean: [0.5], std: [0.2]}
    """
    return error("D042", span, message, help)
