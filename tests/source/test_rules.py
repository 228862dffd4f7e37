"""The manual pages of this room's rules: the bad example of each is diagnosed by it, the good one is silent.

An example is laid over a small recipe by `extends`, unless its first line says otherwise:
`# whole file`; `# file: NAME` (one or more files, the first is the recipe); `# bytes: ...` (with escapes);
`# options: --set ...`; `# no file`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import declarative_train
from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.diagnostics.rules import Rule, find_tables, read_rules
from declarative_train.diagnostics.suppress import suppress
from declarative_train.source import checks, load
from declarative_train.source.merge import MergeRules
from declarative_train.source.node import Mapping
from declarative_train.source.template import Templates, render_vars

PACKAGE = Path(declarative_train.__file__).parent
ROOMS = [PACKAGE / "source" / "checks", PACKAGE / "diagnostics" / "checks"]
RULES = read_rules({folder: table for folder, table in find_tables(PACKAGE).items() if folder in ROOMS})

BASE = "name: small\ntraining: {steps: 10, clip_grad_norm: 1.0}\n"


def check(example: str) -> list[Diagnostic]:
    """Everything that reading, merging, rendering and the ignore comments have to say."""
    head = example.partition("\n")[0]
    options: dict[str, list[str]] = {"set_": [], "with_": []}
    files = {"recipe.yaml": f"extends: base.yaml\n{example}".encode(), "base.yaml": BASE.encode()}
    if head.startswith("# file:"):
        parts = re.split(r"^# file: (.*)\n", example, flags=re.MULTILINE)
        files = {name: text.encode() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    elif head.startswith("# bytes: "):
        data = head.removeprefix("# bytes: ").encode("latin-1", errors="backslashreplace")
        files["recipe.yaml"] = data.decode("unicode_escape").encode("latin-1")
    elif head.startswith("# options: "):
        words = shlex.split(head.removeprefix("# options: "))
        for option, word in zip(words[::2], words[1::2], strict=True):
            options[f"{option[2:]}_"].append(word)
        files["recipe.yaml"] = BASE.encode()
    elif head == "# whole file":
        files["recipe.yaml"] = example.encode()
    elif head == "# no file":
        files = {"nothing": b"", **files}
    for name, data in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        if name != "nothing":
            Path(name).write_bytes(data)
    document, diagnostics = load(next(iter(files)), rules=MergeRules(), **options)  # type: ignore[arg-type]
    if document is not None:
        variables, found = render_vars(document.root, {})
        diagnostics += found
        rest = Mapping(tuple(entry for entry in document.root if entry.name != "vars"), document.root.span)
        diagnostics += Templates().render(rest, {"vars": variables, "env": {}})[1]
        diagnostics = suppress(diagnostics, document.texts())
    return diagnostics


@pytest.mark.parametrize("code", RULES)
def test_the_bad_example_is_diagnosed_and_the_good_one_is_silent(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = RULES[code]
    for folder in ("bad", "good"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "bad")
    assert code in {diagnostic.code for diagnostic in check(rule.bad)}
    monkeypatch.chdir(tmp_path / "good")
    assert check(rule.good) == []


def test_every_module_is_in_the_table_and_the_table_is_sorted() -> None:
    for folder in ROOMS:
        table = find_tables(PACKAGE)[folder]
        modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        assert set(table.values()) == modules
        assert list(table) == sorted(table)
    assert find_tables(PACKAGE)[ROOMS[0]] == checks.RULES


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.code)
def test_a_rule_is_named_after_its_module(rule: Rule) -> None:
    assert rule.name.replace("-", "_") == Path(rule.path).stem
    assert f'"{rule.code}"' in Path(rule.path).read_text(encoding="utf-8")
