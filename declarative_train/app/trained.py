"""Common parts of the commands that use a trained model: arguments, opening of the run, exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from declarative_train.app.numbers import positive
from declarative_train.core.secrets import masked
from declarative_train.core.untrusted import in_lines

if TYPE_CHECKING:
    from declarative_train.inference.trained import Trained

WRONG_INPUT, WRONG_USE, FAILED = 1, 2, 3

ExportFormat = Literal[
    "huggingface", "onnx", "peft", "safetensors", "state-dict", "timm", "torch-export", "torchvision"
]
"""Formats in which a trained model is exported, by the command and in Python."""
ExportDtype = Literal["float32", "float64", "float16", "bfloat16"]


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trained", metavar="RUN", help="folder or URL (s3://...) of a run or a checkpoint")
    parser.add_argument(
        "--weights",
        choices=("trained", "ema"),
        help="trained weights, or their moving average (training.ema); default: those that the run evaluated",
    )
    parser.add_argument("--plugins", action="store_true", help="import the plugins of the run, which runs their code")


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NODE",
        help="write the output of this node, such as an embedding",
    )


def add_compute_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-size", type=positive, metavar="N", help="rows per forward pass")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="auto (default), cpu, cuda, cuda:1, mps")


def check_started_alone(command: str) -> None:
    """Raise UsageError if a launcher such as torchrun started several processes of this command, because each of them
    would do the whole work."""
    from declarative_train.inference.trained import UsageError

    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            f"{os.environ['WORLD_SIZE']} processes were started for `dtrain {command}` (RANK and WORLD_SIZE are set), "
            "and each would do all of the work; help: start one, with --ranks N"
        )


def open_named_run(args: argparse.Namespace) -> Trained:
    """Open the trained model of the run that the arguments name. Raises UsageError and RunFailure."""
    from declarative_train.inference.trained import open_trained

    trained = open_trained(args.trained, plugins=args.plugins, weights=args.weights)
    for reason in trained.passed_over:
        print(f"dtrain: skipped: {reason}", file=sys.stderr)
    return trained


def report_errors(act: Callable[[], int]) -> int:
    """Call `act` and return its exit code. If it raises an error, print the error. Then return 1 for rows that the
    model cannot use, 2 for wrong use of the command, 3 for a failure of the machine or an unreadable checkpoint."""
    from declarative_train.components.registry import ComponentError
    from declarative_train.data.spec import DataError
    from declarative_train.engine.failures import RunFailure, explain
    from declarative_train.files.paths import SourceError
    from declarative_train.inference.input import InputError
    from declarative_train.inference.trained import UsageError

    try:
        return act()
    except InputError as error:
        return _say(str(error), WRONG_INPUT)
    except UsageError as error:
        return _say(str(error), WRONG_USE)
    except BrokenPipeError:
        raise
    except (RunFailure, DataError, ComponentError, SourceError, OSError, MemoryError) as error:
        return _say(explain(error), FAILED)


def _say(message: str, code: int) -> int:
    text, found, hint = in_lines(masked(message)).partition("; help: ")
    print(f"dtrain: {text}", file=sys.stderr)
    if found:
        print(f"help: {hint}", file=sys.stderr)
    return code
