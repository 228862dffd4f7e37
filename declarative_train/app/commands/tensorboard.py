"""Command `dtrain tensorboard [DIR]`: start TensorBoard for the runs in a folder. Only this machine can reach it,
unless `--host` is given."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from urllib.parse import quote


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", nargs="?", default="runs", help="a run, or a folder of runs (default: runs)")
    parser.add_argument("--port", type=int, default=6006, help="port (default: 6006); 0: a free one")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, only this machine); 0.0.0.0: anyone can read the runs",
    )


def run(args: argparse.Namespace) -> int:
    if not Path(args.dir).is_dir():
        found = f"`{args.dir}` is a file" if Path(args.dir).exists() else f"there is no folder `{args.dir}`"
        print(f"dtrain: {found}; a run makes a folder: dtrain run RECIPE", file=sys.stderr)
        return 2
    # -P: do not import a `tensorboard.py` in the working directory.
    command = [sys.executable, "-P", "-m", "tensorboard.main", "--logdir", args.dir, "--host", args.host]
    command += ["--port", str(args.port), "--reload_multifile", "true"]
    if args.port:  # TensorBoard sorts by name, which puts `accuracy` before `loss`
        print(f"dtrain: with the losses first: {page_with_losses_first(args.host, args.port)}", file=sys.stderr)
    sys.stdout.flush()
    os.execv(sys.executable, command)  # TensorBoard gets the signals, and its exit code is that of this command


def page_with_losses_first(host: str, port: int) -> str:
    """Return the address of TensorBoard's page at `host` and `port`, with options that show the charts of the losses
    first."""
    cards = [{"plugin": "scalars", "tag": tag} for tag in ("training/loss", "validation/loss")]
    where = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
    return f"http://{where}:{port}/?pinnedCards={quote(json.dumps(cards, separators=(',', ':')), safe='')}#timeseries"
