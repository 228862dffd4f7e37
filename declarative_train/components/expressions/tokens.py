"""Tokenizer of expressions: it replaces references by identifiers that Python's parser accepts, without moving other
text.

References such as `layers.3.output` are not valid Python, and a node may have a Python keyword such as `class` as its
name. Such a reference becomes one identifier of the same length. Characters that no expression can contain are reported
here, with their position.
"""

from __future__ import annotations

import keyword
import re

from declarative_train.components.expressions.tree import ExpressionError

MAX_LENGTH = 4000

_REFERENCE = r"[A-Za-z_]\w*(?:\.(?:\d+(?![\w.])|\d+(?=\.[A-Za-z_])|[A-Za-z_]\w*))*"
_TOKEN = re.compile(
    rf"(?P<space>\s+)|(?P<number>(?:\d[\d_]*)(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(?P<reference>{_REFERENCE})"
    r"|(?P<ellipsis>\.\.\.)|(?P<operator>\*\*|//|==|!=|<=|>=|[-+*/%@&|~<>(),:\[\]=])",
    re.ASCII,
)
_LETTER = "\u01c0"  # a letter that is valid in Python identifiers and unused in recipes
_NOT_NAMES = frozenset(keyword.kwlist) - {"True", "False", "None"}
_PAIRS = {")": "(", "]": "["}
_ADVICE = {
    "^": "write a power as `**`",
    "'": "an expression contains no text",
    '"': "an expression contains no text",
    "!": "`, unequal `!=`~write `not` as `~`, unequal as `!=`~`, unequal `!=`",
    "{": "`{{ }}` works in any text, rendered before the expression is read",
    ";": "an expression is one formula; give each its own node",
    "\u2212": "use the ASCII minus, `-`",
    "\u00d7": "write `*`",
    "\u00f7": "write `/`",
    "\u00b7": "write `*`",
}
_WORDS = {
    "and": "write `&` between two conditions in brackets",
    "or": "write `|` between two conditions in brackets",
    "not": "write `~` before the condition",
    "if": "write `where(condition, x, y)`",
    "else": "write `where(condition, x, y)`",
    "in": "compare with `==`, joined by `|`",
    "is": "write `==`",
    "for": "an expression has no loops; `repeat` makes copies of a node",
    "lambda": "an expression defines nothing; a block does",
}


def plain_python(text: str) -> str:
    """Return `text` as an expression in which every reference is a Python identifier. References that contain a dot,
    and those that are keywords of Python, are replaced by identifiers of the same length. Raises ExpressionError if the
    text is too long, or has an invalid character or an unmatched bracket."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"this expression has {len(text)} characters, more than {MAX_LENGTH}", 0, 1, "split it")
    parts: list[str] = []
    open_brackets: list[tuple[str, int]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _explain_character(text, position)
        token, kind = match.group(), match.lastgroup
        if kind == "operator":
            _track(token, position, open_brackets)
        parts.append(_replace(token, kind))
        position = match.end()
    if open_brackets:
        bracket, offset = open_brackets[-1]
        hint = "inside `{ }` of YAML quote an expression that contains a comma"
        raise ExpressionError(f"`{bracket}` is not closed", offset, 1, hint)
    return "".join(parts)


def _replace(token: str, kind: str | None) -> str:
    if kind == "space":
        return " " * len(token)
    if kind == "reference" and ("." in token or token in _NOT_NAMES):
        return _LETTER + "_" * (len(token) - 1)
    return token


def _track(token: str, offset: int, open_brackets: list[tuple[str, int]]) -> None:
    if token in "([":
        open_brackets.append((token, offset))
    elif token in _PAIRS:
        if not open_brackets or open_brackets[-1][0] != _PAIRS[token]:
            raise ExpressionError(f"`{token}` closes nothing", offset, 1)
        open_brackets.pop()


def _explain_character(text: str, position: int) -> ExpressionError:
    character = text[position]
    if character == ".":
        return ExpressionError(
            "a dot belongs between the parts of a reference", position, 1, "`node.output`, `node.3`, `node.3.output`"
        )
    return ExpressionError(f"`{character}` is not part of an expression", position, 1, _ADVICE.get(character))


def word_advice(text: str) -> ExpressionError | None:
    """Return an error for the first Python keyword in `text` that expressions do not have, such as `and` or `if`. The
    error says what to write instead. Return None if there is no such keyword. `text`: an expression that cannot be
    parsed."""
    for match in re.finditer(r"(?<![\w.])[a-z]+(?![\w.(])", text):
        if match.group() in _WORDS:
            word = match.group()
            return ExpressionError(f"expressions have no `{word}`", match.start(), len(word), _WORDS[word])
    return None
