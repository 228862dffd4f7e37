"""`python -m tests.engine.unready [REPORT_S LIMIT_S]`: a rank that somebody else started, whose rank 0 breaks while it
compiles. The times are those of its waits."""

from __future__ import annotations

import os
import sys

from declarative_train.plan.plan import Plan
from declarative_train.run import launcher_rendezvous, torchrun


def broken() -> tuple[Plan | None, int]:
    raise ZeroDivisionError("planted")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        launcher_rendezvous.FIRST_REPORT_S, os.environ["DTRAIN_START_S"] = float(sys.argv[1]), sys.argv[2]
    torchrun.run_as_rank(broken)
