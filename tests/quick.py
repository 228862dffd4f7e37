"""`make quick ROOM=data`: the quick tests of one package, and of the repository's rules.

The files in `tests.conftest.LONGEST` are left out: each takes ten seconds or more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import LONGEST

TESTS = Path(__file__).parent
RULES = ("test_english.py", "test_generated.py", "test_layers.py", "test_map.py", "test_statements.py")


def main(room: str) -> int:
    """Run the tests, and return the exit code of pytest; 2 if the package has no tests."""
    rooms = sorted({path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")})
    if room not in rooms:
        print(f"quick: no tests of {room!r}; ROOM is one of {', '.join(rooms)}", file=sys.stderr)
        return 2
    left_out = [f"--ignore={TESTS / name}" for name in LONGEST]
    return pytest.main(
        [
            "-n",
            "2",
            "--dist",
            "loadfile",
            "-m",
            "not long and not matrix and not gpu and not slow",
            *left_out,
            str(TESTS / room),
        ]
        + [str(TESTS / name) for name in RULES]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
