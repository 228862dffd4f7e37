"""Messages about durations.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.core.duration import interpret_duration
from declarative_train.core.span import Span


def bare_duration(span: Span, name: str, number: str, units: Sequence[str]) -> Diagnostic:
    """bare-duration (R001)

    Finds: a duration without a unit.
    Why:   `every: 100` may mean 100 steps, epochs or samples.
    Bad:
        evaluation: {every: 1}
    Good:
        evaluation: {every: 1 epoch}
    """
    ways = [
        f"`{number}%`" if unit == "%" else f"`{number} {unit[:-1] if number == '1' else unit}`"
        for unit in units
        if unit != "%" or float(number) <= 100
    ]
    if "%" in units and 0 < float(number) < 1:  # other frameworks write shares of the run as fractions
        ways = [f"`{100 * float(number):g}%`", *(way for way in ways if not way.endswith("%`"))]
    either = f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else ways[0]
    return error("R001", span, f"`{name}` is {number} without a unit", f"write {either}")


def bad_duration(span: Span, name: str, problem: str, typed: str = "", units: Sequence[str] = ()) -> Diagnostic:
    """bad-duration (R002)

    Finds: a duration that cannot be parsed, or whose unit the key does not accept.
    Why:   a warm-up in hours, for example, has no exact number of steps, and a time limit in epochs no exact time.
    Diff:
        training:
    -     max_time: 5 epochs
    +     max_time: 2 hours
    """
    # `typed`: the text in the recipe, possibly in another tool's notation; `units`: those of the key.
    meant = interpret_duration(typed, units)
    if meant is None:
        return error("R002", span, f"`{name}`: {problem}")
    fixes = (Fix(span, str(meant), safe=True),)
    return error(
        "R002",
        span,
        f"`{name}` is `{typed}`, which is not a valid duration for this key",
        f"write `{meant}`",
        fixes=fixes,
    )
