"""Command `dtrain data tokenizer RECIPE|FILES -o tokenizer.json --vocab N`: train a byte-pair tokenizer on the training
texts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.app.api.compiling import CompileResult, texts_of
from declarative_train.app.compile import load_recipe, report, report_missing
from declarative_train.app.numbers import positive
from declarative_train.app.printing import print_text
from declarative_train.core.amounts import format_count

if TYPE_CHECKING:
    from declarative_train.components.data import Table
    from declarative_train.data.rows import SetRows
    from declarative_train.recipe.recipe import Recipe

_AT_ONCE = 256  # texts that are read at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("more", nargs="*", metavar="FILE", help="with tokenizer: more text files")
    parser.add_argument("-o", "--output", metavar="FILE.json", help="with tokenizer: the file to write")
    parser.add_argument("--vocab", type=positive, metavar="N", help="with tokenizer: number of tokens")
    parser.add_argument(
        "--special",
        action="append",
        default=[],
        metavar="TOKEN",
        help="with tokenizer: a text that is always one token",
    )


def misuse(args: argparse.Namespace) -> str | None:
    """Return an error message if `args`, which are for another subcommand of `dtrain data`, have arguments of `dtrain
    data tokenizer`; otherwise None."""
    is_used = args.more or args.output or args.vocab or args.special
    return "FILE, -o, --vocab and --special are for `dtrain data tokenizer`" if is_used else None


def run(args: argparse.Namespace) -> int:
    from declarative_train.data.split_rows import SplitError
    from declarative_train.files.paths import SourceError
    from declarative_train.packs.text.tokenizer import TokenizerError

    if args.output is None or args.vocab is None:
        print("dtrain: give the file and the number of tokens: `-o tokenizer.json --vocab 8000`", file=sys.stderr)
        return 2
    if Path(args.output).exists():
        message = f"{args.output} exists, and models may have been trained with it"
        print(f"dtrain: {message}; help: give another file, or remove it", file=sys.stderr)
        return 2
    try:
        return _train(args)
    except (SourceError, TokenizerError, SplitError) as error:
        hint = getattr(error, "help", None)
        print(f"dtrain: {error}{f'; help: {hint}' if hint else ''}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"dtrain: cannot write {args.output}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 3


def _train(args: argparse.Namespace) -> int:
    from declarative_train.packs.text.tokenizer import tokenizer
    from declarative_train.packs.text.training import train_tokenizer

    texts = _Texts(args)
    if texts.sources is None:
        return texts.code
    content = train_tokenizer(iter(texts), args.vocab, args.special)
    path, part = Path(args.output), Path(f"{args.output}.{os.getpid()}.part")
    part.write_text(content, encoding="utf-8")
    part.replace(path)
    made = tokenizer(str(path.absolute()))
    num_tokens = sum(len(made.encode(text)) for text in texts.sample)
    num_bytes = sum(len(text.encode()) for text in texts.sample)
    rate = f"; a token has {num_bytes / num_tokens:.2f} bytes in the first of them" if num_tokens else ""
    print_text(
        f"{args.output}: {format_count(made.num_tokens, 'token')} of {format_count(texts.num_texts, 'text')}{rate}"
    )
    if made.num_tokens < args.vocab:
        print(f"dtrain: the texts have no more pairs: {made.num_tokens:,} of {args.vocab:,} tokens", file=sys.stderr)
    return 0


class _Texts:
    """Iterable of the texts on which a tokenizer is trained. `sources`: (table, column, rows) of the texts. If they
    cannot be found, the constructor prints an error, `sources` is None, and `code` is the exit code of the command."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.num_texts, self.sample, self.code = 0, list[str](), 2
        self.sources: list[tuple[Table, str, SetRows]] | None = None
        if args.recipe != "-" and not args.recipe.endswith((".yaml", ".yml")):
            self.sources = _files([args.recipe, *args.more])
        elif args.more:
            print("dtrain: give a recipe, or text files", file=sys.stderr)
        elif not report_missing(args.recipe):
            loaded = load_recipe(args, plugins=args.plugins)
            report(CompileResult(loaded, None, tuple(loaded.diagnostics), texts_of(loaded)))
            self.code = 1
            self.sources = None if loaded.recipe is None else _read_texts(loaded.recipe)

    def __iter__(self) -> Iterator[str]:
        for table, column, rows in self.sources or ():
            for _, numbers in rows.chunks(_AT_ONCE):
                for text in table.read([column], numbers)[column].tolist():
                    if text is None:
                        continue
                    if table.columns[column].dtype == "messages":
                        text = _join_messages(text)
                    self.num_texts += 1
                    if len(self.sample) < _AT_ONCE:
                        self.sample.append(text)
                    yield text


def _join_messages(dialogue: str) -> str:
    """Return the contents of a dialogue's messages as one text."""
    from declarative_train.packs.text.chat import ChatError, messages

    try:
        found = [each.get("content") for each in messages(dialogue)]
    except ChatError:  # `dtrain lint` reports the mistake
        found = []
    return "\n".join(each for each in found if isinstance(each, str))


def _files(paths: list[str]) -> list[tuple[Table, str, SetRows]]:
    from declarative_train.data.rows import RowRange
    from declarative_train.packs.text.text_files import TextDataset

    table = TextDataset(path=tuple(os.path.abspath(path) for path in paths), documents="file").open()
    return [(table, "text", RowRange(0, table.num_rows))]


def _read_texts(recipe: Recipe) -> list[tuple[Table, str, SetRows]] | None:
    """Return (table, column, rows) for each column of texts from which a tokenizer is trained. These are the columns of
    token fields, with the training rows. For a source that is a stream of tokens, it is one column with the
    texts of all its files. If there are no texts, print an error and return None."""
    from declarative_train.data.rows import RowRange
    from declarative_train.data.split_rows import TRAINING, split_rows
    from declarative_train.packs.text.text_files import TextDataset

    section, source = recipe.data, recipe.data.source
    columns = list(dict.fromkeys(name for each in section.fields.values() if each.takes_text for name in each.wanted))
    if isinstance(source, TextDataset) and source.documents is None:
        table = source.model_copy(update={"documents": "file", "tokenizer": "bytes", "eos": False}).open()
        return [(table, "text", RowRange(0, table.num_rows))]
    if not columns:
        print("dtrain: the recipe has no field of `type: tokens` to read texts from", file=sys.stderr)
        return None
    table = source.open()
    missing = [name for name in columns if name not in table.columns]
    if missing:
        print(f"dtrain: there is no column `{missing[0]}`", file=sys.stderr)
        return None
    rows = split_rows(table, section.split, recipe.seed, None, None)[TRAINING]
    return [(table, name, rows) for name in columns]
