"""What it costs to plan a model that no machine here could hold: 405B on 16,384 GPUs. `python -m benchmarks.plans`

Fails above 15 s of the processor (a machine that does other things, too, takes longer by the clock) or 2 GB.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.planner.at_size import LAYOUT, planned_cost

MOST_S, MOST_GB = 15.0, 2.0


def main() -> int:
    is_met = True
    for way in ("fsdp", "auto"):
        with tempfile.TemporaryDirectory() as folder:
            cost = planned_cost(Path(folder), layout=LAYOUT, parallelism=way)
        is_met &= cost.processor_s <= MOST_S and cost.peak_gb <= MOST_GB
        times = f"{cost.clock_s:6.1f} s {cost.processor_s:6.1f} s of the processor"
        print(f"405B on 16,384 GPUs, {way:5} {times} {cost.peak_gb:6.2f} GB   {cost.memory}", flush=True)
    return int(not is_met)


if __name__ == "__main__":
    sys.exit(main())
