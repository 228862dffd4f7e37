"""A column of texts -> token numbers, and what a model must know beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field as Key

from declarative_train.components.component import Misfit
from declarative_train.components.data import BadValueError, Column, Field, Tally
from declarative_train.components.texts import layout
from declarative_train.components.texts.cache import Encoded
from declarative_train.components.texts.tokenizer import Tokenizer, TokenizerError, tokenizer
from declarative_train.terms.amounts import counted
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np

Asked = bool | Annotated[str, Key(min_length=1)]


class TokensField(Field):
    """Texts as tokens, int64 of shape (length,). What is shorter is padded, what is longer cut.

    `NAME` is the tokens, `NAME.ids` too. `NAME.mask` is true where there is no padding; `NAME.segments` numbers the
    texts in a sample from 1 on, 0 in padding; `NAME.positions` counts from 0 in each; `NAME.trained` is true for the
    tokens that are to be predicted: all but padding and the first of each text. Their range travels on: an `embedding`
    needs no `num_embeddings`.
    """

    meaning: ClassVar[tuple[str, ...]] = ("bos", "eos", "special")
    outputs: ClassVar[tuple[str, ...]] = layout.OUTPUTS
    takes_text: ClassVar[bool] = True

    type: Literal["tokens"] = "tokens"
    column: Annotated[str, Key(min_length=1)]
    """A column of texts."""
    tokenizer: Annotated[str, Key(min_length=1)]
    """`bytes` (256 tokens, those of the UTF-8 text), a file `tokenizer.json` of Hugging Face's `tokenizers`, or the
    folder of a model that holds one; relative to the recipe's file. Which tokens begin, end and pad a text is read from
    the folder."""
    length: Annotated[int, Key(ge=1, le=1 << 24)]
    """Tokens of a sample."""
    pad: Annotated[int, Key(ge=0)] | Annotated[str, Key(min_length=1)] | None = None
    """The token of positions behind a text, by number or as it is written; left out: the tokenizer's own, else the one
    that ends a text, else 0. `NAME.mask` tells it from a token of the text."""
    truncate: Literal["end", "start", "error"] = "end"
    """What of a longer text is left out: its end or its start; `error`: it is an error."""
    bos: Asked = False
    """A token before each text: true, the tokenizer's own, or the token as it is written."""
    eos: Asked = False
    """A token behind each text: true, the tokenizer's own, or the token as it is written."""
    special: bool = True
    """The tokens that the tokenizer puts around a text by itself (its post-processor)."""
    pack: Literal["best_fit", "sequential"] | None = None
    """Several texts in a sample, each token of each text once: the samples are then of `length` tokens, whatever the
    rows were. `best_fit` cuts only texts that are longer than a sample, `sequential` puts one behind the other and cuts
    at the end of a sample. `NAME.segments` and `NAME.positions` keep the texts apart."""
    output: Literal["ids", "mask", "segments", "positions", "trained"] = "ids"
    """What `NAME` is; the others are `NAME.OUTPUT`."""

    @property
    def wanted(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def files(self) -> tuple[str, ...]:
        return tokenizer(self.tokenizer).files

    @property
    def cut(self) -> None:
        return None

    def output_of(self, name: str) -> TokensField:
        return self.model_copy(update={"output": name})

    def check(self, columns: Sequence[Column]) -> Misfit | None:
        column = columns[0]
        if column.dtype != "object" or column.shape:
            holds = "files" if column.dtype == "bytes" else column.dtype
            return Misfit(f"`{column.name}` holds {holds}, and tokens are made of text", field="column")
        try:
            found = tokenizer(self.tokenizer)
        except TokenizerError as error:
            return Misfit(str(error), field="tokenizer", help=error.help)
        for key in ("bos", "eos"):
            try:
                found.role(key, getattr(self, key))
            except TokenizerError as error:
                return Misfit(str(error), field=key, help=error.help)
        return self._check_pad(found)

    def _check_pad(self, found: Tokenizer) -> Misfit | None:
        if isinstance(self.pad, str) and found.number(self.pad) is None:
            return Misfit(f"the tokenizer has no token `{self.pad}`", field="pad", help="write one that it has")
        if isinstance(self.pad, int) and self.pad >= found.num_tokens:
            message = f"`pad` is {self.pad}, and the tokenizer has {counted(found.num_tokens, 'token')}, from 0 on"
            return Misfit(message, field="pad")
        return None

    def pad_of(self, found: Tokenizer) -> int:
        if isinstance(self.pad, int):
            return self.pad
        if isinstance(self.pad, str):
            return found.number(self.pad) or 0
        return found.special.get("pad", found.special.get("eos", 0))

    def misreads(self, statistics: Mapping[str, object]) -> str | None:
        before = statistics.get("tokenizer")
        is_other = before is not None and before != tokenizer(self.tokenizer).sha256
        return "it has another tokenizer here, so that a number is another token" if is_other else None

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        return _OfTokenizer(self)

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        shape = (self.length,)
        if self.output in ("mask", "trained"):
            return TensorSpec(shape, "bool")
        if self.output == "ids":
            known = statistics.get("num_tokens")
            size = known if isinstance(known, int) else tokenizer(self.tokenizer).num_tokens
            return TensorSpec(shape, "int64").between([(0, size - 1)])
        most = self.length - 1 if self.output == "positions" else self.length
        return TensorSpec(shape, "int64").between([(0, most)])

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        return values[0] if values[0].dtype != object else self.laid_out(values[0], columns[0])

    def laid_out(self, values: np.ndarray, column: Column) -> np.ndarray:
        """(N, length) of texts. Raises BadValueError."""
        found = tokenizer(self.tokenizer)
        texts, flags = [], []
        for row, value in enumerate(values.tolist()):
            tokens, trained = self.encoded(value, column, row, found)
            begin, end = (int(each) for each in self.kept(0, len(tokens)))
            texts.append(tokens[begin:end])
            flags.append(None if trained is None else trained[begin:end])
        pieces = layout.of_texts(texts, flags)
        return layout.rows((self.output,), pieces, self.length, self.pad_of(found))[self.output]

    marks_trained: ClassVar[bool] = False

    def encoded(self, value: Any, column: Column, row: int, found: Tokenizer) -> Encoded:
        """Of one value, whole; with `truncate: error`, of one that is not too long. Raises BadValueError."""
        if value is None:
            hint = "leave the row out, or write a text there"
            raise BadValueError("missing", column.name, f"`{column.name}` misses a text", row=row, help=hint)
        tokens = found.encode(value, adds_special=self.special)
        first, last = found.role("bos", self.bos), found.role("eos", self.eos)
        if first is not None and tokens[:1] != [first]:
            tokens = [first, *tokens]
        if last is not None and tokens[-1:] != [last]:
            tokens = [*tokens, last]
        if len(tokens) > self.length and self.truncate == "error" and self.pack is None:
            message = f"`{column.name}` has {counted(len(tokens), 'token')}, and `length` is {self.length:,}"
            raise BadValueError("outside", column.name, message, row=row, key="length")
        return tokens, None

    def kept(self, start: Any, stop: Any) -> tuple[Any, Any]:
        """Which of the tokens from `start` up to `stop` (numbers, or arrays of them) fit into a sample."""
        import numpy as np

        if self.truncate == "start":
            return np.maximum(start, stop - self.length), stop
        return start, np.minimum(stop, start + self.length)

    def meaning_of_text(self) -> list[object]:
        """The keys that the tokens of a text depend on."""
        longest = self.length if self.truncate == "error" and self.pack is None else None
        return [self.bos, self.eos, self.special, longest]


class _OfTokenizer(Tally):
    """What must be known of the tokenizer where its file is not; of the rows nothing."""

    needs_rows = False

    def __init__(self, field: TokensField) -> None:
        self._field = field

    def add(self, values: Sequence[np.ndarray]) -> None:
        pass

    def result(self) -> dict[str, object]:
        found = tokenizer(self._field.tokenizer)
        return {"num_tokens": found.num_tokens, "tokenizer": found.sha256}
