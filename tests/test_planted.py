"""The table of planted bugs fits the code: each can be planted, and the test that must notice it exists."""

from __future__ import annotations

from pathlib import Path

from tests.planted import BUGS, ROOT

PACKAGE, TESTS = ROOT / "declarative_train", Path(__file__).parent


def test_every_bug_can_be_planted_and_has_its_test() -> None:
    for bug in BUGS:
        text = (PACKAGE / bug.file).read_text("utf-8")
        assert text.count(bug.old) == 1, (
            f"{bug.name}: `old` must occur once in {bug.file}: follow the change in tests/planted.py"
        )
        compile(text.replace(bug.old, bug.new), bug.file, "exec")
        file, *_, function = bug.test.split("::")
        assert f"def {function}(" in (TESTS / file).read_text("utf-8"), f"{bug.name}: there is no test {bug.test}"
