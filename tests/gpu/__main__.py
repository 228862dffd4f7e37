"""`python -m tests.gpu [pytest's arguments]`: the suite for one GPU; where there is none, one line says so.

DTRAIN_TEST_DEVICE=cpu runs the same code with small models on the CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.gpu.device import NO_GPU, has_device
from tests.gpu.needs import OF_TESTS, PACKAGES, missing, what_to_do

if __name__ == "__main__":
    if not has_device():
        print(NO_GPU)
        sys.exit(0)
    lacking = missing((*PACKAGES, *OF_TESTS))
    if lacking:
        print(what_to_do(lacking))
        sys.exit(1)
    workers = ["-n", os.environ.get("DTRAIN_TEST_WORKERS", "4")] if len(sys.argv) == 1 else []
    arguments = ["-m", "gpu", "--timeout", "300", *workers, "tests/gpu", *sys.argv[1:]]
    sys.exit(subprocess.call([sys.executable, "-m", "pytest", *arguments]))
