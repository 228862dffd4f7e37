"""Tests of our packs: every address that a pack names exists, and every component of its folder is named."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

import declarative_train.packs
from declarative_train.core.packs import Pack, find_packs, load
from declarative_train.recipe.validate import KINDS
from tests.alone import TYPES

FOLDER = Path(str(declarative_train.packs.__file__)).parent
OURS = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))
HOOKS = [each.name for each in fields(Pack) if each.type == "str" and each.name not in ("blocks", "checks")]
KINDS_BY_WORD = {word: kind for kind, (word, _) in KINDS.items()}


def test_tests_know_their_types() -> None:
    assert (
        tuple(sorted(name for each in OURS for rows in find_packs()[each].components.values() for name in rows))
        == TYPES
    )


def test_all_are_found() -> None:
    assert {*OURS, "tools"} <= find_packs().keys()


@pytest.mark.parametrize("name", OURS)
def test_rows_are_components_of_their_kind(name: str) -> None:
    for word, rows in find_packs()[name].components.items():
        assert list(rows) == sorted(rows)
        for name_of_type, address in rows.items():
            component = load(address)
            assert issubclass(component, KINDS_BY_WORD[word])
            assert component.model_fields["type"].default == name_of_type


@pytest.mark.parametrize("name", OURS)
def test_every_component_of_the_folder_has_a_row(name: str) -> None:
    declared = {
        (path.stem, node.name)
        for path in (FOLDER / name).rglob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
        and any(
            isinstance(each, ast.AnnAssign)
            and ast.unparse(each.target) == "type"
            and "Literal" in ast.unparse(each.annotation)
            for each in node.body
        )
    }
    declared.discard(("layer", "AsTheLibraryDoes"))  # written by the compiler, never by a recipe
    rows = [address for rows in find_packs()[name].components.values() for address in rows.values()]
    assert declared == {(module.rpartition(".")[2], found) for module, _, found in (row.partition(":") for row in rows)}


@pytest.mark.parametrize("name", [*OURS, "tools"])
def test_hooks_and_commands_are_there(name: str) -> None:
    pack = find_packs()[name]
    for hook in HOOKS:
        assert not getattr(pack, hook) or callable(load(getattr(pack, hook)))
    for command in pack.commands.values():
        assert callable(load(f"{command.module}:add_arguments"))
        assert callable(load(f"{command.module}:run"))


def test_the_page_has_every_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "packs.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == [each.name for each in fields(Pack)]
    assert all(f"`{word}`" in page for word in KINDS_BY_WORD)
