"""Time of `dtrain lint` compared with that of the imports that it needs: medians of interleaved rounds, and of their
ratios.

    python -m benchmarks.lint [--rounds 7] [--check]

`lint --static` of a recipe of 1,000 lines is compared with `import pydantic, yaml` (aim: at most 3 times as long). The
full lint of a GPT of 12 layers is compared with `import torch, torch._dynamo`, which shape inference needs (aim: at
most 1.3 times). With --check, the exit code is 1 if a ratio is above its aim.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.lint_recipes import GPT, long_recipe


@dataclass(frozen=True, slots=True)
class Job:
    """Comparison of a command with imports. `words`: the command. `statement`: Python code with the imports. `aim`:
    largest ratio of their times."""

    name: str
    words: tuple[str, ...]
    statement: str
    aim: float


JOBS = (
    Job("lint --static, 1,000 lines", ("lint", "--static", "long.yaml"), "import pydantic, yaml", 3.0),
    Job("lint, GPT of 12 layers", ("lint", "gpt.yaml"), "import torch, torch._dynamo", 1.3),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lint", description="Lint compared with bare imports.")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds per job (default: 7)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a ratio is over its aim")
    args = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores; medians of {args.rounds} interleaved rounds")
    print(f"{'job':<28}{'lint':>9}{'import':>9}{'ratio':>7}{'aim':>6}")
    met = True
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for job in JOBS:
            lint_s, import_s, ratio = measure(job, args.rounds, Path(folder))
            met &= ratio <= job.aim
            print(f"{job.name:<28}{lint_s:>7.2f} s{import_s:>7.2f} s{ratio:>7.2f}{job.aim:>6.1f}", flush=True)
    return 0 if met or not args.check else 1


def write_files(folder: Path) -> None:
    (folder / "long.yaml").write_text(long_recipe(), "utf-8")
    (folder / "gpt.yaml").write_text(GPT, "utf-8")
    (folder / "corpus.txt").write_text("to be, or not to be, that is the question. " * 2000, "utf-8")


def measure(job: Job, rounds: int, folder: Path) -> tuple[float, float, float]:
    """Return the median seconds of lint, those of the imports, and the median of their ratios. A first round, which
    fills the cache of the disk, is not counted."""
    pairs = []
    for _ in range(rounds + 1):
        lint_s = timed([sys.executable, "-m", "declarative_train", *job.words], folder)
        pairs.append((lint_s, timed([sys.executable, "-c", job.statement], folder)))
    pairs = pairs[1:]
    lints, imports = zip(*pairs, strict=True)
    return median(lints), median(imports), median(lint_s / import_s for lint_s, import_s in pairs)


def timed(command: list[str], folder: Path) -> float:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # both sides run from bytecode, like installed packages
    began = time.perf_counter()
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    ended = time.perf_counter()
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed with {result.returncode}:\n{result.stdout}\n{result.stderr}")
    return ended - began


if __name__ == "__main__":
    sys.exit(main())
