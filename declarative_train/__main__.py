"""Entry point of the command `dtrain` and of `python -m declarative_train`."""

from __future__ import annotations

import gc
import sys

from declarative_train.app.main import main

__all__ = ["main", "run"]


def run() -> int:
    """Run the command line and return its exit code.

    The objects that exist at the end are frozen (`gc.freeze`). Otherwise the interpreter's last garbage collection
    takes 0.7 s, if torch was imported.
    """
    code = main()
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(run())
