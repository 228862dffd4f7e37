"""`python -m tests.runtime.unready`: a rank that somebody else started, whose rank 0 breaks while it compiles."""

from __future__ import annotations

from declarative_train.plan.plan import Plan
from declarative_train.runtime.torchrun import run_as_rank


def broken() -> tuple[Plan | None, int]:
    raise ZeroDivisionError("planted")


if __name__ == "__main__":
    run_as_rank(broken)
