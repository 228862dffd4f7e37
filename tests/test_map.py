"""The map is true: what comments cite is there, the tables of docs/ are those of the code, and a mode is asked for in
the few places that say why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import PACKAGE, ROOT, asks_for_a_mode, working_tree
from tests.test_language import numbers
from tests.test_layers import ROOMS

DOCS = ROOT / "docs"
FACTS = (DOCS / "torch-facts.md").read_text("utf-8")
DECISIONS = (DOCS / "decisions.md").read_text("utf-8")
ARCHITECTURE = (DOCS / "architecture.md").read_text("utf-8")

SECTION = re.compile(r"^## (\d+)\. ", re.M)
QUESTION = re.compile(r"^- \*\*(Q\d+)\*\* ", re.M)
CITED_FACTS = re.compile(r"torch-facts(?:\.md)?(?:, sections? (\d+)(?: and (\d+))?(?:, trap (\d+))?)?")
CITED_DECISIONS = re.compile(r"decisions?, (Q?\d+)(?:(?: and | to )(Q?\d+))?")
CITED_PAGE = re.compile(r'docs/([\w-]+\.md)(?:, "([^"]+)")?')
CITED_ELSEWHERE = re.compile(r"\bLANGUAGE\b|\bDESIGN\b|\b[Qq]uestions? \d|\b[Ff]inding \d")


def texts() -> Iterator[tuple[str, str]]:
    """Every Python file and page, on one line: a citation may be wrapped."""
    files = [path for folder in (PACKAGE, ROOT / "tests", ROOT / "benchmarks") for path in folder.rglob("*.py")]
    for path in [*files, *DOCS.glob("*.md"), *ROOT.glob("*.md")]:
        if path != Path(__file__):
            yield str(path.relative_to(ROOT)), re.sub(r"\n\s*(?:# ?)?", " ", path.read_text("utf-8"))


ALL = list(texts())


def traps() -> set[str]:
    part = FACTS[FACTS.index("### Traps inside the schedules") : FACTS.index("## 3. ")]
    return set(re.findall(r"^(\d+)\. ", part, re.M))


def test_what_a_comment_cites_is_there() -> None:
    sections, decisions = set(SECTION.findall(FACTS)), {*SECTION.findall(DECISIONS), *QUESTION.findall(DECISIONS)}
    wrong, found = [], Counter[str]()
    for name, text in ALL:
        for match in CITED_FACTS.finditer(text):
            first, second, trap = match.groups()
            if not name.endswith(".py") and first is None:
                continue  # a link, or the page itself
            found["torch-facts"] += 1
            if first not in sections or second not in {None, *sections} or trap not in {None, *traps()}:
                wrong.append((name, match[0]))
        for match in CITED_DECISIONS.finditer(text):
            found["decisions"] += 1
            if not {each for each in match.groups() if each} <= decisions:
                wrong.append((name, match[0]))
        for page, heading in CITED_PAGE.findall(text):
            path = DOCS / page
            if not path.exists() or (heading and not re.search(rf"^#+ {re.escape(heading)}$", path.read_text(), re.M)):
                wrong.append((name, f"docs/{page} {heading}"))
    assert not wrong
    assert found["torch-facts"] >= 5, "the pattern sees nothing"
    assert found["decisions"] >= 20, "the pattern sees nothing"


def test_nothing_is_cited_that_is_not_in_the_repository() -> None:
    assert [(name, match[0]) for name, text in ALL for match in CITED_ELSEWHERE.finditer(text)] == []


@pytest.mark.parametrize("page", [FACTS, DECISIONS], ids=["torch-facts", "decisions"])
def test_what_holds_a_fact_is_a_test(page: str) -> None:
    held = re.findall(r"`((?:\w+/)?test_\w+\.py)(?:::(\w+))?`", page)
    assert len(held) > 4
    wrong = [
        (file, name)
        for file, name in held
        if not (path := ROOT / "tests" / file).exists() or (name and f"\ndef {name}(" not in path.read_text("utf-8"))
    ]
    assert not wrong


def test_numbers_are_in_order_and_every_question_has_its_test() -> None:
    for text in (FACTS, DECISIONS):
        found = [int(number) for number in SECTION.findall(text)]
        assert found == list(range(1, len(found) + 1))
    assert [f"Q{number}" for number in sorted(numbers())] == QUESTION.findall(DECISIONS)


def test_every_file_that_the_pages_name_is_there() -> None:
    """Of the package where it has no other folder: `engine/engine.py` is declarative_train/engine/engine.py. A line
    that links to another repository names files of that one."""
    wrong = []
    for path in [*DOCS.glob("*.md"), ROOT / "README.md"]:
        own = [line for line in path.read_text("utf-8").splitlines() if "](https://github.com/" not in line]
        for named in re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.(?:py|yaml|md))?)`", "\n".join(own)):
            if not any((folder / named).exists() for folder in (ROOT, PACKAGE, ROOT / "tests")):
                wrong.append((path.name, named))
    assert not wrong


def test_the_table_of_packages_has_the_order_of_the_imports() -> None:
    assert tuple(re.findall(r"^\| `(\w+)/` \|", ARCHITECTURE, re.M)) == ROOMS


ASKS_FOR_A_MODE = {  # next to recipe/sections/parallelism.py, where each word says its axes
    "planner/auto/candidates.py": "makes every mode that `auto` compares",
    "plan/layout.py": "the word that is shown to the user",
    "recipe/checks/layout_rules.py": "a rule about single",
    "recipe/checks/parallelism_rules.py": "a rule about what shares a batch out on one GPU",
    "recipe/hints/aliases.py": "what other tools call a mode",
    "recipe/hints/relocated_keys.py": "what other tools call a mode",
    "tools/calibrate/probes.py": "measures a step in each of them",
    "tools/verify/prepare.py": "makes the same step in one process",
    "planner/footprint/live_bytes.py": "torch's own operations of fully_shard are called fsdp",
}


def test_a_mode_is_asked_for_in_few_places_that_say_why() -> None:
    """Everything else asks for axes of the mesh, so that a new mode or axis is not looked for by grep."""
    asking = [ROOT / name for name, text in working_tree().items() if asks_for_a_mode(text)]
    found = {str(path.relative_to(PACKAGE)) for path in asking}
    assert found == {"recipe/sections/parallelism.py", *ASKS_FOR_A_MODE}
    assert len(ASKS_FOR_A_MODE) <= 12
