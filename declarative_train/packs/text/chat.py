"""Chat templates: render a dialogue as text, encode it, and mark the tokens that count in the loss.

A dialogue is a list of messages {role, content, ...}, as JSON text; it is rendered as by `apply_chat_template` of
transformers. The assistant's answers count in the loss, unless a flag of their message (`FLAGS`) says no. An answer is
the text in the tag `{% generation %}` or, without this tag, what the template's loop over messages writes for the
assistant's message after the prompt for an answer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from declarative_train.core.amounts import format_count
from declarative_train.core.untrusted import parse_json
from declarative_train.files.open_files import format_path, local_path, read_bytes
from declarative_train.files.paths import SourceError
from declarative_train.packs.text.tokenizer import Tokenizer, TokenizerError, is_inline

if TYPE_CHECKING:
    from declarative_train.packs.text.rendering import Rendering

Span = tuple[int, int]

ASSISTANT = "assistant"
ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "prompter": "user",
    ASSISTANT: ASSISTANT,
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "bard": ASSISTANT,
    "model": ASSISTANT,
    "bot": ASSISTANT,
    "ai": ASSISTANT,
    "function_call": ASSISTANT,
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
"""Role in published data sets, in lower case -> role in chat templates."""
FLAGS = ("weight", "train", "training", "loss")
"""Keys that say whether a message counts in the loss: those of OpenAI, of Axolotl (two), and of ms-swift."""
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # synonyms; a template reads one of them
_HINT_OWN_TEMPLATE = (
    "a tokenizer's own template can be replaced: `template: chat.jinja`, with `{% generation %}` around answers"
)


class ChatError(Exception):
    """Error: a dialogue cannot be rendered. It has a message for the user and a hint."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.help = help


class Message(dict[str, Any]):
    """Message of a dialogue. It records which of its keys a template reads."""

    __slots__ = ("_own", "_read", "number")

    def __init__(self, values: Mapping[str, Any], own: Collection[str], number: int) -> None:
        """Store a message. `values`: its keys and their values. `own`: those keys that are in the data; others were
        added for the template. `number`: position in the dialogue, from 0."""
        super().__init__(values)
        self.number = number
        self._own, self._read = own, {"role", *FLAGS}

    def unread(self) -> list[str]:
        """Return the keys of this message in the data that have a value, but that the chat template did not read."""
        read = self._read if self._read.isdisjoint(_THOUGHTS) else {*self._read, *_THOUGHTS}
        return [key for key, value in super().items() if key in self._own and key not in read and _has_content(value)]

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._read.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._read |= super().keys()
        return super().__iter__()

    def keys(self) -> Any:
        self._read |= super().keys()
        return super().keys()

    def values(self) -> Any:
        self._read |= super().keys()
        return super().values()

    def items(self) -> Any:
        self._read |= super().keys()
        return super().items()

    def __repr__(self) -> str:
        self._read |= super().keys()
        return super().__repr__()


def _has_content(value: object) -> bool:
    return value is not None and value not in ("", [], {})


Messages = Sequence[dict[str, Any]]


class RenderedChat(NamedTuple):
    """Dialogue rendered as text.

    spans       (begin, end) in `text` of the assistant's answers; `write` includes only those that count in the loss
    unread      keys of messages that the template did not read
    learns_end  whether the token `eos` counts in the loss, if it is added after the text"""

    text: str
    spans: Sequence[Span]
    unread: Collection[str] = ()
    learns_end: bool = True


def template_text(asked: str | bool | None, found: Tokenizer) -> str:
    """Return the text of the chat template. `asked`: the value in the recipe, which is the path of a template or its
    text; True and None mean the template of the tokenizer `found`. Raises TokenizerError."""
    if not isinstance(asked, str):
        if found.chat_template is None:
            raise TokenizerError("the tokenizer has no chat template", "name one: `template: chat.jinja`")
        return found.chat_template
    if is_inline(asked):
        return asked
    local = local_path(asked)
    try:
        return _read(asked, 0 if local is None else os.stat(local).st_mtime_ns)
    except OSError:
        raise TokenizerError(f"there is no file {format_path(asked)}", "name a file with a Jinja template") from None


@lru_cache(maxsize=16)
def _read(path: str, modified_ns: int) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise TokenizerError(f"{format_path(path)} is not a text file") from None
    except SourceError as error:
        raise TokenizerError(str(error), error.help) from error


