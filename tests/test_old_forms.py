"""What was written otherwise before: each of tests/cases/old is reported, and `--fix` leaves the plan as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative_train import plan as plan_room
from declarative_train import recipe
from declarative_train.diagnostics.diagnostic import Diagnostic, Severity
from declarative_train.diagnostics.fixes import mend, placed
from declarative_train.plan.plan import Plan
from tests.linted import CASES

OLD = sorted((CASES / "old").glob("*.yaml"))
DEPRECATED = {"S008", "S011"}


def loaded(path: Path, texts: Mapping[str, str]) -> recipe.Loaded:
    return recipe.load(str(path), texts=texts)


def texts_of(path: Path) -> dict[str, str]:
    document = loaded(path, {}).document
    assert document is not None
    return {file.path: file.text for file in document.files}


def found(path: Path, texts: Mapping[str, str]) -> list[Diagnostic]:
    both = loaded(path, texts)
    said = list(both.diagnostics)
    if both.recipe is not None:
        said += plan_room.compile(both.recipe)[1]
    return placed(said, texts)


def planned(path: Path, texts: Mapping[str, str]) -> Plan:
    read = loaded(path, texts)
    assert read.recipe is not None, read.diagnostics
    plan, diagnostics = plan_room.compile(read.recipe)
    assert plan is not None, diagnostics
    return plan


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_an_old_form_is_told_and_mended_with_the_same_plan(path: Path) -> None:
    before = texts_of(path)
    told = found(path, before)
    assert told
    assert {(each.code, each.severity) for each in told} <= {(code, Severity.WARNING) for code in DEPRECATED}
    assert all(each.fixes for each in told), told
    fixed = mend(told, before, lambda texts: found(path, texts))
    after = {**before, **fixed.texts}
    assert not found(path, after)
    old, new = planned(path, before), planned(path, after)
    assert new.fingerprint == old.fingerprint
    # what is left is the text, and under which key a setting stands that decides nothing
    same: dict[str, Any] = {"files": (), "recipe": {}, "identity": "", "settings": {}}
    assert replace(new, **same) == replace(old, **same)


def test_every_old_form_is_on_the_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "migration.md").read_text("utf-8")
    for path in OLD:
        family = path.stem.partition("_")[0]
        assert f'<a id="{family}"></a>' in page, family
