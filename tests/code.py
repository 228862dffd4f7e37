"""`python -m tests.code CODE [WORDS]`: as `python -c`, by a module, which `tests.started` runs without its imports."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    exec(compile(sys.argv.pop(1), "<code>", "exec"), {"__name__": "__main__"})