@lru_cache(maxsize=16)
def compile_template(template: str) -> Rendering:
    """Compile a chat template. Raises ChatError."""
    from declarative_train.packs.text.rendering import RenderError, Rendering

    try:
        return Rendering(template)
    except RenderError as error:
        raise ChatError(str(error)) from None


def messages(value: str, role: str | None = None) -> Messages:
    """Parse messages from JSON text, a list of messages or a single one. If `role` is given, a text that is not such
    JSON becomes one message of this role; otherwise it is an error. Raises ChatError."""
    given: Any = None
    if value.lstrip()[:1] in ("[", "{"):
        try:
            given = parse_json(value)
        except ValueError:
            given = None
    if isinstance(given, dict):
        given = [given]
    if isinstance(given, list) and all(isinstance(each, dict) for each in given) and (given or role is None):
        try:
            return [_message(each) for each in given]
        except RecursionError:
            raise ChatError("it is nested too deeply") from None
    if role is None:
        hint = "write [{role: user, content: ...}, ...], or name the column of questions: `prompt: COLUMN`"
        raise ChatError("it is not a list of messages", hint)
    return [{"role": role, "content": value}]


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the form that templates expect. Keys with null are left out, because tables have null for
    missing keys. A content that is a list of texts becomes one string. Raises ChatError for a message without a role.
    """
    made = {key: _drop_null(each) for key, each in given.items() if each is not None or key == "content"}
    if "role" not in made and isinstance(made.get("from"), str) and "value" in made:
        made["role"], made["content"] = made.pop("from"), made.pop("value")
    if not isinstance(made.get("role"), str):
        keys = ", ".join(f"`{key}`" for key in given) or "nothing"
        raise ChatError(f"a message has {keys}, and no `role`", "write {role: user, content: ...}")
    content = made.get("content")
    if isinstance(content, list) and all(isinstance(each, dict) and each.get("type") == "text" for each in content):
        made["content"] = "".join(str(each.get("text", "")) for each in content)
    return made


def _check_marks(given: object) -> None:
    from declarative_train.packs.text.rendering import BEGIN, END, TURN

    text = json.dumps(given, ensure_ascii=False)
    if any(mark in text for mark in (BEGIN, END, TURN)):
        raise ChatError("it contains U+FDD0, U+FDD1 or U+FDD2, which are not characters", "remove it")


def dialogue(given: Messages, template: str) -> list[Message]:
    """Return the messages in the form that the template expects. Roles get the names that the template knows. The
    reasoning of an answer is copied to all keys under which a template may look for it. Raises ChatError."""
    _check_marks(given)
    named = compile_template(template).roles
    found = []
    for number, each in enumerate(given, 1):
        made = each | {"role": _role(each["role"], named, number)}
        _check_flags(made, number)
        thought = next((each[key] for key in _THOUGHTS if each.get(key) is not None), None)
        copies = {} if thought is None else dict.fromkeys(("thinking", "reasoning_content"), thought)
        found.append(Message(copies | made, each.keys(), number - 1))
    return found


def _role(written: str, named: Collection[str], number: int) -> str:
    """Return the role that a chat template gets for the role `written` of message `number`, from 1. A role that the
    template mentions (`named`) stays as it is. Other roles and all synonyms of the assistant are translated: `human` ->
    `user`, `gpt` -> `assistant`. Raises ChatError for an unknown role."""
    found = ROLES.get(written.lower())
    if found != ASSISTANT and written in named:
        return written
    if found is None:
        message = f"message {number} has the role `{written}`; known are {', '.join(ROLES)}"
        raise ChatError(message, "write one of them, or use a template that compares the role with this one")
    return found


def _check_flags(given: Mapping[str, Any], number: int) -> None:
    """Raise ChatError if a flag in a message (`FLAGS`) is not 0 or 1, or if it is 1 in a message that is not the
    assistant's. `number`: number of the message, from 1."""
    for key in FLAGS:
        flag = given.get(key)
        if flag is None:
            continue
        found = f"message {number} has `{key}: {json.dumps(flag, ensure_ascii=False)}"[:80] + "`"
        if not isinstance(flag, int | float) or flag not in (0, 1):
            raise ChatError(found, f"write 1 if the message counts in the loss, 0 if not, or remove `{key}`")
        if flag and given["role"] != ASSISTANT:
            raise ChatError(
                f"{found} and the role `{given['role']}`", "only messages of the assistant can count in the loss"
            )


