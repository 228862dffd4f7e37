"""Diagnostics for exceptions of Jinja templates, at the part of the scalar that caused them.

Jinja reports only line numbers. Its lexer returns every token with its text, so adding up lengths gives the offset of
a name, or of the token at which the parser stopped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as MappingABC

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.core.span import Span
from declarative_train.source.checks.templates import (
    template_failed,
    template_forbidden,
    template_syntax,
    template_too_costly,
    template_without_value,
    undefined_name,
    unset_variable,
)
from declarative_train.source.node import Scalar
from declarative_train.source.template_names import Environment

_NOT_CLOSED = "`{opener}` is not closed"
_GOT = re.compile(r"got '(.+?)'$|unexpected '(.+?)'|[Uu]nknown tag '(.+?)'|named '(.+?)'|unexpected char '(.+?)'")
_WORDS = {
    "end of print statement": "`}}`",
    "end of statement block": "`%}`",
    "end of template": "the end",
    "name": "a name",
    "integer": "an integer",
}


def explain(problem: Exception, scalar: Scalar, names: MappingABC[str, object]) -> Diagnostic:
    """Return the diagnostic for an exception from a template. `problem`: the exception, raised when the template was
    compiled or run. `scalar`: the scalar with the template. `names`: the variables with which it was run."""
    from jinja2.exceptions import SecurityError, TemplateSyntaxError

    from declarative_train.core.sandbox import Forbidden, TooCostly
    from declarative_train.source.sandbox import NameMissing, NoValue

    whole = _template_place(scalar)
    if isinstance(problem, NameMissing):
        return _missing(problem.owner, problem.name, scalar, names)
    if isinstance(problem, TemplateSyntaxError):
        return _syntax(problem.message or "", problem.lineno, scalar)
    if isinstance(problem, TooCostly | RecursionError | OverflowError):
        message = str(problem) if isinstance(problem, TooCostly) else "this template gives a number that is too large"
        return template_too_costly(whole, message)
    if isinstance(problem, Forbidden):
        return template_forbidden(whole, str(problem), problem.help)
    if isinstance(problem, SecurityError):
        return template_forbidden(whole, f"this template is not allowed to do that: {problem}")
    if isinstance(problem, NoValue):
        return template_without_value(whole, str(problem))
    return template_failed(whole, _plain_words(problem))


def _missing(owner: object, name: object, scalar: Scalar, names: MappingABC[str, object]) -> Diagnostic:
    span = _place_of_name(scalar, str(name), after_dot=owner is not None)
    if owner is None:
        holders = (known for known, value in names.items() if known != "env" and isinstance(value, MappingABC))
        holder = next((known for known in holders if name in names[known]), None)  # type: ignore[operator]
        return undefined_name(span, str(name), None, [*names, "range"], holder)
    if owner is names.get("env"):
        assert isinstance(owner, MappingABC)
        return unset_variable(span, str(name), owner.variables if isinstance(owner, Environment) else owner)
    called = next((f"`{known}`" for known, value in names.items() if value is owner), None)
    if isinstance(owner, MappingABC):
        return undefined_name(span, str(name), called or "this mapping", owner)
    kind = {list: "a list", str: "a text", int: "an integer", float: "a number", bool: "a boolean"}
    return undefined_name(span, str(name), called or kind.get(type(owner), "this value"), ())


def _syntax(message: str, line: int, scalar: Scalar) -> Diagnostic:
    tokens = _tokens(scalar.text)
    opened = [(at, word) for at, kind, word in tokens if kind in ("variable_begin", "block_begin", "comment_begin")]
    if "unexpected end of template" in message or "Missing end of" in message or "Unexpected end of" in message:
        at, opener = opened[-1] if opened else (0, scalar.text[:2])
        return template_syntax(scalar.place(at, 2), _NOT_CLOSED.format(opener=opener.strip("-+ ")), "close it")
    got = _GOT.search(message)
    typed = next((group for group in got.groups() if group), None) if got else None
    first_of_line = len("".join(scalar.text.splitlines(keepends=True)[: line - 1]))
    at, length = (opened[-1][0] if opened else 0), 2
    if typed in ("end of print statement", "end of statement block"):
        closers = [
            place for place, kind, _ in tokens if kind in ("variable_end", "block_end") and place >= first_of_line
        ]
        at = closers[0] if closers else at
    elif typed is not None:
        inside = [place for place, _, word in tokens if place >= first_of_line and word == typed]
        found = inside[-1] if inside else scalar.text.find(typed, first_of_line)
        at, length = (found, len(typed)) if found >= 0 else (at, length)
    if message.startswith(("No filter named", "No test named")):
        from declarative_train.source.sandbox import FILTERS

        kind = "filter" if "filter" in message else "test"
        hint = did_you_mean(typed or "", FILTERS) if kind == "filter" else None
        return template_syntax(scalar.place(at, length), f"there is no {kind} `{typed}`", hint)
    return template_syntax(scalar.place(at, length), f"this is not a template: {_in_words(message)}")


def _in_words(message: str) -> str:
    text = re.sub(r" at \d+$", "", message.rstrip("."))
    for jinja, words in _WORDS.items():
        text = text.replace(f"'{jinja}'", words)
    text = text.replace("expected token ", "expected ")
    text = re.sub(r"'([^']+)'", r"`\1`", text)
    return text[:1].lower() + text[1:]


def _plain_words(problem: Exception) -> str:
    if isinstance(problem, ZeroDivisionError):
        return "a division by zero"
    text = str(problem).strip() or type(problem).__name__
    text = re.sub(r"'(\w+)' and '(\w+)'", r"\1 and \2", text)
    return text[:1].lower() + text[1:]


def _tokens(text: str) -> list[tuple[int, str, str]]:
    """Return (offset, kind, text) of every Jinja token before the first lexical error."""
    from jinja2 import Environment
    from jinja2.exceptions import TemplateSyntaxError

    found: list[tuple[int, str, str]] = []
    at = 0
    try:
        for _, kind, word in Environment(keep_trailing_newline=True).lexer.tokeniter(text, None):
            place = text.find(word, at)
            at = place if place >= 0 else at
            found.append((at, kind, word))
            at += len(word)
    except TemplateSyntaxError:
        pass
    return found


def _place_of_name(scalar: Scalar, name: str, *, after_dot: bool) -> Span:
    """Return the span of `name` in a template. `after_dot=False`: search a variable of this name. `after_dot=True`:
    search the name after a dot (`vars.name`) or in brackets (`vars["name"]`). If it is not found, return the span of
    the template."""
    tokens = [token for token in _tokens(scalar.text) if token[1] != "whitespace"]
    for before, (at, kind, word) in zip([(0, "", ""), *tokens], tokens, strict=False):
        dotted = before[2] == "."
        if kind == "name" and word == name and dotted == after_dot:
            return scalar.place(at, len(name))
        if after_dot and kind in ("string", "integer") and word.strip("\"'") == name and before[2] == "[":
            return scalar.place(at, len(word))
    return _template_place(scalar)


def _template_place(scalar: Scalar) -> Span:
    """Return the span of the `{{ }}` in a scalar. If the scalar has several, return the span of the whole scalar."""
    tokens = _tokens(scalar.text)
    starts = [at for at, kind, _ in tokens if kind in ("variable_begin", "block_begin")]
    ends = [at + len(word.rstrip()) for at, kind, word in tokens if kind in ("variable_end", "block_end")]
    if len(starts) != 1 or len(ends) != 1:
        return scalar.span
    first, last = scalar.place(starts[0]), scalar.place(ends[0] - 1)
    return Span(first.path, first.line, first.column, last.line, last.end_column)
