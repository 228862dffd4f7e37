"""A cell of the suite in a process of its own: `ran("parity", graph="gpt")` is what `cells.parity(...)` returns.

A cell may fork ranks, which CUDA in this process would spoil, and what it leaves on the GPU goes with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.gpu.device import kind

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 280
MARK = "\nresult: "


def ran(name: str, **options: Any) -> dict[str, Any]:
    """Raises AssertionError with the end of what the process said when it fails."""
    with TemporaryDirectory(prefix="dtrain_gpu_") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.cells", name, folder, json.dumps(options)],
            cwd=ROOT,
            env={"OMP_NUM_THREADS": "2"} | os.environ | {"DTRAIN_TEST_DEVICE": kind(), "PYTHONPATH": python_path()},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, f"{name} {options}:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(done.stdout.rpartition(MARK)[2])
    return found


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
