"""Diagnostics for other programs: JSON, GitHub workflow commands, JUnit XML. SARIF has a module of its own."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from declarative_train.diagnostics.diagnostic import Diagnostic, Severity
from declarative_train.diagnostics.text import one_line
from declarative_train.terms.span import Span

JSON_VERSION = 1

_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.UNVERIFIED: "notice"}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def json_text(diagnostics: Sequence[Diagnostic]) -> str:
    """An object with `version`; it grows when a key changes its meaning or goes away, not when one is added."""
    counts = Counter(str(diagnostic.severity) for diagnostic in diagnostics)
    document = {
        "version": JSON_VERSION,
        "counts": {str(severity): counts[str(severity)] for severity in Severity},
        "diagnostics": [_as_json(diagnostic) for diagnostic in diagnostics],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _as_json(diagnostic: Diagnostic) -> dict[str, object]:
    return {
        "code": diagnostic.code,
        "severity": str(diagnostic.severity),
        "message": diagnostic.message,
        "help": diagnostic.help,
        **_place(diagnostic.span),
        "related": [{**_place(related.span), "message": related.message} for related in diagnostic.related],
        "fixes": [{**_place(fix.span), "replacement": fix.replacement, "safe": fix.safe} for fix in diagnostic.fixes],
    }


def _place(span: Span) -> dict[str, object]:
    return {
        "path": span.path,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def github(diagnostics: Iterable[Diagnostic]) -> str:
    """Workflow commands, which GitHub shows at the line of a pull request.
    https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands"""
    lines = []
    for diagnostic in diagnostics:
        span = diagnostic.span
        values: dict[str, object] = {"title": f"dtrain {diagnostic.code}", "file": span.path, "line": span.line}
        values["col"] = span.column
        if span.end_line == span.line:  # GitHub shows columns of one line only
            values["endColumn"] = max(span.end_column, span.column)
        else:
            values["endLine"] = span.end_line
        properties = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in values.items())
        message = diagnostic.message if diagnostic.help is None else f"{diagnostic.message}\nhelp: {diagnostic.help}"
        lines.append(f"::{_GITHUB[diagnostic.severity]} {properties}::{_escaped(message)}\n")
    return "".join(lines)


def _escaped(text: str, also: str = "") -> str:
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def junit(diagnostics: Sequence[Diagnostic], texts: Mapping[str, str]) -> str:
    """A suite for each file; each of its errors is a failed case, what is not an error a skipped one (a failure would
    stop what lint lets pass), and a file without any a passed case."""
    by_path: dict[str, list[Diagnostic]] = {path: [] for path in texts if not path.startswith("--")}
    for diagnostic in diagnostics:
        by_path.setdefault(diagnostic.span.path, []).append(diagnostic)
    tests = sum(max(len(found), 1) for found in by_path.values())
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<testsuites name="dtrain lint" tests="{tests}" failures="{_failures(diagnostics)}" errors="0">',
    ]
    for path, found in by_path.items():
        name = quoteattr(_xml(path))
        failures = _failures(found)
        counts = f'tests="{max(len(found), 1)}" failures="{failures}" skipped="{len(found) - failures}" errors="0"'
        lines.append(f"  <testsuite name={name} {counts}>")
        if not found:
            lines.append(f"    <testcase name={name} classname={name} />")
        lines += [_case(diagnostic, name) for diagnostic in found]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _failures(diagnostics: Sequence[Diagnostic]) -> int:
    return sum(diagnostic.is_error for diagnostic in diagnostics)


def _case(diagnostic: Diagnostic, name: str) -> str:
    span = diagnostic.span
    message = quoteattr(_xml(one_line(diagnostic.message)))
    body = f"{span}: {diagnostic.severity}[{diagnostic.code}] {diagnostic.message}"
    body = body if diagnostic.help is None else f"{body}\nhelp: {diagnostic.help}"
    judged = f"failure message={message} type={quoteattr(str(diagnostic.severity))}"
    tag, opened = ("failure", judged) if diagnostic.is_error else ("skipped", f"skipped message={message}")
    return (
        f"    <testcase name={quoteattr(f'{diagnostic.code}:{span.line}:{span.column}')} classname={name}>\n"
        f"      <{opened}>{escape(_xml(body))}</{tag}>\n"
        "    </testcase>"
    )


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
