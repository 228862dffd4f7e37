"""Rules about the text of a recipe. They get YAML nodes or the Document, not the sections that were read from them.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.recipe.merge_rules import EXCLUSIVE, Alternatives
from declarative_train.source.document import Document
from declarative_train.source.node import Mapping, Node, Sequence, find, is_template

KEYS = re.compile(r"(^|_)(password|passwd|secret|api_?key|access_?key|auth_?token|private_?key)(_|$)", re.IGNORECASE)

VALUES = re.compile(
    r"AKIA[0-9A-Z]{16}"  # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
    r"|gh[pousr]_[A-Za-z0-9]{36}"  # https://github.blog/2021-04-05-behind-githubs-new-authentication-token-formats/
    r"|hf_[A-Za-z0-9]{30,}"
    r"|sk-[A-Za-z0-9_-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@"  # a password in a URL
)


def secret_in_recipe(tree: Mapping) -> list[Diagnostic]:
    """secret-in-recipe (H001)

    Finds: a value that looks like a password, a key or a token.
    Why:   recipes are committed to repositories, copied into the folders of runs and shown in TensorBoard.
    Bad:
        meta: {api_key: 0c1f8a7be2d94c55}
    Good:
        meta: {api_key: "{{ env.API_KEY | default('') }}"}
    """
    # `tree` is not yet rendered, because values from `env` are allowed.
    found: list[Diagnostic] = []
    _walk(tree, "", found)
    return found


def _walk(node: Node, key: str, found: list[Diagnostic]) -> None:
    if isinstance(node, Mapping):
        for entry in node.entries:
            _walk(entry.value, entry.key.text, found)
    elif isinstance(node, Sequence):
        for item in node.items:
            _walk(item, key, found)
    elif isinstance(node.value, str) and _is_secret(node.value, key):
        what = f"`{key}`" if KEYS.search(key) else "this value"
        hint = 'move it to the environment: "{{ env.NAME }}"'
        found.append(warning("H001", node.span, f"{what} looks like a secret", hint))


def _is_secret(text: str, key: str) -> bool:
    if not text or is_template(text):
        return False
    return KEYS.search(key) is not None or VALUES.search(text) is not None


_PAIRS = (
    *(pair for pair in EXCLUSIVE if not pair.is_reported_by_reader),
    Alternatives(("objective",), "loss", "losses"),  # merging combines them into one key
)


def exclusive_keys(tree: Mapping) -> Iterator[Diagnostic]:
    """exclusive-keys (S006)

    Finds: two keys in one section that set the same thing in different ways.
    Why:   it is not clear which one applies.
    Diff:
        training:
          gradient_accumulation_steps: 2
    -     microbatch_size: 10
    """
    # On the tree of nodes, so that it also works for sections that cannot be parsed.
    for path, either, other, _ in _PAIRS:
        holder = find(tree, path)
        if not isinstance(holder, Mapping):
            continue
        first, second = holder.entry(either), holder.entry(other)
        if first is None or second is None:
            continue
        first, second = sorted((first, second), key=lambda entry: (entry.key.span.line, entry.key.span.column))
        message = f"`{'.'.join(map(str, path))}` has both `{first.name}` and `{second.name}`"
        hint = "keep one of them"
        yield error("S006", second.key.span, message, hint, (Related(first.key.span, f"`{first.name}` is here"),))


_LOSS, _LOSSES = ("objective", "loss"), ("objective", "losses")


def displaced_loss(document: Document) -> Iterator[Diagnostic]:
    """displaced-loss (W017)

    Finds: a recipe with `losses` whose base has `loss`, which is replaced without being mentioned.
    Why:   `loss` is the short form of `losses` with one entry, and the two are not merged. A loss that was meant as an
           addition to that of the base would be the only one.
    Diff:
        objective:
    -     losses: {other: {type: cross_entropy, input: logits, target: digit}}
    +     losses: {loss: {}, other: {type: cross_entropy, input: logits, target: digit, weight: 0.5}}
    +     metrics: {accuracy: {of: loss}}
    """
    now = document.find(_LOSSES)
    if not isinstance(now, Mapping) or now.alone or document.find(_LOSS) is not None:
        return  # replacing several losses by one is intended; another rule reports both keys in one file
    for gone in document.dropped:
        if gone.path == _LOSSES and gone.reason == "alternative":
            message = "`losses` replaces the `loss` of the base"
            hint = "`losses: {loss: {}, ...}` keeps it; `loss: null` removes it explicitly"
            yield warning("W017", gone.by, message, hint, (Related(gone.span, "the loss of the base"),))
