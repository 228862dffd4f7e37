"""Cost of planning a model that does not fit on any machine here: 405B on 16,384 GPUs. `python -m benchmarks.plans`

The exit code is 1 above 15 s of CPU time, or above 2 GB. Wall-clock time is printed too; it is longer if the machine
does other work.
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
