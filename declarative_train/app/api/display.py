"""Text as HTML, for notebooks: monospaced, its first words and its marks in colour, in light and dark themes."""

from __future__ import annotations

import re
from html import escape

_HEADING = re.compile(r"(?m)^(\S.*)$")
_SEVERITY = re.compile(r"(error|warning|needs verification)\[([A-Z]\d+)\]")
_COLORS = {"error": "#d1242f", "warning": "#9a6700", "needs verification": "#0969da"}
_STYLE = "line-height: 1.3; overflow-x: auto; white-space: pre"


def text_html(text: str, *, headings: bool = False) -> str:
    """`headings`: lines that are not indented stand out."""
    shown = escape(text, quote=False)
    if headings:
        shown = _HEADING.sub(r"<b>\1</b>", shown)
    return f'<pre style="{_STYLE}">{shown}</pre>'


def diagnostics_html(text: str) -> str:
    """What `dtrain lint` prints, each severity in its colour."""

    def painted(found: re.Match[str]) -> str:
        return f'<b style="color: {_COLORS[found[1]]}">{found[0]}</b>'

    return f'<pre style="{_STYLE}">{_SEVERITY.sub(painted, escape(text, quote=False))}</pre>'
