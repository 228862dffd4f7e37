"""secret-in-recipe (H001)

Finds: what looks like a password, a key or a token.
Why:   recipes are committed, copied into run directories and shown in TensorBoard.
Bad:
    meta: {api_key: 0c1f8a7be2d94c55}
Good:
    meta: {api_key: "{{ env.API_KEY | default('') }}"}
"""

from __future__ import annotations

import re

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.source.node import Mapping, Node, Sequence, is_template

KEYS = re.compile(r"(^|_)(password|passwd|secret|api_?key|access_?key|auth_?token|private_?key)(_|$)", re.IGNORECASE)
VALUES = re.compile(
    r"AKIA[0-9A-Z]{16}"  # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
    r"|gh[pousr]_[A-Za-z0-9]{36}"  # https://github.blog/2021-04-05-behind-githubs-new-authentication-token-formats/
    r"|hf_[A-Za-z0-9]{30,}"
    r"|sk-[A-Za-z0-9_-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@"  # a password inside a URL
)


def check(tree: Mapping) -> list[Diagnostic]:
    """Over the tree as written, before templates are rendered: what comes from `env` is where it belongs."""
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
        hint = 'keep it in the environment: "{{ env.NAME }}"'
        found.append(warning("H001", node.span, f"{what} looks like a secret", hint))


def _is_secret(text: str, key: str) -> bool:
    if not text or is_template(text):
        return False
    return KEYS.search(key) is not None or VALUES.search(text) is not None
