"""bad-duration (R002)

Finds: a duration that cannot be read, or in a unit that does not fit the key.
Why:   a warm-up in hours or a time limit in epochs has no exact meaning.
Bad:
    training:
      max_time: 5 epochs
Good:
    training:
      max_time: 2 hours
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.terms.duration import meant_duration
from declarative_train.terms.span import Span


def bad_duration(span: Span, name: str, problem: str, typed: str = "", units: Sequence[str] = ()) -> Diagnostic:
    """`typed`: the text that was read, which may be in another tool's form; `units`: those of the key."""
    meant = meant_duration(typed, units)
    if meant is None:
        return error("R002", span, f"`{name}`: {problem}")
    fixes = (Fix(span, str(meant), safe=True),)
    return error("R002", span, f"`{name}` is `{typed}`, which is not a duration here", f"write `{meant}`", fixes=fixes)
