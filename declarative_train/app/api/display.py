"""HTML for notebooks: text in a fixed-width font, with colours for light and dark themes."""

from __future__ import annotations

import re
from html import escape

_HEADING = re.compile(r"(?m)^(\S.*)$")
_SEVERITY = re.compile(r"(error|warning|needs verification)\[([A-Z]\d+)\]")
_COLORS = {"error": "#d1242f", "warning": "#9a6700", "needs verification": "#0969da"}
_STYLE = "line-height: 1.3; overflow-x: auto; white-space: pre"


def text_html(text: str, *, headings: bool = False) -> str:
    """Return the text as HTML. `headings`: lines without indentation are bold."""
    shown = escape(text, quote=False)
    if headings:
        shown = _HEADING.sub(r"<b>\1</b>", shown)
    return f'<pre style="{_STYLE}">{shown}</pre>'


def diagnostics_html(text: str) -> str:
    """Return the output of `dtrain lint` as HTML, with a colour for each severity."""

    def paint(found: re.Match[str]) -> str:
        return f'<b style="color: {_COLORS[found[1]]}">{found[0]}</b>'

    return f'<pre style="{_STYLE}">{_SEVERITY.sub(paint, escape(text, quote=False))}</pre>'
