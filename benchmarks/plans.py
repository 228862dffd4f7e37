"""What it costs to plan a model that no machine here could hold: 405B on 16,384 GPUs. `python -m benchmarks.plans`

Fails above 15 s or 2 GB.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.planner.at_size import planned_cost

MOST_S, MOST_GB = 15.0, 2.0
LAYOUT = "{nodes: 2048, gpus_per_node: 8, hardware: h100-sxm}"


def main() -> int:
    costs = []
    for way in ("fsdp", "auto"):
        with tempfile.TemporaryDirectory() as folder:
            seconds, peak_gb, memory = planned_cost(Path(folder), layout=LAYOUT, parallelism=way)
        costs.append((seconds, peak_gb))
        print(f"405B on 16,384 GPUs, {way:5} {seconds:6.1f} s {peak_gb:6.2f} GB   {memory}", flush=True)
    return int(any(seconds > MOST_S or peak_gb > MOST_GB for seconds, peak_gb in costs))


if __name__ == "__main__":
    sys.exit(main())
