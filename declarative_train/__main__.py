"""`dtrain` and `python -m declarative_train`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (see app/main.py). Without `argv` the process exits here."""
    if argv is None:
        gc.disable()  # until the process exits, see app/main.py
    from declarative_train.app.main import main as run_command

    code = run_command(argv)
    if argv is None and sys.getprofile() is None and sys.gettrace() is None:
        leave(code)
    return code


def leave(code: int) -> None:
    """Flush the streams and exit at once. The interpreter's own shutdown takes as long as half a lint, and longer with
    torch imported."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a daemon may have none
        try:
            stream.flush()
        except (OSError, ValueError):  # the reader is gone, or the stream was closed
            code = code or 1
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