def _is_learnt(message: Mapping[str, Any]) -> bool:
    return all(message.get(key) is None or message[key] for key in FLAGS)


def tools(value: str | None) -> list[dict[str, Any]] | None:
    """Parse the tools of a dialogue from JSON text, a list of JSON schemas. Return None for None. Raises ChatError."""
    try:
        given = None if value is None else _drop_null(parse_json(value))
    except (ValueError, RecursionError):
        given = ""
    if given is not None and not (isinstance(given, list) and all(isinstance(each, dict) for each in given)):
        raise ChatError("its tools are not a list of JSON schemas", 'write [{"type": "function", "function": {...}}]')
    _check_marks(given)
    return given or None


def _drop_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_null(each) for key, each in value.items() if each is not None}
    return [_drop_null(each) for each in value] if isinstance(value, list) else value


def render(
    template: str, given: Messages, found: Tokenizer, *, schemas: Sequence[object] | None = None, answers: bool = False
) -> RenderedChat:
    """Render a dialogue with a chat template. `schemas`: JSON schemas of the tools. `answers`: end with the prompt for
    an answer of the assistant (`add_generation_prompt`). In the result, `spans` has the places of the texts within `{%
    generation %}`. Raises ChatError."""
    from declarative_train.packs.text.rendering import RenderError

    try:
        return RenderedChat(*compile_template(template)(_names(given, found, schemas, answers)))
    except RenderError as error:
        raise ChatError(str(error)) from None


def _names(given: Messages, found: Tokenizer, schemas: Sequence[object] | None, answers: bool) -> dict[str, object]:
    """Return the variables that a template can read, by name: messages, special tokens of the tokenizer `found`, tools
    (`schemas`), and whether to end with the prompt for an answer (`answers`)."""
    names: dict[str, object] = {f"{role}_token": found.token_text(number) for role, number in found.special.items()}
    return names | {"messages": given, "tools": schemas, "documents": None, "add_generation_prompt": answers}


def write(
    template: str,
    given: Messages,
    found: Tokenizer,
    num_given: int = 0,
    schemas: Sequence[object] | None = None,
) -> RenderedChat:
    """Render a dialogue, and find in the text the answers that count in the loss: the assistant's messages from index
    `num_given` on, except those that a flag excludes (`FLAGS`). Raises ChatError."""
    given = dialogue(given, template)
    whole = render(template, given, found, schemas=schemas)
    made = RenderedChat(whole.text, (), {key for each in given for key in each.unread()})
    answers = [at for at, each in enumerate(given) if each["role"] == ASSISTANT]
    learnt = [at for at in answers if at >= num_given and _is_learnt(given[at])]
    made = made._replace(learns_end=bool(learnt) and learnt[-1] == len(given) - 1)
    if not compile_template(template).marks:
        return made._replace(spans=_find_answers(template, given, learnt, whole.text, found, schemas))
    if len(learnt) == len(answers) or not learnt:
        return made._replace(spans=whole.spans if learnt else ())
    if len(whole.spans) != len(answers):
        raise ChatError(
            f"the template marks {format_count(len(whole.spans), 'passage')} as answers, but the dialogue has "
            f"{format_count(len(answers), 'answer')}, so it is unknown which passages do not count in the loss",
            "put `{% generation %}` around each answer",
        )
    return made._replace(spans=[span for at, span in zip(answers, whole.spans, strict=True) if at in learnt])


def _find_answers(
    template: str,
    given: Messages,
    learnt: Sequence[int],
    whole: str,
    found: Tokenizer,
    schemas: Sequence[object] | None,
) -> list[Span]:
    """Return the spans (begin, end) of `whole`, the text of the dialogue, that belong to the messages with the indices
    `learnt`. The prompt before an answer does not belong to it. Text after the template's loop over messages belongs to
    the last message. Raises ChatError if the spans cannot be found."""
    text, passages = _turns(template, given, found, schemas)
    written = [(number, begin, end) for number, begin, end in passages if number is not None and end > begin]
    if text != whole or not written:
        message = "it is unknown which part of the text the template writes for which message"
        raise ChatError(message, _HINT_OWN_TEMPLATE)
    _check_contents(given, whole, written)
    spans: list[Span] = []
    for at in learnt:
        mine = [(begin, end) for number, begin, end in written if number == at]
        if not mine:
            raise ChatError(f"the template writes nothing for message {at + 1}", _HINT_OWN_TEMPLATE)
        begin, end = mine[0]
        prompt = _prompt(template, given[:at], found, schemas) if at else ""
        begin += _opening(whole[:begin], whole[begin:end], prompt, at)
        spans += [(begin, end), *mine[1:]] if begin < end else mine[1:]
    if learnt and learnt[-1] == len(given) - 1 and written[-1][2] < len(whole):
        spans.append((written[-1][2], len(whole)))
    return spans


