"""Command `dtrain lsp`: a language server on standard input and output."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from importlib.util import find_spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--static", action="store_true", help="check neither data nor shapes, and do not load torch")
    parser.add_argument("--stdio", action="store_true", help="no effect; accepted because editors pass it")


def run(args: argparse.Namespace) -> int:
    if find_spec("pygls") is None:
        from declarative_train.core.machine import install

        print(f"dtrain: the language server needs pygls: {install('lsp')}", file=sys.stderr)
        return 2
    from declarative_train.core.machine import own_version
    from declarative_train.tools.language_server.server import RecipeServer

    logging.getLogger("pygls").setLevel(logging.ERROR)
    server = RecipeServer(own_version(), static=args.static)
    # Standard output is for the protocol; other output goes to standard error, the editor's log.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as protocol:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        server.server.start_io(sys.stdin.buffer, protocol)
    return 0 if server.was_shut_down else 1
