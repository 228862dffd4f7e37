"""One variant of `benchmarks.gpu`, in a process of its own: `python -m benchmarks.gpu_step JOB SIDE COMPILED DATA`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.gpu import TINY, ours, theirs
from benchmarks.gpu_models import jobs

if __name__ == "__main__":
    name, side, compiled, data = sys.argv[1:]
    (job,) = (job for job in jobs(TINY) if job.name == name)
    print(json.dumps((ours if side == "ours" else theirs)(job, compiled == "1", Path(data))), flush=True)
