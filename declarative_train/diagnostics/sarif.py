"""Diagnostics as SARIF 2.1.0, which code scanning services read.
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import quote

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, Severity
from declarative_train.diagnostics.rules import Rule
from declarative_train.terms.span import Span

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.UNVERIFIED: "note"}


def sarif(diagnostics: Sequence[Diagnostic], rules: Mapping[str, Rule]) -> str:
    codes = sorted({diagnostic.code for diagnostic in diagnostics})
    driver = {"name": "dtrain", "version": _version(), "rules": [_rule(code, rules.get(code)) for code in codes]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(diagnostic, codes.index(diagnostic.code)) for diagnostic in diagnostics],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _version() -> str:
    try:
        return version("declarative_train")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"


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
    """`--set a=1` and standard input are not files."""
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
    return {"description": {"text": help or "mend it"}, "artifactChanges": changes}
