"""Formats of diagnostics for other programs: JSON, GitHub workflow commands, JUnit XML, and SARIF 2.1.0 for code
scanning services (https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Severity
from declarative_train.core.diagnostics.rules import Rule
from declarative_train.core.machine import own_version
from declarative_train.core.span import Span
from declarative_train.core.untrusted import one_line

JSON_VERSION = 1

_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.UNVERIFIED: "notice"}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def json_text(diagnostics: Sequence[Diagnostic]) -> str:
    """Return the diagnostics as a JSON object. Its `version` increases when a key changes its meaning or is removed,
    not when a key is added."""
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
    """Return diagnostics as GitHub workflow commands, which GitHub shows at the lines of a pull request.
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
        properties = ",".join(f"{key}={_escape(str(value), ':,')}" for key, value in values.items())
        message = diagnostic.message if diagnostic.help is None else f"{diagnostic.message}\nhelp: {diagnostic.help}"
        lines.append(f"::{_GITHUB[diagnostic.severity]} {properties}::{_escape(message)}\n")
    return "".join(lines)


def _escape(text: str, also: str = "") -> str:
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def junit(diagnostics: Sequence[Diagnostic], texts: Mapping[str, str]) -> str:
    """Return diagnostics as JUnit XML with one suite for each file. `texts`: the text of each checked file by path.

    An error is a failed test case. A warning is a skipped one, because a failure would stop a CI job, and `dtrain lint`
    succeeds with warnings. A file without diagnostics is a passed test case."""
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


SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.UNVERIFIED: "note"}


def sarif(diagnostics: Sequence[Diagnostic], rules: Mapping[str, Rule]) -> str:
    codes = sorted({diagnostic.code for diagnostic in diagnostics})
    driver = {"name": "dtrain", "version": own_version(), "rules": [_rule(code, rules.get(code)) for code in codes]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(diagnostic, codes.index(diagnostic.code)) for diagnostic in diagnostics],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _rule(code: str, rule: Rule | None) -> dict[str, object]:
    if rule is None:
        return {"id": code}
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.finds},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.page},
    }


def _result(diagnostic: Diagnostic, rule_index: int) -> dict[str, object]:
    message = diagnostic.message if diagnostic.help is None else f"{diagnostic.message}\nhelp: {diagnostic.help}"
    result: dict[str, object] = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": message},
        "locations": [_location(diagnostic.span)],
    }
    if diagnostic.related:
        result["relatedLocations"] = [
            {"id": number, **_location(related.span), "message": {"text": related.message}}
            for number, related in enumerate(diagnostic.related, 1)
        ]
    if diagnostic.fixes and not any(_is_option(fix.span.path) for fix in diagnostic.fixes):
        result["fixes"] = [_fix(diagnostic.help, diagnostic.fixes)]
    return result


def _is_option(path: str) -> bool:
    """Return whether the path of a span is an option (`--set a=1`) or standard input, and not a file."""
    return path.startswith(("--", "<"))


def _location(span: Span) -> dict[str, object]:
    if _is_option(span.path):
        return {"logicalLocations": [{"fullyQualifiedName": f"{span.path}:{span.line}:{span.column}"}]}
    return {"physicalLocation": {"artifactLocation": _artifact(span.path), "region": _region(span)}}


def _artifact(path: str) -> dict[str, object]:
    return {"uri": quote(path.replace("\\", "/").removeprefix("./"))}


def _region(span: Span) -> dict[str, object]:
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def _fix(help: str | None, fixes: Sequence[Fix]) -> dict[str, object]:
    paths = dict.fromkeys(fix.span.path for fix in fixes)
    changes = [
        {
            "artifactLocation": _artifact(path),
            "replacements": [
                {"deletedRegion": _region(fix.span), "insertedContent": {"text": fix.replacement}}
                for fix in fixes
                if fix.span.path == path
            ],
        }
        for path in paths
    ]
    return {"description": {"text": help or "fix it"}, "artifactChanges": changes}
