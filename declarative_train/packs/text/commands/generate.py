"""Command `dtrain generate RUN --prompt TEXT`: continue a text with a trained model."""

from __future__ import annotations

import argparse
import json
import sys

from declarative_train.app.numbers import not_negative, positive, share
from declarative_train.app.printing import print_text
from declarative_train.app.trained import add_run_argument, open_named_run, report_errors

_TOKENS = 200
_BETWEEN = "\n---\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="beginning of the text; - for standard input")
    parser.add_argument(
        "--chat",
        action="store_true",
        help="TEXT is a message of the user, or messages as JSON; the tokenizer's chat template is applied",
    )
    parser.add_argument(
        "--max-tokens", type=positive, default=_TOKENS, metavar="N", help="most tokens to write (default: 200)"
    )
    parser.add_argument(
        "--temperature",
        type=not_negative,
        default=1.0,
        metavar="T",
        help="0: always the most probable token (default: 1)",
    )
    parser.add_argument("--top-k", type=positive, metavar="K", help="sample among the K most probable tokens")
    parser.add_argument(
        "--top-p", type=share, metavar="P", help="sample among the fewest tokens whose probabilities add up to P"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the samples: the same seed gives the same text (default: 0)",
    )
    parser.add_argument("--num", type=positive, default=1, metavar="N", help="number of texts (default: 1)")
    parser.add_argument("--json", action="store_true", help="print a list of objects with prompt and text at the end")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="auto (default), cpu, cuda, cuda:1, mps")


def run(args: argparse.Namespace) -> int:
    return report_errors(lambda: _generate(args))


def _generate(args: argparse.Namespace) -> int:
    from declarative_train.packs.text.generation import TextModel, generate
    from declarative_train.packs.text.sampling import Sampling

    model = TextModel(open_named_run(args), args.device)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    note = _note(model.reason, model.context, len(prompt.encode()) + args.max_tokens)
    if note:
        print(f"dtrain: {note}", file=sys.stderr)
    sampling = Sampling(args.temperature, args.top_k, args.top_p)
    if args.json:
        texts = [
            "".join(generate(model, prompt, args.max_tokens, sampling, args.seed, n, chat=args.chat))
            for n in range(args.num)
        ]
        print_text(json.dumps([{"prompt": prompt, "text": text} for text in texts], indent=1))
        return 0
    for number in range(args.num):
        pieces = generate(model, prompt, args.max_tokens, sampling, args.seed, number, chat=args.chat)
        first = next(pieces, "")  # errors in the prompt are raised before anything is printed
        print_text((_BETWEEN if number else "") + ("" if args.chat else prompt) + first, end="")
        for piece in pieces:
            print_text(piece, end="")
            sys.stdout.flush()
    print_text("")
    return 0


def _note(reason: str, context: int, wanted: int) -> str:
    if reason:
        return f"each token is computed again from the {context} before it, since nothing can be cached: {reason}"
    if wanted > context:
        return f"the model sees {context} tokens; beyond that each token is computed again from the {context} before it"
    return ""
