"""A dialogue and a chat template -> tokens, and which of them the assistant says.

A dialogue is a list of messages {role, content, ...}, as JSON text: that is how a table gives a column of such lists.
The text is rendered as `apply_chat_template` of transformers does it. What the assistant says is what stands in
`{% generation %}`; of a template without it, what a dialogue that ends with an answer has more than the same one up to
there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from declarative_train.components.data import SourceError
from declarative_train.components.datasets.files import local_path, read_bytes, shown
from declarative_train.components.texts.tokenizer import Tokenizer, TokenizerError, is_inline
from declarative_train.terms.json_text import parse_json

if TYPE_CHECKING:
    from declarative_train.components.texts.rendering import Rendering

Messages = list[dict[str, Any]]
Span = tuple[int, int]

ASSISTANT = "assistant"
_ROLES = {"human": "user", "gpt": ASSISTANT, "system": "system", "tool": "tool", "function_call": ASSISTANT}
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # names for the same, of which templates know one
_OF_OWN = "a tokenizer's own template can be replaced: `template: chat.jinja`, with `{% generation %}` around answers"


class ChatError(Exception):
    """A dialogue that has no tokens: words for the user, and one fix."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.help = help


class Said(NamedTuple):
    """A text, and from where to where in it the assistant speaks."""

    text: str
    spans: Sequence[Span]


def template_text(asked: str | bool | None, found: Tokenizer) -> str:
    """The template that a recipe means; `True` or None: the tokenizer's own. Raises TokenizerError."""
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
        raise TokenizerError(f"there is no file {shown(asked)}", "name a file with a Jinja template") from None


@lru_cache(maxsize=16)
def _read(path: str, modified_ns: int) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise TokenizerError(f"{shown(path)} is no text") from None
    except SourceError as error:
        raise TokenizerError(str(error), error.help) from error


@lru_cache(maxsize=16)
def opened(template: str) -> Rendering:
    """Raises ChatError."""
    from declarative_train.components.texts.rendering import RenderError, Rendering

    try:
        return Rendering(template)
    except RenderError as error:
        raise ChatError(str(error)) from None


def messages(value: str, role: str | None = None) -> Messages:
    """Of JSON text; of other text one message of `role`. Raises ChatError."""
    given: Any = None
    if value.lstrip()[:1] in ("[", "{"):
        try:
            given = parse_json(value)
        except ValueError:
            given = None
    if isinstance(given, dict):
        given = [given]
    if isinstance(given, list) and all(isinstance(each, dict) for each in given) and (given or role is None):
        return [_message(each) for each in given]
    if role is None:
        hint = "write [{role: user, content: ...}, ...], or name the column of questions: `prompt: COLUMN`"
        raise ChatError("it is no list of messages", hint)
    return [{"role": role, "content": value}]


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that a row leaves out (null in a table) are not there; texts in parts are one text."""
    made = {key: _without_null(each) for key, each in given.items() if each is not None or key == "content"}
    if "role" not in made and isinstance(made.get("from"), str) and "value" in made:
        made["role"], made["content"] = _ROLES.get(made["from"], made["from"]), made["value"]
        del made["from"], made["value"]
    if not isinstance(made.get("role"), str):
        keys = ", ".join(f"`{key}`" for key in given) or "nothing"
        raise ChatError(f"a message has {keys}, and no `role`", "write {role: user, content: ...}")
    thought = next((made[key] for key in _THOUGHTS if made.get(key) is not None), None)
    if thought is not None:
        made = {"thinking": thought, **made, "reasoning_content": thought}
    content = made.get("content")
    if isinstance(content, list) and all(isinstance(each, dict) and each.get("type") == "text" for each in content):
        made["content"] = "".join(str(each.get("text", "")) for each in content)
    return made


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(each) for key, each in value.items() if each is not None}
    return [_without_null(each) for each in value] if isinstance(value, list) else value


def rendered(template: str, given: Messages, found: Tokenizer, *, answers: bool = False) -> Said:
    """`answers`: up to where the assistant begins. The spans are those of `{% generation %}`. Raises ChatError."""
    from declarative_train.components.texts.rendering import BEGIN, END, RenderError

    if any(sign in json.dumps(given, ensure_ascii=False) for sign in (BEGIN, END)):
        raise ChatError("it has a sign that is no character (U+FDD0 or U+FDD1)", "take it out")
    names: dict[str, object] = {f"{role}_token": found.written(number) for role, number in found.special.items()}
    names |= {"messages": given, "tools": None, "documents": None, "add_generation_prompt": answers}
    try:
        return Said(*opened(template)(names))
    except RenderError as error:
        raise ChatError(str(error)) from None


def said(template: str, given: Messages, found: Tokenizer, num_given: int = 0) -> Said:
    """The text of a dialogue, and what is to be learnt of it: all that the assistant says behind the first `num_given`
    messages. Raises ChatError."""
    whole = rendered(template, given, found)
    answers = [at for at, each in enumerate(given) if each["role"] == ASSISTANT]
    if not opened(template).marks:
        spans = [_grown(template, given, at, whole.text, found) for at in answers if at >= num_given]
        return Said(whole.text, spans)
    before = sum(at < num_given for at in answers)
    if before and len(whole.spans) != len(answers):
        raise ChatError(
            f"the template marks {len(whole.spans)} passages of {len(answers)} answers, so that nobody knows which of "
            "them the prompt holds",
            "put `{% generation %}` around each answer",
        )
    return Said(whole.text, whole.spans[before:])


def _grown(template: str, given: Messages, at: int, whole: str, found: Tokenizer) -> Span:
    """From where to where message `at` stands: what comes with it."""
    until = rendered(template, given[: at + 1], found).text
    before = rendered(template, given[:at], found, answers=True).text if at else ""
    for text, what in ((until, "up to"), (before, "before")):
        if not whole.startswith(text):
            place = next((n for n, (one, two) in enumerate(zip(whole, text, strict=False)) if one != two), len(whole))
            message = (
                f"the template writes the dialogue {what} message {at + 1} in another way than within the whole: "
                f"`{text[place : place + 30]}` where that has `{whole[place : place + 30]}`; so nobody can tell what "
                "the assistant says"
            )
            raise ChatError(message, _OF_OWN)
    if not until.startswith(before):
        raise ChatError(
            f"the answer {at + 1} does not begin as the template says that answers begin: `{before[-30:]}`", _OF_OWN
        )
    return len(before), len(until)


def tokens(text: Said, found: Tokenizer) -> tuple[list[int], list[bool]]:
    """And which of them hold something that is to be learnt."""
    numbers, places = found.places(text.text)
    trained, at = [], 0
    for begin, end in places:
        while at < len(text.spans) and text.spans[at][1] <= begin:
            at += 1
        trained.append(at < len(text.spans) and text.spans[at][0] < max(end, begin + 1))
    return numbers, trained
