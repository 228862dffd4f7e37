"""`dtrain angle DEGREES`: print the values of an angle."""

from __future__ import annotations

import argparse
from math import cos, radians, sin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("degrees", type=float)


def run(args: argparse.Namespace) -> int:
    angle = radians(args.degrees)
    print(f"sine {sin(angle):.4f}, cosine {cos(angle):.4f}")
    return 0
