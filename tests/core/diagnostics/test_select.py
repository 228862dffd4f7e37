"""`--select` and `--ignore`."""

from __future__ import annotations

import pytest

from declarative_train.core.diagnostics.render import Selection


@pytest.mark.parametrize(
    ("select", "ignore", "taken", "left"),
    [
        ("", "", ["S001", "Y003"], []),
        ("S", "", ["S001"], ["Y003"]),
        ("", "S", ["Y003"], ["S001", "S002"]),
        ("S,Y003", "", ["S001", "Y003"], ["Y004"]),
        ("s001 y", "", ["S001", "Y003"], ["S002"]),
        ("S", "S001", ["S002"], ["S001"]),
        ("S001", "S", ["S001"], ["S002"]),
        ("S0", "S0", [], ["S001"]),
        (" , ", "", ["S001"], []),
    ],
)
def test_takes(select: str, ignore: str, taken: list[str], left: list[str]) -> None:
    selection = Selection.parse(select=select, ignore=ignore)
    assert [code for code in taken + left if selection.takes(code)] == taken


def test_unknown_prefixes() -> None:
    selection = Selection.parse(select="S,Q,S001", ignore="Y999,Q")
    assert selection.unknown(["S001", "Y003"]) == ("Q", "Y999")
