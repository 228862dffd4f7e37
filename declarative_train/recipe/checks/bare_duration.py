"""bare-duration (R001)

Finds: a number without a unit where a duration is wanted.
Why:   `every: 100` may mean steps, epochs or samples, and each is right for someone.
Bad:
    evaluation: {every: 1}
Good:
    evaluation: {every: 1 epoch}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def bare_duration(span: Span, name: str, number: str, units: Sequence[str]) -> Diagnostic:
    ways = [
        f"`{number}%`" if unit == "%" else f"`{number} {unit[:-1] if number == '1' else unit}`"
        for unit in units
        if unit != "%" or float(number) <= 100
    ]
    if "%" in units and 0 < float(number) < 1:  # other frameworks write a share of the run
        ways = [f"`{100 * float(number):g}%`", *(way for way in ways if not way.endswith("%`"))]
    either = f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else ways[0]
    return error("R001", span, f"`{name}` is {number} without a unit", f"write {either}")
