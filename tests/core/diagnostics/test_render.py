"""How diagnostics look, in every format."""

from __future__ import annotations

import json
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Related, error, unverified, warning
from declarative_train.core.diagnostics.render import FORMATS, arrange, render
from declarative_train.core.diagnostics.rules import Rule
from declarative_train.core.span import Span


def at(line: int, column: int, length: int = 1, path: str = "a.yaml") -> Span:
    return Span(path, line, column, line, column + length)


TEXT = "d_model: 512\n\nhead:\n  inputs: block_5\n"
ONE = error(
    "G004",
    at(4, 11, 7),
    "`head` takes (B, T, 384) but `block_5` gives (B, T, 512)",
    "set head.d_model to 512",
    (Related(at(1, 10, 3), "512 comes from here"),),
)


def full(diagnostic: Diagnostic, text: str, **options: bool) -> list[str]:
    return render([diagnostic], {"a.yaml": text}, format="full", **options).split("\n")


def test_in_full() -> None:
    assert render([ONE], {"a.yaml": TEXT}) == (
        "a.yaml:4:11: error[G004]: `head` takes (B, T, 384) but `block_5` gives (B, T, 512)\n"
        "  |\n"
        "4 |   inputs: block_5\n"
        "  |           ^^^^^^^\n"
        "1 | d_model: 512\n"
        "  |          --- 512 comes from here\n"
        "help: set head.d_model to 512\n"
    )


def test_the_gutter_is_as_wide_as_the_longest_number() -> None:
    text = "x\n" * 13 + "    inputs: block_5\n"
    found = full(error("G004", at(14, 13, 7), "m", None, (Related(at(6, 1), "here"),)), text)
    assert found[1:7] == ["   |", "14 |     inputs: block_5", "   |             ^^^^^^^", " 6 | x", "   | - here", ""]


def test_a_related_place_in_another_file() -> None:
    diagnostic = error(
        "W001", at(1, 1), "m", related=(Related(at(1, 4, 2, "b.yaml"), "there"), Related(at(9, 9, 1, "c"), "gone"))
    )
    lines = render([diagnostic], {"a.yaml": "x: 1\n", "b.yaml": "yy: zz\n"}).split("\n")
    assert lines[4] == " --> b.yaml:1:4"
    assert lines[5:7] == ["1 | yy: zz", "  |    -- there"]
    assert lines[7] == "  = c:9:9: gone"


def test_diagnostics_are_sorted_and_parted() -> None:
    found = render([error("B", at(2, 1), "second"), error("A", at(1, 3), "first")], {"a.yaml": "abc\ndef\n"})
    assert found.index("first") < found.index("second")
    assert "\n\na.yaml:2:1" in found


@pytest.mark.parametrize(
    ("line", "span", "shown", "under"),
    [
        ("a: b", at(1, 4), "a: b", "   ^"),
        ("\ta:\tb", at(1, 5), "    a:  b", "        ^"),
        ("名前: x", at(1, 5), "名前: x", "      ^"),
        ("a: 名前", at(1, 4, 2), "a: 名前", "   ^^^^"),
        ("e\u0301: x", at(1, 5), "e\u0301: x", "   ^"),
        ("a:", at(1, 3, 0), "a:", "  ^"),
        ("a: b", at(1, 99), "a: b", "    ^"),
        ("a: \x1b[31mb", at(1, 4), "a: \N{REPLACEMENT CHARACTER}[31mb", "   ^"),
        ("a: bcd", Span("a.yaml", 1, 4, 3, 2), "a: bcd", "   ^^^"),
    ],
)
def test_the_caret_stands_under_the_value(line: str, span: Span, shown: str, under: str) -> None:
    found = full(error("X", span, "m"), line + "\nmore\nmore\n")
    assert found[2] == f"1 | {shown}"
    assert found[3] == f"  | {under}"


def test_of_a_long_line_the_part_around_the_caret_is_shown() -> None:
    found = full(error("X", at(1, 501, 4), "m"), "x" * 500 + "HERE" + "y" * 500)
    assert len(found[2]) < 180
    assert found[2].startswith("1 | ...x")
    assert found[2].endswith("y...")
    column = found[3].index("^")
    assert found[2][column : column + 4] == "HERE"
    assert found[3].count("^") == 4


