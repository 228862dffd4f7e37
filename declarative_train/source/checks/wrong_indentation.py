"""wrong-indentation (Y008)

Finds: a line whose indentation matches no line above it, a line that is indented below a key which already has a value,
       or a list item among the keys of a mapping, or a key among the items of a list.
Why:   in YAML, the indentation decides to which mapping or list a line belongs.
Diff:
    meta:
-       owner: me
+     owner: me
      team: vision
"""

from __future__ import annotations

from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.core.span import Span


def below_a_value(span: Span, name: str, above: Span, text: str) -> Diagnostic:
    message = f"`{name}` is indented below `{text}`, which already has a value"
    hint = f"indent it like line {above.line}, by {format_count(above.column - 1, 'space')}"
    return error("Y008", span, message, hint, (Related(above, "this one has its value"),))


def fits_no_line(span: Span, found: int, wanted: tuple[tuple[int, str], ...]) -> Diagnostic:
    """Return the diagnostic for a line indented by `found` columns. `wanted`: the possible indentations, each with the
    text of the mapping or list that begins there."""
    ways = " or ".join(f"{spaces} to align with {what}" for spaces, what in wanted[:3])
    message = f"this line is indented by {format_count(found, 'space')}, which fits no line above"
    return error("Y008", span, message, f"indent it by {ways}" if ways else "indent it like the lines it belongs to")


def item_among_keys(span: Span, item: bool) -> Diagnostic:
    if item:
        return error(
            "Y008", span, "a list item (`- `) is among the keys of a mapping", "indent it below the key it is for"
        )
    return error(
        "Y008", span, "a key is among the items of a list", "begin the line with `- `, or indent it differently"
    )
