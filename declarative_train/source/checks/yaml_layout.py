"""Messages on YAML text: indentation, quotes, brackets.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Related, error
from declarative_train.core.span import Span


def yaml_syntax(span: Span, message: str, help: str | None = None) -> Diagnostic:
    """yaml-syntax (Y001)

    Finds: text that is not valid YAML, with a mistake for which there is no more specific diagnostic.
    Why:   a file that cannot be parsed cannot be checked.
    Bad:
        training: ,steps
    Good:
        training:
          steps: 10
    """
    return error("Y001", span, message, help)


def unclosed_quote(span: Span, quote: str, closed_on: int | None) -> Diagnostic:
    """unclosed-quote (Y002)

    Finds: a quote that is opened and never closed, or closed only by the opening quote of a later value.
    Why:   all text up to the next quote, including keys on later lines, would become part of this value.
    Diff:
        meta:
    -     owner: "me
    +     owner: "me"
          team: vision
    """
    # `closed_on`: the line of the next such quote, which was meant to open another text.
    if closed_on is None:
        return error("Y002", span, f"the quote `{quote}` is not closed", f"add `{quote}` where the text ends")
    message = f"the quote `{quote}` is closed only on line {closed_on}, by the quote of another text"
    return error("Y002", span, message, f"add `{quote}` where the text on line {span.line} ends")


def duplicate_key(span: Span, name: str, first: Span) -> Diagnostic:
    """duplicate-key (Y003)

    Finds: a key that occurs twice in one mapping.
    Why:   the second value would replace the first one without a message.
    Diff:
        training:
          epochs: 3
    -     epochs: 4
    """
    message = f"`{name}` is written twice in this mapping, first on line {first.line}"
    return error("Y003", span, message, "keep one of them", (Related(first, "first here"),))


CLOSERS = {"[": "]", "{": "}"}


def unclosed_bracket(span: Span, bracket: str) -> Diagnostic:
    """unclosed-bracket (Y004)

    Finds: a `[` or `{` that is not closed, is closed by the wrong bracket, or a `]` or `}` that closes nothing.
    Why:   without its closing bracket, a list or mapping also contains the lines after it.
    Diff:
        meta:
    -     sizes: [1, 2
    +     sizes: [1, 2]
          owner: me
    """
    closer = CLOSERS[bracket]
    return error("Y004", span, f"the `{bracket}` is not closed", f"add `{closer}` where the value ends")


def wrong_bracket(span: Span, found: str, opened: Span, bracket: str) -> Diagnostic:
    message = f"`{found}` cannot close `{bracket}`"
    return error("Y004", span, message, f"write `{CLOSERS[bracket]}`", (Related(opened, "opened here"),))


def closes_nothing(span: Span, bracket: str) -> Diagnostic:
    return error("Y004", span, f"the `{bracket}` closes nothing", f"take the `{bracket}` out, or open it before")


def tab_in_indentation(span: Span, others: Sequence[Span]) -> Diagnostic:
    r"""tab-in-indentation (Y005)

    Finds: a tab in the indentation of a line.
    Why:   YAML allows only spaces in indentation, because the width of a tab depends on the editor.
    Bad:
        # bytes: training:\n\tsteps: 10\n
    Good:
        training:
          steps: 10
    """
    # `others`: the tabs of further lines, which the same fix replaces.
    more = f", and {format_count(len(others), 'more line')} too" if others else ""
    fixes = tuple(Fix(tab, "  " * (tab.end_column - tab.column), safe=False) for tab in (span, *others))
    return error("Y005", span, f"a tab indents this line{more}", "indent with spaces, two for each level", fixes=fixes)


def unquoted_template(span: Span, text: str, quoted: str) -> Diagnostic:
    """unquoted-template (Y006)

    Finds: a template without quotes, as a value of its own or inside `{ }` or `[ ]`.
    Why:   in YAML, `{` begins a mapping, so the value is read as a mapping and not as a template.
    Diff:
        vars: {width: 32}
        meta:
    -     width: {{ vars.width }}
    +     width: "{{ vars.width }}"
    """
    message = f"the template `{text}` needs quotes: without them, `{{` begins a mapping in YAML"
    return error("Y006", span, message, f"write `{quoted}`", fixes=(Fix(span, quoted, safe=True),))


def unquoted_text(span: Span, what: str, quoted: str) -> Diagnostic:
    """unquoted-text (Y007)

    Finds: a text without quotes that YAML does not read as a text: it begins with one of `* & ! % @ | > [ {` or a
           backtick, or contains `: `.
    Why:   at the beginning of a value, these characters begin an alias, an anchor, a tag, a block of text, a list or a
           mapping; `: ` separates a key from its value.
    Diff:
        meta:
    -     note: lr: 0.1 was too high
    +     note: "lr: 0.1 was too high"
    """
    # `what` names the special part of the text: "begins with `*`". An anchor or alias may have been meant.
    is_text = not quoted.startswith(('"&', '"*', "'&", "'*"))
    message = f"this text {what}, and so needs quotes"
    return error("Y007", span, message, f"write `{quoted}`", fixes=(Fix(span, quoted, safe=is_text),))


def missing_space(span: Span, text: str) -> Diagnostic:
    """missing-space (Y022)

    Finds: a `:` without a space after it, where a key and its value were meant.
    Why:   YAML reads `epochs:3` as one text, because a key ends with a colon and a space.
    Diff:
        meta:
    -     owner:me
    +     owner: me
          team: vision
    """
    # `text` is the key, the colon and the value, on one line.
    key, _, value = text.partition(":")
    colon = span.within(len(key))
    message = f"`{text}` is one text: a space is missing after the `:`"
    return error("Y022", span, message, f"write `{key}: {value}`", fixes=(Fix(colon, ": ", safe=False),))


def missing_comma(span: Span, text: str, bracket: str, after: Span) -> Diagnostic:
    """missing-comma (Y024)

    Finds: two entries of `[ ]` or `{ }` without a comma between them.
    Why:   without the comma, YAML reads both entries as one text.
    Bad:
        meta: {owner: me team: vision}
    Good:
        meta: {owner: me, team: vision}
    """
    # `after`: the empty span after the previous entry.
    message = f"a comma is missing before `{text}`, inside `{bracket}`"
    return error("Y024", span, message, f"write `, {text}`", fixes=(Fix(after, ",", safe=False),))


def text_after_quote(span: Span, quote: str) -> Diagnostic:
    """text-after-quote (Y025)

    Finds: text after the closing quote of a value.
    Why:   a quoted value ends with its closing quote.
    Diff:
        meta:
    -     owner: "me" and you
    +     owner: "me and you"
    """
    hint = "quote the whole text"
    if quote == '"':
        hint += ' in single quotes: a `"` is allowed inside them'
    return error("Y025", span, f"there is text after the closing `{quote}`", hint)


_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\s*=\s*|\s+)([^\s:=].*)")  # `epochs = 2`, `epochs 2`

_CONFLICT = re.compile(r"<{7}|={7}|>{7}")


def missing_colon(span: Span, text: str) -> Diagnostic:
    """missing-colon (Y026)

    Finds: a line without `: ` among keys and values, or a line with which git marks a merge conflict.
    Why:   such a line is neither a key nor a part of the value above it.
    Diff:
        meta:
          owner: me
    -     team
    +     team: vision
          site: here
    """
    pair = _PAIR.fullmatch(text)
    hint = f"write `{pair[1]}: {pair[2]}`" if pair is not None else f"write `{text}: ...`"
    if _CONFLICT.match(text):
        hint = "keep one of the two sides, and delete the lines `<<<<<<<`, `=======` and `>>>>>>>`"
        return error("Y026", span, f"`{text}` marks a merge conflict of git that is not resolved", hint)
    what = "a `:` is missing" if pair is not None else "a `:` and a value are missing"
    return error("Y026", span, f"`{text}` is not a key: {what}", hint)


def wrong_escape(span: Span, text: str) -> Diagnostic:
    r"""wrong-escape (Y027)

    Finds: a backslash in a text in double quotes that does not begin an escape of YAML, such as `\n`.
    Why:   in double quotes, `\` begins an escape. Write regular expressions and Windows paths in single quotes.
    Bad:
        meta: {pattern: "\d+"}
    Good:
        meta: {pattern: '\d+'}
    """
    message = f"`{text}` is not an escape in double quotes"
    return error("Y027", span, message, f"use single quotes, or write `\\{text}`")
