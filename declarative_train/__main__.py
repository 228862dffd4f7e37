"""`dtrain` and `python -m declarative_train`."""

from __future__ import annotations

import sys

from declarative_train.app.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
