"""Field of tokens: a column of texts or dialogues becomes token numbers, masks, segments and positions."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import Field as Key

from declarative_train.components.component import ShapeError
from declarative_train.components.data import MESSAGES, BadValueError, Column, Field, Tally
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.packs.text import chat, layout
from declarative_train.packs.text.cache import Encoded
from declarative_train.packs.text.token_keys import AddedWords, Buckets, TokenChoice
from declarative_train.packs.text.tokenizer import (
    PATH_KEYS,
    AddedTokens,
    Tokenizer,
    TokenizerError,
    is_inline,
    is_path,
    tokenizer,
)

if TYPE_CHECKING:
    import numpy as np


class TokensField(Field):
    """Texts, or dialogues, as tokens, int64 of shape (length,). Shorter texts are padded, longer ones are cut.

    A dialogue is a list of messages {role, content} (or {from, value}); the chat template writes it as text.

    `NAME` and `NAME.ids` are the tokens. `NAME.mask` is true where there is no padding. `NAME.segments` numbers the
    texts in a sample from 1, 0 in padding. `NAME.positions` counts from 0 in each text. `NAME.trained` is true for the
    tokens that count in the loss: all except padding and the first of each text. In a dialogue these are only the
    assistant's tokens; with `prompt`, only those of `column`. Layers know the range of the tokens: an `embedding` needs
    no `num_embeddings`."""

    meaning: ClassVar[tuple[str, ...]] = ("bos", "eos", "special")
    outputs: ClassVar[tuple[str, ...]] = layout.OUTPUTS
    takes_text: ClassVar[bool] = True

    type: Literal["tokens"] = "tokens"
    column: Annotated[str, Key(min_length=1)]
    """Column of texts, or of lists of messages."""
    prompt: Annotated[str, Key(min_length=1)] | None = None
    """Column of texts, or of lists of messages, that come before those of `column` and are not to be predicted."""
    context: Annotated[str, Key(min_length=1)] | None = None
    """Column of texts that complete those of `prompt` (`input` of Alpaca): added after an empty line, if not empty."""
    tools: Annotated[str, Key(min_length=1)] | None = None
    """Column of the tools that a dialogue may call: lists of JSON schemas, which the chat template writes."""
    template: Literal[True] | Annotated[str, Key(min_length=1)] | None = None
    """Chat template (Jinja) for dialogues: a file, or the template itself; left out: the tokenizer's own. `true`: use
    the tokenizer's own also where `column` is text, which is then the assistant's answer to `prompt`. What the
    assistant says is the text in `{% generation %}`; in a template without it, the text that its loop over the
    messages writes for an answer, without the prompt for one."""
    answers: Literal["all", "last"] = "all"
    """Answers of a dialogue to be predicted: all, except those whose messages are marked; or the last one, as for
    preferences, whose dialogues differ in it."""
    tokenizer: Annotated[str, Key(min_length=1)]
    """Tokenizer: `bytes` (256 tokens, the bytes of the UTF-8 text), a file `tokenizer.json` of Hugging Face's
    `tokenizers`, a `tokenizer.model` of sentencepiece (extra `sentencepiece`), or the folder of a model with one of
    them; relative to the recipe's file. The tokens that begin, end and pad a text are read from the folder."""
    vocabulary: AddedWords | None = None
    """Tokens that are added to the tokenizer, numbered from its last one on. A model of the block's `from` then needs a
    larger `vocabulary`: its new rows start as the mean of the others. Exports have the larger tokenizer."""
    length: Annotated[int, Key(ge=1, le=1 << 24)] | Buckets
    """Number of tokens of a sample. `{buckets: [128, 256, 512]}`: at most 512, and each batch is only as long as the
    smallest of these that holds its longest text, which leaves less padding."""
    pad: Annotated[int, Key(ge=0)] | Annotated[str, Key(min_length=1)] | None = None
    """Token of padding, by its number or its text; left out: the tokenizer's own, else the one that ends a text, else
    0. `NAME.mask` distinguishes padding from the text."""
    truncate: Literal["end", "start", "error"] = "end"
    """Part of a longer text that is cut off: its end or its start; `error`: a longer text is an error."""
    bos: TokenChoice = False
    """Token before each text: `true`: the tokenizer's own; or the text of a token."""
    eos: TokenChoice = False
    """Token after each text: `true`: the tokenizer's own; or the text of a token."""
    special: bool = True
    """Whether to add the tokens that the tokenizer itself puts around a text (its post-processor)."""
    pack: Literal["best_fit", "sequential"] | None = None
    """Put several texts in a sample of `length` tokens; each token of each text is used once, and samples no longer
    correspond to rows. `best_fit` cuts only texts that are longer than a sample. `sequential` concatenates the texts
    and cuts at the end of each sample. `NAME.segments` and `NAME.positions` keep the texts apart."""
    texts: Annotated[int, Key(ge=1, le=1 << 24)] | None = None
    """With `pack: best_fit`: the largest number of texts in a sample, to which `NAME.segments` then goes. For values of
    single texts, such as those of the blocks `packed_log_likelihood` and `packed_last`."""
    output: Literal["ids", "mask", "segments", "positions", "trained"] = "ids"
    """Output that `NAME` stands for; the others are `NAME.OUTPUT`."""

    @property
    def longest(self) -> int:
        """Number of tokens of a sample; if the field has length buckets, of a sample in the longest bucket."""
        return self.length if isinstance(self.length, int) else self.length.buckets[-1]

    @property
    def buckets(self) -> tuple[int, ...]:
        return () if isinstance(self.length, int) else self.length.buckets

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(self._columns.values())

    @property
    def _columns(self) -> dict[str, str]:
        """Names of the field's columns, as {key of the field: name of the column}."""
        named = {key: getattr(self, key) for key in ("column", "prompt", "context", "tools")}
        return {key: name for key, name in named.items() if name is not None}

    @property
    def _places(self) -> dict[str, int]:
        """Dict from each key that names a column to the index of this column among the field's columns. Two keys may
        name the same column."""
        names = list(dict.fromkeys(self.wanted))
        return {key: names.index(name) for key, name in self._columns.items()}

    @property
    def files(self) -> tuple[str, ...]:
        own = (self.template,) if isinstance(self.template, str) and not is_inline(self.template) else ()
        return (*self.open_tokenizer().files, *own)

    @property
    def adds_tokens(self) -> bool:
        return self.vocabulary is not None

    def open_tokenizer(self) -> Tokenizer:
        """Open the field's tokenizer, with the tokens that the recipe adds. Raises TokenizerError."""
        words = self.vocabulary
        return tokenizer(self.tokenizer, AddedTokens() if words is None else AddedTokens(words.add, words.add_special))

    @property
    def cut(self) -> None:
        return None

    def output_of(self, name: str) -> TokensField:
        return self.model_copy(update={"output": name})

    path_keys: ClassVar[tuple[str, ...]] = PATH_KEYS

    @classmethod
    def is_path(cls, value: str) -> bool:
        return is_path(value)

    @property
    def joined_by(self) -> str | None:
        return None if self.pack is None else "pack"

    @property
    def joined_alike(self) -> tuple[object, ...] | None:
        return (self.pack, self.texts) if self.pack == "best_fit" else None

    @property
    def pads(self) -> bool:
        return self.output == "ids" and self.pack is None

    def padding(self) -> int:
        return self.pad_of(self.open_tokenizer())

    def unread(self, columns: Sequence[Column], others: Collection[str]) -> tuple[str, str] | None:
        if "tools" not in others or not self.lacks_tools(columns):
            return None
        message = "its chat template writes tools, but does not get those of the column `tools`"
        return message, "set `tools: tools`"

    def needs_value(self, column: Column) -> bool:
        return column.name not in (self.tools, self.context) and column.dtype == "object"

    def check(self, columns: Sequence[Column]) -> ShapeError | None:
        for key, place in self._places.items():
            column = columns[place]
            if column.dtype not in ("object", MESSAGES) or column.shape:
                holds = "files" if column.dtype == "bytes" else column.dtype
                made = "tools are lists of JSON schemas" if key == "tools" else "tokens are made of text"
                return ShapeError(f"`{column.name}` holds {holds}, and {made}", field=key)
        if self.context is not None:
            texts = [columns[self._places[key]].dtype for key in ("prompt", "context") if key in self._places]
            if texts != ["object"] * 2:
                return ShapeError("`context` is text, and completes a `prompt` that is text", field="context")
        key = "tokenizer"
        try:
            tokenizer(self.tokenizer)
            key = "vocabulary"
            found = self.open_tokenizer()
        except TokenizerError as error:
            return ShapeError(str(error), field=key, help=error.help)
        if self.answers == "last" and not self.is_chat(columns):
            return ShapeError("only a dialogue has several answers", field="answers", help="remove `answers`")
        if self.is_chat(columns):
            try:
                template = chat.compile_template(chat.template_text(self.template, found))
            except (TokenizerError, chat.ChatError) as error:
                return ShapeError(
                    str(error), field="tokenizer" if self.template is None else "template", help=error.help
                )
            if self.tools is not None and not template.reads_tools:
                return ShapeError("its chat template writes no tools", field="tools", help="remove `tools`")
        elif self.tools is not None:
            message = "tools are written by a chat template, and its column holds text"
            return ShapeError(message, field="tools", help="remove `tools`")
        for key in ("bos", "eos"):
            try:
                found.role(key, getattr(self, key))
            except TokenizerError as error:
                return ShapeError(str(error), field=key, help=error.help)
        if self.texts is not None and self.pack != "best_fit":
            return ShapeError(
                "`texts` is a number of texts in a sample, but the field is not packed",
                field="texts",
                help="set `pack: best_fit`",
            )
        if self.pack is not None and self.buckets:
            message = "packed samples are full, so that none fits a shorter bucket"
            return ShapeError(message, field="pack", help=f"remove `pack`, or write `length: {self.longest}`")
        return self._check_pad(found)

    def is_chat(self, columns: Sequence[Column]) -> bool:
        """Return whether a chat template renders the texts, because a column has messages or `template` is set."""
        texts = {place for key, place in self._places.items() if key != "tools"}
        return self.template is not None or any(columns[place].dtype == MESSAGES for place in texts)

    def lacks_tools(self, columns: Sequence[Column]) -> bool:
        """Return whether the chat template reads tools but the field does not name a column with tools."""
        if self.tools is not None or not self.is_chat(columns):
            return False
        return chat.compile_template(chat.template_text(self.template, self.open_tokenizer())).reads_tools

    def marks_trained(self, columns: Sequence[Column]) -> bool:
        """Return whether only some tokens of a text are to be predicted, as in dialogues and answers to a `prompt`."""
        return self.prompt is not None or self.is_chat(columns)

    def _check_pad(self, found: Tokenizer) -> ShapeError | None:
        if isinstance(self.pad, str) and found.number(self.pad) is None:
            return ShapeError(f"the tokenizer has no token `{self.pad}`", field="pad", help="name a token that it has")
        if isinstance(self.pad, int) and self.pad >= found.num_tokens:
            message = f"`pad` is {self.pad}, and the tokenizer has {format_count(found.num_tokens, 'token')}, from 0 on"
            return ShapeError(message, field="pad")
        return None

    def pad_of(self, found: Tokenizer) -> int:
        if isinstance(self.pad, int):
            return self.pad
        if isinstance(self.pad, str):
            return found.number(self.pad) or 0
        return found.special.get("pad", found.special.get("eos", 0))

    def misreads(self, statistics: Mapping[str, object]) -> str | None:
        before = statistics.get("tokenizer")
        is_other = before is not None and before != self.open_tokenizer().sha256
        if is_other:
            return "it has another tokenizer here, so that the same number is another token"
        written = statistics.get("template")
        if written is not None and written != self._template_sha256():
            return "its chat template has changed"
        return None

    def _template_sha256(self) -> str:
        return hashlib.sha256(chat.template_text(self.template, self.open_tokenizer()).encode()).hexdigest()

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        return _TokenizerTally(self, self.is_chat(columns))

    def row_spec(self, columns: Sequence[Column], statistics: Mapping[str, object]) -> TensorSpec:
        shape = (self.longest,)
        if self.output in ("mask", "trained"):
            return TensorSpec(shape, "bool")
        if self.output == "ids":
            known = statistics.get("num_tokens")
            size = known if isinstance(known, int) else self.open_tokenizer().num_tokens
            return TensorSpec(shape, "int64").between([(0, size - 1)])
        most = self.longest - 1 if self.output == "positions" else min(self.texts or self.longest, self.longest)
        return TensorSpec(shape, "int64").between([(0, most)])

    def convert(
        self, values: Sequence[np.ndarray], columns: Sequence[Column], statistics: Mapping[str, object]
    ) -> np.ndarray:
        return values[0] if values[0].dtype != object else self.lay_out(values, columns)

    def lay_out(self, values: Sequence[np.ndarray], columns: Sequence[Column]) -> np.ndarray:
        """Encode texts and arrange them as rows of the field's length. Return the field's output as an array with one
        row for each text. `values`: values of the field's columns. Raises BadValueError."""
        found = self.open_tokenizer()
        texts, flags = [], []
        for row, value in enumerate(self.join_columns(values)):
            tokens, trained, _ = self.encode(value, columns, row, found)
            begin, end = (int(each) for each in self.cut_to_length(0, len(tokens)))
            texts.append(tokens[begin:end])
            flags.append(None if trained is None else trained[begin:end])
        pieces = layout.pieces_of_texts(texts, flags)
        return layout.rows((self.output,), pieces, self.longest, self.pad_of(found))[self.output]

    def join_columns(self, values: Sequence[np.ndarray]) -> Sequence[object]:
        """Return the input of `encode` for each row: the value of the field's only column or, if several keys such as
        `prompt` name columns, a tuple with a value for each key. `values`: the values of each column of the field."""
        if len(self._columns) == 1:
            return cast("list[object]", values[0].tolist())
        return list(zip(*(values[place].tolist() for place in self._places.values()), strict=True))

    def missing_key(self, value: Any) -> str | None:
        """Return the key, `column` or `prompt`, whose column has no text in a row (`column` if both have none); None if
        no text is missing. `value`: what `join_columns` returned for the row."""
        given = self._split_by_key(value)
        return next((key for key in ("column", "prompt") if key in given and given[key] is None), None)

    def _split_by_key(self, value: Any) -> dict[str, Any]:
        return dict(zip(self._columns, (value,) if len(self._columns) == 1 else value, strict=True))

    def encode(self, value: Any, columns: Sequence[Column], row: int, found: Tokenizer) -> Encoded:
        """Encode the value of one row (from `join_columns`), without cutting the tokens to the length of a sample.
        Raises BadValueError for a missing text and for one that cannot be encoded. With `truncate: error`, a text that
        is longer than a sample is an error too, unless texts are packed."""
        if (key := self.missing_key(value)) is not None:
            name, hint = columns[self._places[key]].name, "leave the row out, or write a text there"
            raise BadValueError("missing", name, f"`{name}` misses a text", row=row, help=hint)
        given = self._split_by_key(value)
        text, prompt = given["column"], given.get("prompt")
        if prompt is not None and given.get("context"):
            prompt += f"\n\n{given['context']}"
        trained: list[bool] | None = None
        written = chat.RenderedChat("", ())
        try:
            if self.is_chat(columns):
                written = self.render(text, prompt, given.get("tools"), found)
                tokens, trained = chat.tokens(written, found)
            elif prompt is not None:
                tokens, trained = self.encode_after_prompt(prompt, text, found)
            else:
                tokens = found.encode(text, adds_special=self.special)
        except (chat.ChatError, TokenizerError) as error:
            message = f"`{columns[0].name}`: {error}"
            raise BadValueError("unreadable", columns[0].name, message, row=row, help=error.help) from error
        tokens, trained = self._add_ends(tokens, trained, found, learns_end=written.learns_end)
        if len(tokens) > self.longest and self.truncate == "error" and self.pack is None:
            message = f"`{columns[0].name}` has {format_count(len(tokens), 'token')}, and `length` is {self.longest:,}"
            raise BadValueError("outside", columns[0].name, message, row=row, key="length")
        return Encoded(tokens, trained, written.unread)

    def render(self, text: str, prompt: str | None, tools: str | None, found: Tokenizer) -> chat.RenderedChat:
        """Render a dialogue with the chat template. The result has the text, and the spans that count in the loss.
        `text`: the messages as JSON, or if there is a `prompt`, only the answer to it. `tools`: JSON schemas as text.
        Raises ChatError."""
        before = [] if prompt is None else chat.messages(prompt, "user")
        given = [*before, *chat.messages(text, None if prompt is None else chat.ASSISTANT)]
        template = chat.template_text(self.template, found)
        num_given = len(given) - 1 if self.answers == "last" else len(before)
        return chat.write(template, given, found, num_given, chat.tools(tools))

    def encode_after_prompt(self, prompt: str, text: str, found: Tokenizer) -> tuple[list[int], list[bool]]:
        """Encode prompt and text together. Return (tokens, flags). A flag is true if the token is to be predicted: if
        it is part of `text`, or if the tokenizer adds it after the text."""
        whole = prompt + text
        tokens, trained = chat.tokens(chat.RenderedChat(whole, [(len(prompt), len(whole))]), found)
        if not self.special:
            return tokens, trained
        full = found.encode(whole)
        at = next((at for at in range(len(full)) if full[at : at + len(tokens)] == tokens), None)
        if at is None:
            return tokens, trained
        rest = full[at + len(tokens) :]
        return full, [False] * at + trained + [True] * len(rest)

    def _add_ends(
        self, tokens: list[int], trained: list[bool] | None, found: Tokenizer, *, learns_end: bool
    ) -> tuple[list[int], list[bool] | None]:
        """Add the tokens `bos` and `eos`, if the field has them and the text does not begin or end with them. Return
        (tokens, flags). `trained`: for each token, a flag whether it is to be predicted; None: all are. `learns_end`:
        the flag for the added `eos`."""
        first, last = found.role("bos", self.bos), found.role("eos", self.eos)
        if first is not None and tokens[:1] != [first]:
            tokens = [first, *tokens]
            trained = trained if trained is None else [False, *trained]
        if last is not None and tokens[-1:] != [last]:
            tokens = [*tokens, last]
            trained = trained if trained is None else [*trained, learns_end]
        return tokens, trained

    def cut_to_length(self, start: Any, stop: Any) -> tuple[Any, Any]:
        """Cut a range of tokens to the length of a sample, at its start or end (key `truncate`). Return the new (start,
        stop). `start`, `stop`: indices of tokens, or arrays of indices for many ranges."""
        import numpy as np

        if self.truncate == "start":
            return np.maximum(start, stop - self.longest), stop
        return start, np.minimum(stop, start + self.longest)

    def list_text_settings(self) -> list[object]:
        """Return the settings of the field that determine, together with the tokenizer, the tokens of a text."""
        longest = self.longest if self.truncate == "error" and self.pack is None else None
        found: list[object] = [self.bos, self.eos, self.special, longest]
        if self.template is not None or self.prompt is not None:
            found += [self.prompt, self.template and chat.template_text(self.template, self.open_tokenizer())]
        rest = {
            "tools": self.tools,
            "context": self.context,
            "answers": self.answers if self.answers != "all" else None,
        }
        return [*found, *(part for pair in rest.items() if pair[1] is not None for part in pair)]


class _TokenizerTally(Tally):
    """Statistics of a token field: how many tokens its tokenizer has, the tokenizer's hash, and for dialogues the hash
    of the chat template. A run stores them, so that the range of the tokens is known even if the tokenizer's file is
    missing. They are computed without reading rows."""

    needs_rows = False

    def __init__(self, field: TokensField, is_chat: bool) -> None:
        self._field, self._is_chat = field, is_chat

    def add(self, values: Sequence[np.ndarray]) -> None:
        pass

    def result(self) -> dict[str, object]:
        found = self._field.open_tokenizer()
        about = {"dialogues": True, "template": self._field._template_sha256()} if self._is_chat else {}
        return {"num_tokens": found.num_tokens, "tokenizer": found.sha256, **about}
