"""Generated files say what the code says."""

from tests.generate import stale_files


def test_generated_files_are_up_to_date() -> None:
    assert not stale_files(), "run `make generate`"