def _check_contents(given: Messages, whole: str, written: Sequence[tuple[int, int, int]]) -> None:
    """Raise ChatError if the template leaves out the content of a question or an answer; it may leave out reasoning.
    `whole`: the text of the dialogue. `written`: (index of the message, start, end) of each passage in `whole` that a
    loop over messages writes. A question may also be outside these passages."""
    parts: dict[int | None, str] = {}
    place = 0
    for number, begin, end in written:
        parts[None] = parts.get(None, "") + whole[place:begin]
        parts[number] = parts.get(number, "") + whole[begin:end]
        place = end
    for at, each in enumerate(given):
        content = dict.get(each, "content")  # not by the overridden methods, which record what a template reads
        if each["role"] not in ("user", ASSISTANT) or not isinstance(content, str):
            continue
        mine = parts.get(at, "") if each["role"] == ASSISTANT else parts.get(at, "") + parts.get(None, "")
        if content.rpartition("</think>")[2].strip() not in mine:
            message = f"message {at + 1} is not in the text that the template writes for it"
            raise ChatError(message, _HINT_OWN_TEMPLATE)


def _turns(
    template: str, given: Messages, found: Tokenizer, schemas: Sequence[object] | None, *, answers: bool = False
) -> tuple[str, list[tuple[int | None, int, int]]]:
    from declarative_train.packs.text.rendering import RenderError

    try:
        return compile_template(template).turns(_names(given, found, schemas, answers))
    except RenderError as error:
        raise ChatError(str(error)) from None


def _prompt(template: str, given: Messages, found: Tokenizer, schemas: Sequence[object] | None) -> str:
    """Return the text with which a chat template asks for an answer, such as `<|assistant|>`. It is the text after the
    template's loops over messages or, if there is none, the text that `add_generation_prompt` adds."""
    text, passages = _turns(template, given, found, schemas, answers=True)
    end = max((end for number, begin, end in passages if number is not None and end > begin), default=0)
    if 0 < end < len(text):
        return text[end:]
    return text[len(_common(text, _turns(template, given, found, schemas)[0])) :]


def _opening(before: str, answer: str, prompt: str, at: int) -> int:
    """Return the length of the longest common beginning of `answer`, the rendered text of message `at`, and `prompt`,
    with which the template asks for an answer. Return 0 if `before`, the text before the answer, already ends with the
    prompt. Tags at the end of the prompt, such as `<think>`, may be missing in the answer; raise ChatError if anything
    else is missing."""
    if before.endswith(prompt):
        return 0
    same = _common(answer, prompt)
    if same != prompt:
        same = re.sub(r"<[^<>\s]*$", "", same)
    if not same or not re.fullmatch(r"(\s|<[^<>\s]+>)*", prompt[len(same) :]):
        raise ChatError(
            f"message {at + 1} begins with `{answer[:30]}`, and the template ends the prompt for an answer with "
            f"`{prompt[-30:]}`",
            _HINT_OWN_TEMPLATE,
        )
    return len(same)


def _common(one: str, other: str) -> str:
    """Return the longest common prefix of two texts."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def tokens(text: RenderedChat, found: Tokenizer) -> tuple[list[int], list[bool]]:
    """Encode a rendered dialogue. Return (tokens, flags): a flag is true if the token overlaps a span that counts in
    the loss."""
    numbers, places = found.encode_with_spans(text.text)
    trained, at = [], 0
    for begin, end in places:
        while at < len(text.spans) and text.spans[at][1] <= begin:
            at += 1
        trained.append(at < len(text.spans) and text.spans[at][0] < max(end, begin + 1))
    return numbers, trained
