"""empty-value (Y009)

Finds: a key or a list item without a value, often because the lines meant to be inside it are not indented.
Why:   whether nothing, zero or the default was meant cannot be known; `null` says that a key is to be removed.
Bad:
    meta:
      owner:
      team: vision
Good:
    meta:
      owner: me
      team: vision
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, Related, error
from declarative_train.terms.span import Span


def empty_value(key: Span, name: str, following: tuple[str, Span] | None, *, flow: bool) -> Diagnostic:
    """`following`: the next key of the same mapping, when it begins a line of its own below this one."""
    if following is None:
        way_out = (
            f"give `{name}` a value; a list of names is written `[{name}, ...]`" if flow else f"give `{name}` a value"
        )
        return error("Y009", key, f"`{name}` has no value", way_out)
    other, span = following
    return error(
        "Y009",
        key,
        f"`{name}` has no value: `{other}` on line {span.line} stands beside it, not inside",
        f"give `{name}` a value, or indent what belongs inside it",
        (Related(span, f"not inside `{name}`"),),
    )


def decimal_comma(span: Span, text: str) -> Diagnostic:
    """`lr: 0,001` between brackets: a number, and a key `001` without a value."""
    point = text.replace(",", ".")
    return error("Y009", span, f"`{text}` is two entries: a comma ends a value", f"write `{point}` for the number")


def cut_tuple(span: Span, text: str, written: str) -> Diagnostic:
    """Python's `(3, 3)` between brackets of YAML, where a comma ends a value."""
    message = f"`{text}` is cut at its commas: a list has square brackets"
    return error("Y009", span, message, f"write `{written}`", fixes=(Fix(span, written, safe=True),))


def cut_expression(span: Span, text: str, written: str) -> Diagnostic:
    message = "between brackets of YAML this text is cut at its commas: a formula with a comma needs quotes there"
    return error("Y009", span, message, f"write `{written}`", fixes=(Fix(span, written, safe=True),))


def empty_item(dash: Span) -> Diagnostic:
    return error("Y009", dash, "this list item has no value", "give it a value, or take the `-` out")


def empty_option(span: Span, name: str) -> Diagnostic:
    return error(
        "Y009", span, f"`{name}` is set to nothing", f'`{name}=null` removes it, `{name}=""` is the empty text'
    )
