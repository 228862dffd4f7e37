"""Manual pages, read from files without importing them."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import indent

import pytest

import declarative_train
from declarative_train.core.diagnostics.rules import find_tables, read_rule, read_rules

PAGE = '''"""stage-count-mismatch (P012)

Finds: a number of stages
       that does not divide.
Why:   ranks would be idle.
Bad:   parallelism: {pipeline: {stages: 6}}   # on 4 GPUs
Good:
    parallelism:
      stages: 4
"""
raise AssertionError("never imported")
'''


def test_a_page(tmp_path: Path) -> None:
    path = tmp_path / "stage_count_mismatch.py"
    path.write_text(PAGE)
    rule = read_rule(path, ast.parse(path.read_text()))
    assert (rule.code, rule.name) == ("P012", "stage-count-mismatch")
    assert rule.finds == "a number of stages that does not divide."
    assert rule.why == "ranks would be idle."
    assert rule.bad == "parallelism: {pipeline: {stages: 6}}   # on 4 GPUs\n"
    assert rule.good == "parallelism:\n  stages: 4\n"
    assert rule.page.startswith("stage-count-mismatch (P012)\n\nFinds:")


def test_a_diff_stands_for_both_examples(tmp_path: Path) -> None:
    head, whole = PAGE.partition("Bad:")[0], "parallelism:\n  pipeline:\n    stages: {}\n\n# of 4 GPUs\n"
    lines = "    parallelism:\n      pipeline:\n-       stages: 6\n+       stages: 4\n\n    # of 4 GPUs\n"
    path = tmp_path / "x.py"
    path.write_text(f'{head}Diff:\n{lines}"""\n')
    rule = read_rule(path, ast.parse(path.read_text()))
    assert (rule.bad, rule.good) == (whole.format(6), whole.format(4))
    both = "".join(f"{word}:\n{indent(whole.format(n), '    ')}" for word, n in (("Bad", 6), ("Good", 4)))
    assert rule.page == f"{head}{both}".strip('"\n')


def test_the_page_of_a_message_is_the_docstring_of_its_function(tmp_path: Path) -> None:
    page = PAGE.partition("raise")[0].rstrip()
    indented = "\n".join(f"    {line}" if line else line for line in page.splitlines())
    path = tmp_path / "stages.py"
    path.write_text(f'"""Messages."""\n\ndef other():\n    """No page."""\n\ndef count_mismatch():\n{indented}\n')
    module = tmp_path / "module.py"
    module.write_text(page)
    rule = read_rule(path, ast.parse(path.read_text()), "count_mismatch")
    assert rule.page == read_rule(module, ast.parse(module.read_text())).page
    with pytest.raises(ValueError, match=r"stages\.py, other: "):
        read_rule(path, ast.parse(path.read_text()), "other")


@pytest.mark.parametrize(
    "broken",
    [
        "",
        '"""no head"""',
        PAGE.replace("(P012)", "P012"),
        PAGE.replace("Why:   ranks would be idle.\n", ""),
        PAGE.replace("Why:   ranks would be idle.", "Why:"),
        PAGE.replace("Finds:", "Found:"),
    ],
)
def test_what_is_no_page_is_our_mistake(broken: str, tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(broken)
    with pytest.raises(ValueError, match="is not a manual page"):
        read_rule(path, ast.parse(path.read_text()))


def test_tables(tmp_path: Path) -> None:
    for room, code in (("a", "P012"), ("b", "P013")):
        folder = tmp_path / room / "checks"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f'"""Rules."""\nRULES: dict[str, str] = {{"{code}": "x"}}\nother = 1\n')
        (folder / "x.py").write_text(PAGE.replace("P012", code))
    tables = find_tables(tmp_path)
    assert list(read_rules(tables)) == ["P012", "P013"]
    (tmp_path / "b" / "checks" / "x.py").write_text(PAGE)
    with pytest.raises(ValueError, match="P013"):
        read_rules(tables)


def test_every_rule_of_the_package_has_a_page() -> None:
    rules = read_rules(find_tables(Path(declarative_train.__file__).parent))
    assert len(rules) > 60
    assert len({rule.name for rule in rules.values()}) == len(rules)
