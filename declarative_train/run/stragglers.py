"""Stragglers: ranks that are slower than the others for a long time. For each rank, the time per step in which it does
not wait in a collective is compared with the median of the other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from declarative_train.run.heartbeat import Pace

SLOW, FAST_AGAIN = 1.3, 1.15  # times a rank's own work divided by that of the others
LEAST_EXCESS_S = 0.05  # per step; a smaller excess does not matter, and rank 0 always needs some time for events


class Stragglers:
    """Record of the ranks that are slow now."""

    def __init__(self) -> None:
        self.slow: set[int] = set()

    def find_changes(self, paces: Mapping[int, Pace], nodes: Mapping[int, str]) -> list[str]:
        """Return a sentence for each rank that has become slow, or is no longer slow, since the last call. `paces`: the
        pace of each rank. `nodes`: a dict from each rank to a text that names its node."""
        work_s = {rank: found for rank, pace in paces.items() if (found := pace.work_s) is not None}
        said = []
        for rank in work_s if len(work_s) == len(paces) > 1 else ():
            others_s = median(each for other, each in work_s.items() if other != rank)
            name = name_rank(rank, nodes)
            ratio = FAST_AGAIN if rank in self.slow else SLOW
            is_slow = work_s[rank] > ratio * others_s and work_s[rank] - others_s > LEAST_EXCESS_S
            if is_slow and rank not in self.slow:
                how = f"its own work takes {work_s[rank]:.2g} s of each step, that of the others {others_s:.2g} s"
                said.append(f"{name} is slower than the others: {how}")
            elif not is_slow and rank in self.slow:
                said.append(f"{name} is no longer slower than the others")
            (self.slow.add if is_slow else self.slow.discard)(rank)
        return said


def name_rank(rank: int, nodes: Mapping[int, str]) -> str:
    return f"rank {rank} ({nodes[rank]})" if rank in nodes else f"rank {rank}"
