"""Several ranks on the oldest torch that pyproject.toml allows, in an environment of its own below the cache folder.

OLD_TORCH_PYTHON names an interpreter that has it already.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
ROOM_BYTES = 12 << 30  # torch's default wheel brings CUDA along
RUN_AND_RESUME = "from_start_to_end or (signal_saves and (ddp or fsdp or pipeline) and 15)"


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def oldest() -> str:
    (version,) = (re.fullmatch(r"torch>=([\d.]+)", str(line)) for line in project()["dependencies"] if "torch>" in line)
    assert version is not None
    return f"{version[1]}.0"


def interpreter(version: str) -> str:
    """Made where it is not there yet; skips the test where that cannot be done."""
    if "OLD_TORCH_PYTHON" in os.environ:
        return os.environ["OLD_TORCH_PYTHON"]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "declarative_train"
    folder = cache / f"torch-{version}-python-{sys.version_info.major}.{sys.version_info.minor}"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return str(python)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(cache).free < ROOM_BYTES:
            pytest.skip(f"torch {version} wants {ROOM_BYTES >> 30} GiB below {cache}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
        pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("torch==")]
        (folder / "constraints.txt").write_text("\n".join(pins))
        wanted = [line for line in project()["dependencies"] if not line.startswith("torch>")] + ["safetensors"]
        pinned = ("--constraint", str(folder / "constraints.txt"), f"torch=={version}")
        subprocess.run(
            [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                *pinned,
                *wanted,
                "safetensors",
                "pytest",
                "pytest-timeout",
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=900,
        )
    except subprocess.CalledProcessError as error:
        pytest.skip(f"torch {version} cannot be installed here: {str(error.stderr).strip().splitlines()[-1]}")
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"torch {version} cannot be installed here: {error}")
    done.touch()
    return str(python)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ranks_run_stop_and_resume_on_the_oldest_torch() -> None:
    version = oldest()
    if torch.__version__.startswith(version):
        pytest.skip(f"this is torch {version}: the other tests are about it")
    tests = ["tests/run/test_launch.py", "-k", RUN_AND_RESUME]
    done = subprocess.run(
        [interpreter(version), "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "120", *tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^\.{7,} ", done.stdout, re.M), done.stdout
