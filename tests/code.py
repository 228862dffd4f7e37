"""`python -m tests.code CODE [WORDS]`: run code like `python -c`. As a module, it can be started by `tests.started`,
which has torch imported already."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    exec(compile(sys.argv.pop(1), "<code>", "exec"), {"__name__": "__main__"})
