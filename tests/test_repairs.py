"""Recipes with mistakes, repaired by applying only the fixes in lint's JSON, as a coding agent can
(`python -m tests.repairs`)."""

from __future__ import annotations

import pytest

from tests.repairs import repair


def test_mistakes_are_repaired_by_their_fixes() -> None:
    """Only mistakes that static checks find."""
    assert sum(repair(seed, static=True).is_repaired for seed in range(15)) >= 10


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_of_three_mistakes_are_repaired() -> None:
    repairs = [repair(seed) for seed in range(300)]
    assert sum(each.is_repaired for each in repairs) >= 250
    assert sum(each.is_as_before for each in repairs) >= 210
