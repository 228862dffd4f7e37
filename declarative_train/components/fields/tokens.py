"""A column of texts -> token numbers, and what a model must know beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import Field as Key

from declarative_train.components.component import Misfit
from declarative_train.components.data import MESSAGES, BadValueError, Column, Field, Tally
from declarative_train.components.texts import chat, layout
from declarative_train.components.texts.cache import Encoded
from declarative_train.components.texts.tokenizer import Tokenizer, TokenizerError, is_inline, tokenizer
from declarative_train.core.amounts import counted
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np

Asked = bool | Annotated[str, Key(min_length=1)]


class TokensField(Field):
    """Texts, or dialogues, as tokens, int64 of shape (length,). What is shorter is padded, what is longer cut.

    A dialogue is a list of messages {role, content} (or {from, value}), written as the chat template says.

    `NAME` is the tokens, `NAME.ids` too. `NAME.mask` is true where there is no padding; `NAME.segments` numbers the
    texts in a sample from 1 on, 0 in padding; `NAME.positions` counts from 0 in each; `NAME.trained` is true for the
    tokens that are to be predicted: all but padding and the first of each text, of a dialogue what the assistant says,
    with `prompt` what stands in `column`. Their range travels on: an `embedding` needs no `num_embeddings`.
    """

    meaning: ClassVar[tuple[str, ...]] = ("bos", "eos", "special")
    outputs: ClassVar[tuple[str, ...]] = layout.OUTPUTS
    takes_text: ClassVar[bool] = True

    type: Literal["tokens"] = "tokens"
    column: Annotated[str, Key(min_length=1)]
    """A column of texts, or of lists of messages."""
    prompt: Annotated[str, Key(min_length=1)] | None = None
    """A column of texts, or of lists of messages, that stand before those of `column`, and are not to be predicted."""
    tools: Annotated[str, Key(min_length=1)] | None = None
    """A column of the tools that a dialogue may call, lists of JSON schemas, which the chat template writes."""
    template: Literal[True] | Annotated[str, Key(min_length=1)] | None = None
    """The chat template (Jinja) that a dialogue is written by: a file, or the template itself; left out: the
    tokenizer's own (true: also where `column` is text, which is then what the assistant answers to `prompt`). What the
    assistant says is what stands in `{% generation %}`; of a template without it, what an answer adds to the text."""
    tokenizer: Annotated[str, Key(min_length=1)]
    """`bytes` (256 tokens, those of the UTF-8 text), a file `tokenizer.json` of Hugging Face's `tokenizers`, or the
    folder of a model that holds one, or a `tokenizer.model` of sentencepiece (extra `sentencepiece`); relative to the
    recipe's file. Which tokens begin, end and pad a text is read from the folder."""
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
        return tuple(self._columns.values())

    @property
    def _columns(self) -> dict[str, str]:
        """The keys that name a column, and its name."""
        named = {"column": self.column, "prompt": self.prompt, "tools": self.tools}
        return {key: name for key, name in named.items() if name is not None}

    @property
    def _places(self) -> dict[str, int]:
        """The keys that name a column, and its place among the field's columns: two keys may name the same one."""
        names = list(dict.fromkeys(self.wanted))
        return {key: names.index(name) for key, name in self._columns.items()}

    @property
    def files(self) -> tuple[str, ...]:
        own = (self.template,) if isinstance(self.template, str) and not is_inline(self.template) else ()
        return (*tokenizer(self.tokenizer).files, *own)

    @property
    def cut(self) -> None:
        return None

    def output_of(self, name: str) -> TokensField:
        return self.model_copy(update={"output": name})

    def check(self, columns: Sequence[Column]) -> Misfit | None:
        for key, place in self._places.items():
            column = columns[place]
            if column.dtype not in ("object", MESSAGES) or column.shape:
                holds = "files" if column.dtype == "bytes" else column.dtype
                made = "tools are lists of JSON schemas" if key == "tools" else "tokens are made of text"
                return Misfit(f"`{column.name}` holds {holds}, and {made}", field=key)
        try:
            found = tokenizer(self.tokenizer)
        except TokenizerError as error:
            return Misfit(str(error), field="tokenizer", help=error.help)
        if self.is_chat(columns):
            try:
                template = chat.compile_template(chat.template_text(self.template, found))
            except (TokenizerError, chat.ChatError) as error:
                return Misfit(str(error), field="tokenizer" if self.template is None else "template", help=error.help)
            if self.tools is not None and not template.reads_tools:
                return Misfit("its chat template writes no tools", field="tools", help="leave `tools` out")
        elif self.tools is not None:
            message = "tools are written by a chat template, and its column holds text"
            return Misfit(message, field="tools", help="leave `tools` out")
        for key in ("bos", "eos"):
            try:
                found.role(key, getattr(self, key))
            except TokenizerError as error:
                return Misfit(str(error), field=key, help=error.help)
        return self._check_pad(found)

    def is_chat(self, columns: Sequence[Column]) -> bool:
        """Its column holds lists of messages, or a template makes them of texts."""
        texts = {place for key, place in self._places.items() if key != "tools"}
        return self.template is not None or any(columns[place].dtype == MESSAGES for place in texts)

    def lacks_tools(self, columns: Sequence[Column]) -> bool:
        """Its chat template writes tools, and no column of them is named."""
        if self.tools is not None or not self.is_chat(columns):
            return False
        return chat.compile_template(chat.template_text(self.template, tokenizer(self.tokenizer))).reads_tools

    def marks_trained(self, columns: Sequence[Column]) -> bool:
        """Some of a text's tokens are not to be predicted."""
        return self.prompt is not None or self.is_chat(columns)

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
        if is_other:
            return "it has another tokenizer here, so that a number is another token"
        written = statistics.get("template")
        if written is not None and written != self._template_sha256():
            return "its chat template is another one now"
        return None

    def _template_sha256(self) -> str:
        return hashlib.sha256(chat.template_text(self.template, tokenizer(self.tokenizer)).encode()).hexdigest()

    def tally(self, columns: Sequence[Column]) -> Tally | None:
        return _OfTokenizer(self, self.is_chat(columns))

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
        return values[0] if values[0].dtype != object else self.laid_out(values, columns)

    def laid_out(self, values: Sequence[np.ndarray], columns: Sequence[Column]) -> np.ndarray:
        """(N, length) of texts. Raises BadValueError."""
        found = tokenizer(self.tokenizer)
        texts, flags = [], []
        for row, value in enumerate(self.together(values)):
            tokens, trained, _ = self.encoded(value, columns, row, found)
            begin, end = (int(each) for each in self.kept(0, len(tokens)))
            texts.append(tokens[begin:end])
            flags.append(None if trained is None else trained[begin:end])
        pieces = layout.pieces_of_texts(texts, flags)
        return layout.rows((self.output,), pieces, self.length, self.pad_of(found))[self.output]

    def together(self, values: Sequence[np.ndarray]) -> Sequence[object]:
        """Return what `encoded` takes, a row each: the text, or a tuple with a value for each key that names a
        column."""
        if len(self._columns) == 1:
            return cast("list[object]", values[0].tolist())
        return list(zip(*(values[place].tolist() for place in self._places.values()), strict=True))

    def lacking(self, value: Any) -> str | None:
        """Return the key whose column misses the text that a row needs."""
        return next((key for key, each in self._by_key(value).items() if each is None and key != "tools"), None)

    def _by_key(self, value: Any) -> dict[str, Any]:
        return dict(zip(self._columns, (value,) if len(self._columns) == 1 else value, strict=True))

    def encoded(self, value: Any, columns: Sequence[Column], row: int, found: Tokenizer) -> Encoded:
        """Return the tokens of one value, whole; with `truncate: error`, of one that is not too long. Raises
        BadValueError."""
        if (key := self.lacking(value)) is not None:
            name, hint = columns[self._places[key]].name, "leave the row out, or write a text there"
            raise BadValueError("missing", name, f"`{name}` misses a text", row=row, help=hint)
        given = self._by_key(value)
        text, prompt = given["column"], given.get("prompt")
        trained: list[bool] | None = None
        written = chat.RenderedChat("", ())
        try:
            if self.is_chat(columns):
                written = self.write(text, prompt, given.get("tools"), found)
                tokens, trained = chat.tokens(written, found)
            elif prompt is not None:
                tokens, trained = self.behind(prompt, text, found)
            else:
                tokens = found.encode(text, adds_special=self.special)
        except (chat.ChatError, TokenizerError) as error:
            message = f"`{columns[0].name}`: {error}"
            raise BadValueError("unreadable", columns[0].name, message, row=row, help=error.help) from error
        tokens, trained = self._ended(tokens, trained, found, learns_end=written.learns_end)
        if len(tokens) > self.length and self.truncate == "error" and self.pack is None:
            message = f"`{columns[0].name}` has {counted(len(tokens), 'token')}, and `length` is {self.length:,}"
            raise BadValueError("outside", columns[0].name, message, row=row, key="length")
        return Encoded(tokens, trained, written.unread)

    def write(self, text: str, prompt: str | None, tools: str | None, found: Tokenizer) -> chat.RenderedChat:
        """Return a dialogue as its chat template writes it. Raises ChatError."""
        before = [] if prompt is None else chat.messages(prompt, "user")
        given = [*before, *chat.messages(text, None if prompt is None else chat.ASSISTANT)]
        template = chat.template_text(self.template, found)
        return chat.write(template, given, found, len(before), chat.tools(tools))

    def behind(self, prompt: str, text: str, found: Tokenizer) -> tuple[list[int], list[bool]]:
        """The two as one text, of which the second is to be predicted."""
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

    def _ended(
        self, tokens: list[int], trained: list[bool] | None, found: Tokenizer, *, learns_end: bool
    ) -> tuple[list[int], list[bool] | None]:
        """Return a text with the tokens that the recipe wants around it."""
        first, last = found.role("bos", self.bos), found.role("eos", self.eos)
        if first is not None and tokens[:1] != [first]:
            tokens = [first, *tokens]
            trained = trained if trained is None else [False, *trained]
        if last is not None and tokens[-1:] != [last]:
            tokens = [*tokens, last]
            trained = trained if trained is None else [*trained, learns_end]
        return tokens, trained

    def kept(self, start: Any, stop: Any) -> tuple[Any, Any]:
        """Which of the tokens from `start` up to `stop` (numbers, or arrays of them) fit into a sample."""
        import numpy as np

        if self.truncate == "start":
            return np.maximum(start, stop - self.length), stop
        return start, np.minimum(stop, start + self.length)

    def meaning_of_text(self) -> list[object]:
        """What the tokens of a text depend on, beside the tokenizer."""
        longest = self.length if self.truncate == "error" and self.pack is None else None
        found: list[object] = [self.bos, self.eos, self.special, longest]
        if self.template is not None or self.prompt is not None:
            found += [self.prompt, self.template and chat.template_text(self.template, tokenizer(self.tokenizer))]
        return found if self.tools is None else [*found, "tools", self.tools]


class _OfTokenizer(Tally):
    """What must be known of the tokenizer where its file is not; of the rows nothing."""

    needs_rows = False

    def __init__(self, field: TokensField, is_chat: bool) -> None:
        self._field, self._is_chat = field, is_chat

    def add(self, values: Sequence[np.ndarray]) -> None:
        pass

    def result(self) -> dict[str, object]:
        found = tokenizer(self._field.tokenizer)
        about = {"dialogues": True, "template": self._field._template_sha256()} if self._is_chat else {}
        return {"num_tokens": found.num_tokens, "tokenizer": found.sha256, **about}
