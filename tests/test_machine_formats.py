"""SARIF, JUnit and GitHub lines of every mistake in tests/cases, by the rules of those who read them.

DTRAIN_SARIF_SCHEMA=sarif-schema-2.1.0.json pytest tests/test_machine_formats.py    with the schema of OASIS, too
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from declarative_train.app.api.compiling import Linted
from declarative_train.app.commands import lint
from declarative_train.app.commands.lint import lint_all, looks_like_recipe
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Related, Severity, error
from declarative_train.core.diagnostics.render import Format, render
from declarative_train.core.span import Span
from tests.linted import CASES, dtrain
from tests.sarif_schema import SCHEMA

OFFICIAL = os.environ.get("DTRAIN_SARIF_SCHEMA")
FOUND: list[Linted] = []
HARD = "a b/ünï?#[1]:%2,é\n.yaml"  # a path that every format must escape


@cache
def written(format: Format) -> str:
    """All the cases in one process, and an option that is wrong; what is found is written in each format."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lint, "lint_all", found_once)
        patch.chdir(CASES)
        return dtrain("lint", "err", "ok", "--static", "--set", "training.epoch=3", "--format", format).out


def found_once(*words: Any) -> Linted:
    if not FOUND:
        FOUND.append(lint_all(*words))
    return FOUND[0]


def hard() -> list[Diagnostic]:
    place = Span(HARD, 2, 3, 3, 1)
    text = "a,b:c%d\r\n<é🙂>&\"'\x07]]>"
    return [error("Z999", place, text, text, (Related(place, text),), (Fix(place, text, True),))]


def sarif_logs() -> list[Any]:
    return [json.loads(text) for text in (written("sarif"), render(hard(), {}, format="sarif"))]


def test_sarif_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for log in sarif_logs():
        jsonschema.validate(log, SCHEMA)
        (run,) = log["runs"]
        rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
        assert len(rules) == len(set(rules))
        assert {result["ruleId"] for result in run["results"]} == set(rules)
        assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
        for region in regions(run["results"]):
            start, end = (region["startLine"], region["startColumn"]), (region["endLine"], region["endColumn"])
            assert start <= end
    assert len(sarif_logs()[0]["runs"][0]["results"]) > 200


def regions(node: Any) -> list[dict[str, int]]:
    inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    found = [region for each in inside for region in regions(each)]
    return [*found, node] if isinstance(node, dict) and "startLine" in node else found


@pytest.mark.parametrize(
    "spoil",
    [
        lambda log: log.pop("version"),
        lambda log: log["runs"][0].update(columnKind="bytes"),
        lambda log: log["runs"][0]["results"][0].update(level="fatal"),
        lambda log: log["runs"][0]["results"][0].pop("message"),
        lambda log: log["runs"][0]["results"][0].update(colour="red"),
        lambda log: log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"].update(startLine=0),
        lambda log: log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"].update(
            uri="a b"
        ),
        lambda log: log["runs"][0]["results"][0]["fixes"][0].update(artifactChanges=[]),
    ],
)
def test_the_schema_refuses(spoil: Any) -> None:
    log = json.loads(render(hard(), {}, format="sarif"))
    spoil(log)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(log, SCHEMA)


@pytest.mark.skipif(OFFICIAL is None, reason="DTRAIN_SARIF_SCHEMA does not name the schema of OASIS")
def test_the_official_schema_agrees() -> None:
    schema = json.loads(Path(str(OFFICIAL)).read_text("utf-8"))
    for log in sarif_logs():
        jsonschema.Draft7Validator(schema, format_checker=jsonschema.FormatChecker()).validate(log)


JUNIT: dict[str, tuple[set[str], set[str], list[str]]] = {
    # element -> attributes that must be there, that may be there, and what may stand in it: the schema of Jenkins
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors", "disabled"}, ["testsuite"]),
    "testsuite": (
        {"name", "tests"},
        {"failures", "errors", "time", "disabled", "skipped", "timestamp", "hostname", "id", "package"},
        ["testcase"],
    ),
    "testcase": ({"name"}, {"assertions", "time", "classname", "status"}, ["failure", "skipped"]),
    "failure": (set(), {"type", "message"}, []),
    "skipped": (set(), {"message"}, []),
}


@pytest.mark.parametrize("text", [lambda: written("junit"), lambda: render(hard(), {}, format="junit")])
def test_junit_is_valid(text: Any) -> None:
    root = ElementTree.fromstring(text())
    assert root.tag == "testsuites"
    for element in root.iter():
        required, optional, inside = JUNIT[element.tag]
        assert required <= set(element.attrib) <= required | optional
        assert all(child.tag in inside for child in element)
    for counted in [root, *root.iter("testsuite")]:
        assert int(counted.attrib["tests"]) == len(list(counted.iter("testcase")))
        assert int(counted.attrib["failures"]) == len(list(counted.iter("failure")))
        assert int(counted.attrib.get("skipped", "0")) in (0, len(list(counted.iter("skipped"))))


def test_junit_fails_only_what_lint_does_not_let_pass() -> None:
    (error,) = hard()
    for severity, tag in ((Severity.ERROR, "failure"), (Severity.WARNING, "skipped"), (Severity.UNVERIFIED, "skipped")):
        root = ElementTree.fromstring(render([error._replace(severity=severity)], {}, format="junit"))
        assert [each.tag for case in root.iter("testcase") for each in case] == [tag]


def test_junit_has_a_suite_for_each_file() -> None:
    suites = ElementTree.fromstring(written("junit")).findall("testsuite")
    names = [suite.attrib["name"] for suite in suites]
    assert len(names) == len(set(names))
    recipes = {
        f"err/{path.name}"
        for path in (CASES / "err").glob("*.yaml")
        if looks_like_recipe(path.read_text("utf-8", "replace"))
    }
    assert len(recipes) > 300
    assert recipes <= set(names)


GITHUB = re.compile(
    r"::(?:error|warning|notice) title=(?P<title>[^:,\r\n]*),file=(?P<file>[^:,\r\n]*),line=\d+,col=\d+,"
    r"(?:endColumn|endLine)=\d+::(?P<message>[^\r\n]+)"
)


@pytest.mark.parametrize("text", [lambda: written("github"), lambda: render(hard(), {}, format="github")])
def test_github_reads_each_line(text: Any) -> None:
    lines = text().split("\n")
    assert lines.pop() == ""
    for line in lines:
        found = GITHUB.fullmatch(line)
        assert found, line
        assert not re.search("%(?!25|0D|0A|3A|2C)", found["title"] + found["file"] + found["message"])


def test_github_escapes_what_it_would_act_on() -> None:
    found = GITHUB.fullmatch(render(hard(), {}, format="github").rstrip("\n"))
    assert found is not None
    unescaped = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}
    text = {
        part: re.sub("%(?:0D|0A|3A|2C|25)", lambda hit: unescaped[hit[0]], found[part]) for part in found.groupdict()
    }
    assert text["file"] == HARD
    assert text["message"] == f"{hard()[0].message}\nhelp: {hard()[0].help}"
