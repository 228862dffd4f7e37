"""Command `dtrain mcp`: a server for coding agents on standard input and output, and the instructions for them."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

SKILL = Path(__file__).with_name("SKILL.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--skill", action="store_true", help="print the instructions for an agent (SKILL.md) and exit")


def run(args: argparse.Namespace) -> int:
    if args.skill:
        print(SKILL.read_text("utf-8"), end="")
        return 0
    if find_spec("mcp") is None:
        from declarative_train.core.machine import install

        print(f"dtrain: the server for agents needs mcp: {install('mcp')}", file=sys.stderr)
        return 2
    from declarative_train.tools.agents.server import make_server

    make_server().run("stdio")
    return 0
