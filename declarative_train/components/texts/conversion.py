"""A model of sentencepiece -> the text of a tokenizer.json, as transformers makes it of the folder.

Which tokens stand around a text, and what comes before a word, is said by the class that the folder's config names, and
by no model file: transformers knows the classes. What it makes is held against sentencepiece itself.
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

from declarative_train.components.texts.problem import TokenizerError
from declarative_train.core.machine import install
from declarative_train.files.open_files import shown

_NEEDED = {"sentencepiece": "sentencepiece", "google.protobuf": "protobuf", "transformers": "transformers"}
_PROBES = ("Every word of it, 1234 times.", "na\u00efve \u4f60\u597d \U0001f600", "a, b; (c)")


@lru_cache(maxsize=4)
def converted(path: str, modified_ns: int) -> bytes:
    """Of `tokenizer.model` or `spiece.model` in its folder. Raises TokenizerError."""
    missing = [name for module, name in _NEEDED.items() if not _is_there(module)]
    if missing:
        what = f"{shown(path)} is a model of sentencepiece, which needs the package"
        raise TokenizerError(f"{what}{'s' if len(missing) > 1 else ''} {', '.join(missing)}", install("sentencepiece"))
    spm: Any = import_module("sentencepiece")
    library: Any = import_module("transformers")
    try:
        own = spm.SentencePieceProcessor(model_file=path)
    except Exception as error:  # the library raises plain ones
        raise TokenizerError(f"{shown(path)} is no model of sentencepiece: {_line(error)}") from None
    try:
        with _silent():
            made = library.AutoTokenizer.from_pretrained(os.path.dirname(path) or ".", local_files_only=True)
            content: str = made.backend_tokenizer.to_str()
            apart = next((text for text in _PROBES if _pieces(made, text) != own.encode(text, out_type=str)), None)
    except Exception as error:  # whatever the library finds wrong with the folder
        raise TokenizerError(f"transformers makes no tokenizer of {shown(path)}: {_line(error)}", _CLASS) from None
    if apart is not None:
        message = f"what transformers makes of {shown(path)} cuts `{apart}` otherwise than sentencepiece does"
        raise TokenizerError(message, _CLASS)
    return content.encode()


_CLASS = 'its class stands in tokenizer_config.json beside it, such as {"tokenizer_class": "LlamaTokenizer"}'


def _pieces(made: Any, text: str) -> list[str]:
    found: list[str] = made.backend_tokenizer.encode(text, add_special_tokens=False).tokens
    return found


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def _silent() -> Iterator[None]:
    """The library says on the terminal what is none of the user's."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
