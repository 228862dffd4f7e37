"""Command `dtrain fits TARGET`: show whether a recipe or a published model fits on GPUs, with time and cost."""

from __future__ import annotations

import argparse
import gc
import json

import yaml

from declarative_train.app.printing import print_error, print_text

_LETTERS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", help="a recipe, or the folder of a published model, of which config.json is enough"
    )
    parser.add_argument("--task", metavar="TASK", help="for a published model: full (default), lora, qlora, pretrain")
    parser.add_argument("--gpu", metavar="NAME", help="as in `dtrain list hardware`, or words of it, such as "
                        "a100-40 (default: the recipe's; for a published model h100-sxm)")  # fmt: skip
    parser.add_argument("--count", type=int, metavar="N", help="number of GPUs; more than 8 in nodes of 8 (default: "
                        "the recipe's; for a published model 8)")  # fmt: skip
    parser.add_argument("--length", type=int, metavar="N", help="for a published model: tokens of a sample")
    parser.add_argument("--batch", type=int, metavar="N", help="samples of a step on all GPUs (default: the recipe's; "
                        "for a published model one on each GPU)")  # fmt: skip
    parser.add_argument("--tokens", type=number, default=1e9, metavar="N", help="tokens (or samples) to compute time "
                        "and money for, such as 300B (default: 1B)")  # fmt: skip
    parser.add_argument("--price", type=float, metavar="X", help="price of an hour of one GPU")
    parser.add_argument(
        "--set", dest="set_", action="append", default=[], metavar="A.B=1", help="set one value, by its path"
    )
    parser.add_argument("--json", action="store_true", help="print one object")


def number(text: str) -> float:
    """Return the number that a text means: "300B" -> 300e9."""
    head, scale = (text[:-1], _LETTERS[text[-1].lower()]) if text[-1:].lower() in _LETTERS else (text, 1.0)
    try:
        found = float(head) * scale
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number like 300B") from None
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"`{text}` is not above 0")
    return found


def run(args: argparse.Namespace) -> int:
    from declarative_train.app.api.errors import DtrainError
    from declarative_train.tools.fits.fits import fits

    gc.disable()  # an eighth of the time, and the process ends soon
    wrong = next((each for each in args.set_ if "=" not in each), None)
    if wrong is not None:
        print_error(f"--set takes PATH=VALUE, and this is `{wrong}`")
        return 2
    try:
        found = fits(
            args.target,
            task=args.task,
            gpu=args.gpu,
            count=args.count,
            length=args.length,
            batch=args.batch,
            budget=args.tokens,
            price=args.price,
            set={key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in args.set_)},
        )
    except DtrainError as error:
        print_error(error.message)
        return error.exit_code
    print_text(json.dumps(found.data, indent=1) if args.json else found.text)
    return 0 if found.fits else 1
