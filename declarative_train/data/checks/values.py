"""Messages on the values of columns.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.core.span import Span


def column_does_not_fit(span: Span, field: str, message: str, help: str | None) -> Diagnostic:
    """column-does-not-fit (D006)

    Finds: a column of a type or shape that a field cannot use.
    Why:   text is not a number, and values of different shapes make no tensor.
    Diff:
        data:
          fields:
    -       pixels: {columns: "p*", shape: [1, 8, 9]}
    +       pixels: {columns: "p*", shape: [1, 8, 8]}
    """
    return error("D006", span, f"field `{field}`: {message}", help)


def missing_value(span: Span, field: str, message: str, place: str, help: str | None) -> Diagnostic:
    """missing-value (D007)

    Finds: missing values in the columns of a field that sets no value for them.
    Why:   a single nan makes every gradient nan.
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

    Finds: a label outside the classes, a value that no training row has, a number that the dtype cannot hold.
    Why:   a class that does not exist stops a GPU in the middle of a step, with a message that names no row.
    Diff:
        data:
          fields:
    -       digit: {type: category, column: label, num_classes: 9}
    +       digit: {type: category, column: label, num_classes: 10}
    """
    return error("D008", span, f"field `{field}`: {message}, in {place}", help, made)


def not_a_whole_number(span: Span, field: str, message: str, place: str, made: tuple[Related, ...] = ()) -> Diagnostic:
    """not-a-whole-number (D009)

    Finds: fractions in a field of whole numbers.
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

    Finds: statistics that cannot be computed from the training rows: no value there, infinite ones, too many classes.
    Why:   a normalisation or a vocabulary without values gives nan.
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

    Finds: keys of messages that the chat template does not read, and a column `tools` that the field does not give to
           its template, although the template writes tools.
    Why:   text that a template does not read is not in the tokens: the model trains without it.
    Diff:
        data:
          fields:
    -       chat: {column: messages, template: "{% for m in messages %}{{ m.content }}. {% endfor %}"}
    +       chat: {column: messages, template: "{% for m in messages %}{{ m.name }} {{ m.content }}. {% endfor %}"}
    """
    return warning("D025", span, f"field `{field}`: {message}", help)