def test_a_text_that_is_not_known_leaves_the_snippet_out() -> None:
    assert render([error("X", at(1, 1, path="nowhere"), "m", "h")], {}) == "nowhere:1:1: error[X]: m\nhelp: h\n"
    assert render([error("X", at(7, 1), "m")], {"a.yaml": "x\n"}) == "a.yaml:7:1: error[X]: m\n"


def test_a_text_that_was_not_given_is_read(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("a: 1\n")
    assert "1 | a: 1" in render([error("X", at(1, 4, path=str(path)), "m")], {})


def test_an_option_is_its_own_text() -> None:
    found = render([error("X", at(1, 11, 3, "--set a.b=abc"), "m")], {})
    assert found.split("\n")[2:4] == ["1 | --set a.b=abc", "  |           ^^^"]


def test_messages_hold_nothing_that_a_terminal_would_obey() -> None:
    found = render([error("X", at(1, 1), "a\x1b[31m\nb", "c\x07")], {"a.yaml": "\x1b]0;x\x07\n"})
    assert "\x1b" not in found
    assert "\x07" not in found
    assert "a\N{REPLACEMENT CHARACTER}[31m b" in found


def test_color() -> None:
    found = render([warning("X", at(1, 1), "m", "h")], {"a.yaml": "x\n"}, color=True)
    assert "\033[1;33mwarning[X]\033[0m" in found
    assert "\033[1;33m^\033[0m" in found
    assert "\033[1;32mhelp\033[0m: h" in found


def test_concise() -> None:
    diagnostics = [unverified("D001", at(2, 1), "a remote file\nis not looked at"), ONE]
    assert render(diagnostics, {}, format="concise") == (
        "a.yaml:2:1: needs verification[D001] a remote file is not looked at\n"
        "a.yaml:4:11: error[G004] `head` takes (B, T, 384) but `block_5` gives (B, T, 512)\n"
    )


def test_json() -> None:
    diagnostic = warning("Y021", at(1, 4, 3), "m", "h", (Related(at(2, 1), "r"),), (Fix(at(1, 4, 3), "10", True),))
    found = json.loads(render([diagnostic], {}, format="json"))
    assert found == {
        "version": 1,
        "counts": {"error": 0, "warning": 1, "needs verification": 0},
        "diagnostics": [
            {
                "code": "Y021",
                "severity": "warning",
                "message": "m",
                "help": "h",
                "path": "a.yaml",
                "line": 1,
                "column": 4,
                "end_line": 1,
                "end_column": 7,
                "related": [{"path": "a.yaml", "line": 2, "column": 1, "end_line": 2, "end_column": 2, "message": "r"}],
                "fixes": [
                    {
                        "path": "a.yaml",
                        "line": 1,
                        "column": 4,
                        "end_line": 1,
                        "end_column": 7,
                        "replacement": "10",
                        "safe": True,
                    }
                ],
            }
        ],
    }


def test_github() -> None:
    diagnostics = [
        error("A001", at(1, 4, 3, "a,b:c.yaml"), "50% of\nit", "h"),
        unverified("B001", Span("x", 1, 2, 3, 4), "m"),
    ]
    assert render(diagnostics, {}, format="github") == (
        "::error title=dtrain A001,file=a%2Cb%3Ac.yaml,line=1,col=4,endColumn=7::50%25 of%0Ait%0Ahelp: h\n"
        "::notice title=dtrain B001,file=x,line=1,col=2,endLine=3::m\n"
    )


def test_sarif() -> None:
    rule = Rule("Y021", "leading-zero", "finds.", "why.", "bad\n", "good\n", "page", "path")
    diagnostics = [
        warning("Y021", at(1, 4, 3, "a b.yaml"), "m", "h", (Related(at(2, 1), "r"),), (Fix(at(1, 4, 3), "10", True),)),
        error("M006", at(1, 7, 1, "--set x"), "m"),
        unverified("D001", at(1, 1), "m"),
    ]
    found = json.loads(render(diagnostics, {}, format="sarif", rules={"Y021": rule}))
    assert found["version"] == "2.1.0"
    (run,) = found["runs"]
    assert run["columnKind"] == "unicodeCodePoints"
    rules = run["tool"]["driver"]["rules"]
    assert [each["id"] for each in rules] == ["D001", "M006", "Y021"]
    assert rules[2]["name"] == "leading-zero"
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    by_code = {result["ruleId"]: result for result in run["results"]}
    assert [by_code[code]["level"] for code in ("M006", "Y021", "D001")] == ["error", "warning", "note"]
    place = by_code["Y021"]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b.yaml"
    assert place["region"] == {"startLine": 1, "startColumn": 4, "endLine": 1, "endColumn": 7}
    assert by_code["Y021"]["relatedLocations"][0]["message"]["text"] == "r"
    change = by_code["Y021"]["fixes"][0]["artifactChanges"][0]
    assert change["replacements"][0]["insertedContent"]["text"] == "10"
    assert "physicalLocation" not in by_code["M006"]["locations"][0]


def test_junit() -> None:
    found = render([error("A001", at(1, 2), 'a < "b"\x00', "h")], {"a.yaml": "x\n", "ok.yaml": "y\n"}, format="junit")
    root = ElementTree.fromstring(found)
    assert (root.get("tests"), root.get("failures")) == ("2", "1")
    suites = {suite.get("name"): suite for suite in root}
    failure = suites["a.yaml"].find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == 'a < "b"\N{REPLACEMENT CHARACTER}'
    assert "a.yaml:1:2: error[A001]" in (failure.text or "")
    assert suites["ok.yaml"].find("testcase/failure") is None
    assert suites["ok.yaml"].find("testcase") is not None


def test_an_unknown_format() -> None:
    with pytest.raises(ValueError, match="there is no format `xml`"):
        render([], {}, format="xml")  # type: ignore[arg-type]


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_wrong_is_no_failure(format: str) -> None:
    found = render([], {"a.yaml": "x\n"}, format=format)  # type: ignore[arg-type]
    if format in ("full", "concise", "github"):
        assert found == ""


@pytest.mark.parametrize("format", FORMATS)
def test_any_text_and_any_span_can_be_shown(format: str) -> None:
    chance = random.Random(3)
    alphabet = "ab\t\n\r \x00\x1b名e\u0301\u2028\ufeff:{}'\"<&"
    for _ in range(200):
        text = "".join(chance.choices(alphabet, k=chance.randint(0, 60)))
        numbers = sorted([(chance.randint(1, 5), chance.randint(1, 30)) for _ in range(2)])
        span = Span("a.yaml", *numbers[0], *numbers[1])
        diagnostic = error("X001", span, text, text, (Related(span, text),), (Fix(span, text, True),))
        found = render([diagnostic], {"a.yaml": text}, format=format)  # type: ignore[arg-type]
        assert isinstance(found, str)
        if format == "junit":
            ElementTree.fromstring(found)
        if format in ("json", "sarif"):
            json.loads(found)


# --- order ----------------------------------------------------------------------------------------------------------


def test_the_same_is_said_once() -> None:
    assert arrange([error("A", at(1, 1), "m"), error("A", at(1, 1), "m", "help")]) == [
        error("A", at(1, 1), "m", "help")
    ]
    assert len(arrange([error("A", at(1, 1), "m"), error("A", at(1, 1), "n"), error("A", at(1, 2), "m")])) == 3


def test_echoes_are_left_out() -> None:
    template = error("T002", at(1, 8, 5), "no such name")
    echo = error("S003", at(1, 4, 12), "text where a number is wanted")
    assert arrange([template, echo]) == [template]
    assert arrange([error("Y009", at(1, 4), "empty"), error("S003", at(1, 4), "empty")])[0].code == "Y009"


def test_what_only_lies_near_is_no_echo() -> None:
    template = error("T002", at(1, 8, 5), "m")
    others = [
        error("S003", at(1, 1, 3), "beside"),
        error("S003", at(2, 4, 12), "another line"),
        error("S003", at(1, 4, 12, "b.yaml"), "another file"),
        error("W001", Span("a.yaml", 1, 1, 9, 9), "around"),
        error("Y001", at(1, 4, 12), "of the same stage"),
    ]
    assert len(arrange([template, *others])) == 6
    assert len(arrange([warning("Y021", at(1, 4), "m"), error("S003", at(1, 4), "m")])) == 2
