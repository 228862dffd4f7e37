"""What lint lets pass trains: recipes of odd parts over odd data (see tests/hunt.py)."""

from __future__ import annotations

import pytest

from tests.hunt import hunt


def test_what_has_no_error_trains_and_stays_finite() -> None:
    found = hunt(0, 40)
    assert not found.failures, "\n".join(found.failures)
    assert found.counts["trained"] >= 8, found.text()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_that_have_no_error_train() -> None:
    found = hunt(40, 160)
    assert not found.failures, "\n".join(found.failures)
    assert found.counts["trained"] >= 32, found.text()
