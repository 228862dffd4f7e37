"""`python -m tests.silent`: write docs/silent-mistakes.md, after the test has checked each mistake."""

from __future__ import annotations

import sys

import pytest

from tests.silent.suite import HERE, ROOT, page

if __name__ == "__main__":
    failed = pytest.main(["-q", "-n", "2", str(HERE)])
    if not failed:
        (ROOT / "docs" / "silent-mistakes.md").write_text(page(), "utf-8")
    sys.exit(failed)
