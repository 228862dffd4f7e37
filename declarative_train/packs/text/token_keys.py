"""Values of the keys of a `tokens` field that are mappings: length buckets, and tokens added to the tokenizer."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic import Field as Key

TokenText = Annotated[str, Key(min_length=1)]
TokenChoice = bool | TokenText


class Buckets(BaseModel):
    """Length buckets of a token field: each batch is padded to one of these lengths."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    buckets: Annotated[tuple[Annotated[int, Key(ge=1, le=1 << 24)], ...], Key(min_length=2, max_length=16)]
    """Lengths, ascending. A batch is as long as the smallest one that holds its longest text, and texts of one bucket
    are put into the same batches. The last is the length of a sample."""

    @model_validator(mode="after")
    def _ascend(self) -> Buckets:
        if any(after <= before for before, after in pairwise(self.buckets)):
            raise ValueError("`buckets` must ascend, without repeats")
        return self


class AddedWords(BaseModel):
    """Tokens that are added to a tokenizer, first those of `add`, then those of `add_special`, each in the given
    order."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    add: tuple[TokenText, ...] = Key((), strict=False)
    """Texts of tokens, `["<tool>", "</tool>"]`: parts of a text like others."""
    add_special: tuple[TokenText, ...] = Key((), strict=False)
    """Texts of special tokens, `["<|im_end|>"]`, such as those that end an answer: decoding leaves them out."""

    @model_validator(mode="after")
    def _differ(self) -> Self:
        words = (*self.add, *self.add_special)
        if not words or len(set(words)) < len(words):
            raise ValueError("`add` and `add_special` need tokens, each once")
        return self
