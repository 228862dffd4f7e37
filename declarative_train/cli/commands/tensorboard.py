"""`dtrain tensorboard [DIR]`: TensorBoard on the runs, on this machine unless --host says otherwise."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", nargs="?", default="runs", help="a run, or a folder of runs (default: runs)")
    parser.add_argument("--port", type=int, default=6006, help="default: 6006; 0 picks a free one")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default: 127.0.0.1, this machine alone); 0.0.0.0 lets everybody read the runs",
    )


def run(args: argparse.Namespace) -> int:
    if not Path(args.dir).is_dir():
        print(f"dtrain: there is no folder `{args.dir}`; a run makes one: dtrain run RECIPE", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", args.dir, "--host", args.host]
    command += ["--port", str(args.port), "--reload_multifile", "true"]
    sys.stdout.flush()
    os.execv(sys.executable, command)  # signals and the exit code are TensorBoard's own
