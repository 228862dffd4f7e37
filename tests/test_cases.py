"""Mistakes that lost somebody time: `err/NAME.yaml` gives `err/NAME.out`, and `ok/*.yaml` nothing at all.

`ACCEPT=1 pytest tests/test_cases.py` rewrites the .out files; read them as a user would. The form is `concise`, or
`full` for a case whose second line says `# format: full`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.linted import CASES, dtrain

WRONG = sorted((CASES / "err").glob("*.yaml"))
RIGHT = sorted((CASES / "ok").glob("*.yaml"))
ACCEPT = os.environ.get("ACCEPT") == "1"
WANTED = 120  # distinct mistakes, at the least


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_mistake_is_told_as_accepted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)
    form = "full" if b"\n# format: full\n" in path.read_bytes() else "concise"
    output = dtrain("lint", f"err/{path.name}", "--format", form)
    assert output.out.strip(), "a case of err/ must be wrong"
    assert not output.err
    golden = path.with_suffix(".out")
    if ACCEPT:
        golden.write_text(output.out, "utf-8")
    assert output.out == golden.read_text("utf-8")


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_a_right_recipe_is_silent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)
    output = dtrain("lint", f"ok/{path.name}", "--format", "concise")
    assert (output.code, output.out) == (0, "")


def test_the_cases_are_many_and_each_names_its_pain() -> None:
    assert len(WRONG) >= WANTED
    for path in WRONG:
        assert path.read_bytes().startswith(b"# "), path
    assert {path.stem for path in (CASES / "err").glob("*.out")} == {path.stem for path in WRONG}
