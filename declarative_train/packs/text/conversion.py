"""Conversion of a sentencepiece model to a tokenizer.json, by transformers.

The model file does not say which tokens are added around a text. This depends on the tokenizer class that the config in
the model's folder names, and transformers has these classes. The result is compared with sentencepiece on a few texts.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from declarative_train.core.machine import install
from declarative_train.files.open_files import format_path
from declarative_train.packs.text.problem import TokenizerError

_NEEDED = {"sentencepiece": "sentencepiece", "google.protobuf": "protobuf", "transformers": "transformers"}
_PROBES = ("Every word of it, 1234 times.", "na\u00efve \u4f60\u597d \U0001f600", "a, b; (c)")


@lru_cache(maxsize=4)
def convert(path: str, modified_ns: int) -> bytes:
    """Convert the sentencepiece model at `path` (`tokenizer.model` or `spiece.model`) and return the content of a
    tokenizer.json. `modified_ns`: the file's modification time, by which results are cached. Raises TokenizerError."""
    missing = [name for module, name in _NEEDED.items() if not _is_installed(module)]
    if missing:
        what = f"{format_path(path)} is a sentencepiece model, which needs the package"
        raise TokenizerError(f"{what}{'s' if len(missing) > 1 else ''} {', '.join(missing)}", install("sentencepiece"))
    spm: Any = import_module("sentencepiece")
    library: Any = import_module("transformers")
    try:
        own = spm.SentencePieceProcessor(model_file=path)
    except Exception as error:  # the library raises plain `Exception`s
        raise TokenizerError(f"{format_path(path)} is not a sentencepiece model: {_first_line(error)}") from None
    try:
        with _silence_transformers():
            made = library.AutoTokenizer.from_pretrained(os.path.dirname(path) or ".", local_files_only=True)
            content: str = made.backend_tokenizer.to_str()
            differing = next((text for text in _PROBES if _pieces(made, text) != own.encode(text, out_type=str)), None)
    except Exception as error:  # any problem of the folder that the library reports
        raise TokenizerError(
            f"transformers cannot convert {format_path(path)}: {_first_line(error)}", _CLASS_HINT
        ) from None
    if differing is not None:
        message = (
            f"transformers makes a tokenizer of {format_path(path)} that splits `{differing}` differently from "
            "sentencepiece"
        )
        raise TokenizerError(message, _CLASS_HINT)
    return content.encode()


_CLASS_HINT = 'name its class in tokenizer_config.json of its folder: {"tokenizer_class": "LlamaTokenizer"}'


def _pieces(made: Any, text: str) -> list[str]:
    found: list[str] = made.backend_tokenizer.encode(text, add_special_tokens=False).tokens
    return found


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def _silence_transformers() -> Iterator[None]:
    """Suppress log messages and warnings of transformers within the `with` block."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
