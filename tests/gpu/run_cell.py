"""A cell of the suite in a process of its own: `ran("parity", graph="gpt")` is what `cells.parity(...)` returns.

A cell may fork ranks, which CUDA in this process would spoil, and what it leaves on the GPU goes with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
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
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.cells", name, folder, json.dumps(options)],
            cwd=ROOT,
            env={"OMP_NUM_THREADS": "2"} | os.environ | {"DTRAIN_TEST_DEVICE": kind(), "PYTHONPATH": python_path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        late = ""
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            late = f" did not end within {LIMIT_S} s"
        finally:  # and its ranks, which would hold the pipes open, and the GPU
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if late:
            out, errors = process.communicate()
    assert process.returncode == 0, f"{name} {options}{late}:\n{out[-1000:]}\n{errors[-4000:]}"
    found: dict[str, Any] = json.loads(out.rpartition(MARK)[2])
    return found


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
