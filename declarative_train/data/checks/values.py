"""Messages on the values of columns.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.core.span import Span


def column_does_not_fit(span: Span, field: str, message: str, help: str | None) -> Diagnostic:
    """column-does-not-fit (D006)

    Finds: a field whose columns have a type or a shape that it cannot use, or which cannot be combined with the other
           fields.
    Why:   the values cannot be converted to a tensor: text, for example, is not a number.
    Diff:
        data:
          fields:
    -       pixels: {columns: "p*", shape: [1, 8, 9]}
    +       pixels: {columns: "p*", shape: [1, 8, 8]}
    """
    return error("D006", span, f"field `{field}`: {message}", help)


def missing_value(span: Span, field: str, message: str, place: str, help: str | None) -> Diagnostic:
    """missing-value (D007)

    Finds: a missing value in a column of a field, if the field has no replacement for missing values.
    Why:   a missing number is nan, and one nan in a batch makes the loss and all gradients nan.
    Diff:
        data:
          source: {type: csv, path: data/people.csv}
          fields:
    -       age: {column: age}
    +       age: {column: age, missing: mean}
    """
    return error("D007", span, f"field `{field}`: {message}, first in {place}", help)


def value_out_of_range(
    span: Span, field: str, message: str, place: str, help: str | None, made: tuple[Related, ...] = ()
) -> Diagnostic:
    """value-out-of-range (D008)

    Finds: a value that a field cannot have: a label that is not one of the classes, a category that no training row
           has, an infinite number, or a number that the dtype cannot hold.
    Why:   a class number that does not exist stops a run on a GPU in the middle of a step, with a message that names no
           row.
    Diff:
        data:
          fields:
    -       digit: {type: category, column: label, num_classes: 9}
    +       digit: {type: category, column: label, num_classes: 10}
    """
    return error("D008", span, f"field `{field}`: {message}, in {place}", help, made)


def not_a_whole_number(span: Span, field: str, message: str, place: str, made: tuple[Related, ...] = ()) -> Diagnostic:
    """not-a-whole-number (D009)

    Finds: a number with a fraction, such as 1.65, in a field of whole numbers.
    Why:   as integers, 0.5 and 0.9 both become 0.
    Diff:
        data:
          source: {type: csv, path: data/people.csv}
          fields:
    -       height: {column: height, dtype: int64}
    +       height: {column: height, dtype: float32}
    """
    hint = "use `dtype: float32`, or round it in the file"
    return error("D009", span, f"field `{field}`: {message}, in {place}", hint, made)


def no_statistics(
    span: Span, field: str, message: str, place: str | None = None, help: str | None = None
) -> Diagnostic:
    """no-statistics (D014)

    Finds: statistics of a field that cannot be computed from the training rows: a column has no value there, has
           infinite values or a range that is too large to be normalised, or has more different values than the field
           has classes.
    Why:   the field is normalised with these statistics, or gets its class numbers from them, so without them it has no
           values.
    Diff:
        data:
          source: {type: csv, path: data/people.csv}
          fields:
    -       city: {type: category, column: city, num_classes: 2}
    +       city: {type: category, column: city, num_classes: 2, unknown: 0}
    """
    return error("D014", span, f"field `{field}`: {message}" + (f", first in {place}" if place else ""), help)


def unread_messages(span: Span, field: str, message: str, help: str) -> Diagnostic:
    """unread-messages (D025)

    Finds: keys of the messages that the chat template does not read; or a column `tools` that the field does not name,
           although its chat template writes tools.
    Why:   text that the template does not read is not in the tokens, so the model is trained without it.
    Diff:
        data:
          fields:
    -       chat: {column: messages, template: "{% for m in messages %}{{ m.content }}. {% endfor %}"}
    +       chat: {column: messages, template: "{% for m in messages %}{{ m.name }} {{ m.content }}. {% endfor %}"}
    """
    return warning("D025", span, f"field `{field}`: {message}", help)
