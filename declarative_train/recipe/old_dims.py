"""Shapes and orders of dimensions that leave the batch out, as language 1 once had them: reported, and mended."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC

from declarative_train.components.component import Layer
from declarative_train.components.expressions.arguments import left_out
from declarative_train.components.expressions.tree import BATCH, OldForm
from declarative_train.diagnostics.diagnostic import Diagnostic, Fix
from declarative_train.recipe.checks.keys import deprecated_form
from declarative_train.source.node import Mapping, Scalar, Sequence
from declarative_train.terms.span import Span


def old_expression(scalar: Scalar, old: OldForm) -> Diagnostic:
    offset = _typed_at(scalar, old.offset, old.offset + old.length)
    fixes: tuple[Fix, ...] = ()
    if old.replacement is not None and offset is not None:
        edit = scalar._replace(template=None).place(offset, old.length)
        fixes = (Fix(edit, old.replacement, safe=True),)
    return deprecated_form(scalar.place(old.offset, max(1, old.length)), old.message, f"write `{old.today}`", fixes)


def _typed_at(scalar: Scalar, start: int, end: int) -> int | None:
    """Where a part of the text was typed; of a rendered one this is known before the first template and behind the
    last."""
    typed, text = scalar.template, scalar.text
    if typed is None or typed[:end] == text[:end]:
        return start
    behind = len(typed) - len(text) + start
    return behind if behind >= 0 and typed[behind:] == text[start:] else None


def layer_of_today(layer: Layer, typed: Mapping, spans: MappingABC[str, Span]) -> tuple[Layer, list[Diagnostic]]:
    """The layer with its fields in today's form. `typed`: its keys, templates not rendered."""
    new, found = layer.today(), list[Diagnostic]()
    for name in type(layer).model_fields if new is not layer else ():
        was, value = getattr(layer, name), getattr(new, name)
        if was == value:
            continue
        first = str(value[0])
        what = left_out(f"{name}: [{', '.join(map(str, was))}]", first, first == BATCH and was[:1] == (-1,))
        edit = _at_the_beginning(typed.get(name), first)
        hint = f"write `{name}: [{', '.join(map(str, value))}]`"
        found.append(deprecated_form(spans[name], what, hint, () if edit is None else (edit,)))
    return new, found


def _at_the_beginning(node: object, item: str) -> Fix | None:
    """One more item of a list before the others; None where the list was not typed here."""
    if not isinstance(node, Sequence):
        return None
    if not node.items:
        return Fix(node.span, f"[{item}]", safe=True)
    whole, first, last = node.span, node.items[0].span, node.items[-1].span
    is_block = (whole.end_line, whole.end_column) <= (last.end_line, last.end_column)
    if is_block:  # a list of lines, which begins with the first dash
        at, text = whole, f"- {item}\n{' ' * (whole.column - 1)}"
    else:
        at, text = first, f"{item}, "
    return Fix(Span(at.path, at.line, at.column, at.line, at.column), text, safe=True)
