"""Explanation of YAML syntax errors: one diagnostic and, if it is clear what was meant, a repair with which reading
continues.

The parser often stops after the mistake: it notices an unclosed quote at the next quote. So each method below examines
the lines around one kind of error. The messages of libyaml and PyYAML differ; both are handled.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import yaml

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.span import Span
from declarative_train.source import lexing
from declarative_train.source.checks.wrong_indentation import below_a_value, fits_no_line, item_among_keys
from declarative_train.source.checks.yaml_layout import (
    closes_nothing,
    missing_colon,
    missing_comma,
    missing_space,
    tab_in_indentation,
    text_after_quote,
    unclosed_bracket,
    unclosed_quote,
    unquoted_template,
    unquoted_text,
    wrong_bracket,
    wrong_escape,
    yaml_syntax,
)
from declarative_train.source.checks.yaml_values import empty_key, empty_value, no_space, several_documents

_FALSE_SPACE = re.compile("[\u00a0\u2000-\u200b\u202f\u3000\ufeff]")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Diagnostic for a syntax error. `repair`: (start, end) of the text that should be read as one quoted text; None if
    it is unclear what was meant.
    """

    diagnostic: Diagnostic
    repair: tuple[int, int] | None = None


def explain(
    error: yaml.MarkedYAMLError, lines: Lines, shift: int, quote: tuple[int, int] | None, repaired: Collection[int] = ()
) -> Explanation:
    """Return the explanation of an error of the YAML parser.

    `shift`: offset in `lines` where the parsed text begins. `quote`: (start, end) of the last quoted text before the
    error. `repaired`: offsets of the texts that were put in quotes to repair earlier errors.
    """
    problem = error.problem or ""
    at = min((error.problem_mark.index if error.problem_mark else 0) + shift, len(lines.text))
    opened = error.context_mark.index + shift if error.context_mark else None
    return _Explainer(lines, problem, error.context or "", at, opened, quote, repaired).explain()


class _Explainer:
    def __init__(
        self,
        lines: Lines,
        problem: str,
        context: str,
        at: int,
        opened: int | None,
        quote: tuple[int, int] | None,
        repaired: Collection[int],
    ) -> None:
        self.lines, self.problem, self.context = lines, problem, context
        self.at, self.opened, self.quote, self.repaired = at, opened, quote, repaired
        self.number, self.column = lines.place(at)
        self.line = lines.line(self.number)
        self.start = lines.starts[self.number - 1]
        self.lead, self.key, offset, self.value = lexing.split_line(self.line)
        self.value_start = self.start + offset
        self.value_end = self.value_start + len(self.value)
        self.character = lines.text[at : at + 1]

    def explain(self) -> Explanation:
        problem = self.problem
        if "unexpected end of stream" in problem and "quoted" in self.context and self.opened is not None:
            return self._explain_quote(self.opened, None)
        if "escape" in problem or "hexdec" in problem:
            return self._escape()
        if "tab" in problem or self.character == "\t":
            return self._tab()
        if self.character == ":" and not self.line[: self.column - 1].strip(" -"):
            return Explanation(empty_key(self._span(self.at, self.at + 1)))
        false_space = self._false_space()
        if false_space is not None:
            return false_space
        template = self._template()
        if template is not None:
            return template
        if self.quote is not None and self.quote[1] >= self.start and self._lines_of_quote() > 1:
            return self._explain_quote(self.quote[0], self.number)
        if "<document start>" in problem:
            return self._after_document()
        if "',' or" in problem:
            return self._in_brackets()
        if "mapping values" in problem:
            return self._colon()
        if (
            "unexpected ':'" in problem
            and self.opened is not None
            and self.lines.text[self.at + 1 : self.at + 2] in {",", "]", "}"}
        ):
            key = self.lines.text[self.opened : self.at]  # `{when:, x: 1}`, an empty value in YAML 1.2
            return Explanation(empty_value(self._span(self.opened, self.at), key, None, flow=True))
        if "expected ':'" in problem:
            return self._no_colon()
        if "expected key" in problem or "<block end>" in problem or "'-' indicator" in problem:
            return self._after_value()
        if "node content" in problem and self.character in ("]", "}"):
            return Explanation(closes_nothing(self._span(self.at, self.at + 1), self.character))
        named = self.key or "-" in self.lead
        if named and self.value and self.value[0] in "*&!%@`|>-" and self.at >= self.value_start - 1:
            first = "a backtick" if self.value[0] == "`" else f"`{self.value[0]}`"
            return self._quote_value(f"begins with {first}")
        if "alphabetic or numeric" in problem and self.lines.text[self.at - 1] in "*&":  # `[*]`, `{columns: *}`
            begin, end = lexing.flow_value(self.line, self.at - 1 - self.start)
            span = self._span(self.start + begin, self.start + end)
            what, quoted = f"begins with `{self.line[begin]}`", lexing.quote(self.line[begin:end])
            return Explanation(unquoted_text(span, what, quoted), (self.start + begin, self.start + end))
        return self._plain()

    def _false_space(self) -> Explanation | None:
        """Return the explanation if this line or the line above has a character that only looks like a space; else
        None."""
        for number in (self.number, self.number - 1):
            found = _FALSE_SPACE.search(lexing.without_comment(self.lines.line(number)))
            if found is not None and '"' not in found.string and "'" not in found.string:
                at = self.lines.starts[number - 1] + found.start()
                return Explanation(no_space(self._span(at, at + 1), found[0]))
        return None

    # --- one kind of mistake each -------------------------------------------------------------------------------

    def _explain_quote(self, start: int, closed_on: int | None) -> Explanation:
        line, _ = self.lines.place(start)
        end = self.lines.starts[line - 1] + len(self.lines.line(line))
        return Explanation(unclosed_quote(self._span(start, end), self.lines.text[start], closed_on))

    def _lines_of_quote(self) -> int:
        assert self.quote is not None
        return self.lines.place(self.quote[1])[0] - self.lines.place(self.quote[0])[0] + 1

    def _escape(self) -> Explanation:
        at = self.lines.text.rfind("\\", self.start, self.at + 1)
        at = self.at if at < 0 else at
        return Explanation(wrong_escape(self._span(at, at + 2), self.lines.text[at : at + 2]))

    def _tab(self) -> Explanation:
        tabs = []
        for number in range(1, len(self.lines) + 1):
            line = self.lines.line(number)
            blank = len(line) - len(line.lstrip(" \t"))
            if "\t" in line[:blank] and line.strip():
                start = self.lines.starts[number - 1]
                tabs.append(self._span(start + line.index("\t"), start + line[:blank].rindex("\t") + 1))
        if not tabs:  # a tab between `-` and what follows
            return Explanation(tab_in_indentation(self._span(self.at, self.at + 1), ()))
        return Explanation(tab_in_indentation(tabs[0], tabs[1:]))

    def _template(self) -> Explanation | None:
        lines = [self.number]
        if self.opened is not None and "flow" in self.context:
            lines.append(self.lines.place(self.opened)[0])
        for number in lines:
            line, start = self.lines.line(number), self.lines.starts[number - 1]
            places = [self._template_place(line, begin, end) for begin, end in lexing.bare_templates(line)]
            known = [p for p in places if p and start + p[0] <= self.at and start + p[0] not in self.repaired]
            if known:
                begin, end = known[-1]
                text = line[begin:end]
                diagnostic = unquoted_template(self._span(start + begin, start + end), text, lexing.quote(text))
                return Explanation(diagnostic, (start + begin, start + end))
        return None

    def _template_place(self, line: str, begin: int, end: int) -> tuple[int, int] | None:
        """Return (start, end) of the text on the line that must be put in quotes because it contains a template `{{
        }}`. Return None for a template in the middle of a text, which needs no quotes. `begin`, `end`: offsets of the
        template in the line."""
        _, _, offset, value = lexing.split_line(line)
        if value[:2] == "{{" and begin == offset:
            return offset, offset + len(value)
        if value[:1] not in ("[", "{"):
            return None
        while end < len(line) and line[end] not in ",]}":
            end += 1
        return lexing.flow_value(line, begin)[0], len(line[:end].rstrip())

    def _after_document(self) -> Explanation:
        end = self.start + len(self.line)
        above = next((self.lines.line(n) for n in range(self.number - 1, 0, -1) if self._content(n)), "")
        if above.startswith(("...", "---")) or self.line.startswith("---"):
            return Explanation(several_documents(self._span(self.at, end)))
        if self.character in ("]", "}"):
            return Explanation(closes_nothing(self._span(self.at, self.at + 1), self.character))
        message = "text continues after the end of the file's outermost value"
        return Explanation(yaml_syntax(self._span(self.at, end), message, "indent it into the mapping, or remove it"))

    def _in_brackets(self) -> Explanation:
        assert self.opened is not None
        opened, bracket = self.opened, self.lines.text[self.opened]
        line, _ = self.lines.place(opened)
        if self.character and self.character in "]}":
            span = self._span(self.at, self.at + 1)
            return Explanation(wrong_bracket(span, self.character, self._span(opened, opened + 1), bracket))
        first_indent = len(self.lines.line(line)) - len(self.lines.line(line).lstrip())
        indent = len(self.line) - len(self.line.lstrip())
        if not self.character or (self.number > line and indent <= first_indent):
            end = self.lines.starts[line - 1] + len(lexing.without_comment(self.lines.line(line)))
            return Explanation(unclosed_bracket(self._span(opened, max(end, opened + 1)), bracket))
        if self.character in "[{":
            begin, end = lexing.flow_value(self.line, self.column - 1)
            if begin < self.column - 1:
                text = self.line[begin:end]
                diagnostic = unquoted_text(
                    self._span(self.start + begin, self.start + end),
                    f"contains `{self.character}` inside `{bracket}`",
                    lexing.quote(text),
                )
                return Explanation(diagnostic, (self.start + begin, self.start + end))
        return self._missing_comma(bracket)

    def _missing_comma(self, bracket: str) -> Explanation:
        word = self.at
        if self.character == ":":  # the missing comma belongs before the key of this colon
            while word > self.start and not self.lines.text[word - 1].isspace():
                word -= 1
        end = word
        while end < len(self.lines.text) and self.lines.text[end] not in " \t\r\n,]}:":
            end += 1
        before = len(self.lines.text[:word].rstrip())
        text = self.lines.text[word:end] or self.character
        return Explanation(
            missing_comma(self._span(word, max(end, word + 1)), text, bracket, self._span(before, before))
        )

    def _colon(self) -> Explanation:
        """Explain a `: ` that YAML does not allow: the second one in a line, or one in the line below a complete
        value."""
        first_colon = self.start + len(self.lead) + len(self.key)
        if self.key and self.at > first_colon + 1:
            return self._quote_value("contains `: `")
        above = next((n for n in range(self.number - 1, 0, -1) if self._content(n)), None)
        name = self._span(self.start + len(self.lead), first_colon)
        if above is None:
            return self._plain()
        text = self.lines.line(above)
        lead, key, _, value = lexing.split_line(text)
        place = self.lines.starts[above - 1] + len(lead)
        if not key and lexing.KEY_WITHOUT_SPACE.fullmatch(value):
            return Explanation(missing_space(self._span(place, place + len(value)), value))
        if not key and len(lead) == len(self.lead):
            return Explanation(missing_colon(self._span(place, place + len(value)), value))
        end = place + len(lexing.without_comment(text[len(lead) :]))
        shown = self.lines.text[place:end]
        return Explanation(below_a_value(name, self.key, self._span(place, end), shown))

    def _no_colon(self) -> Explanation:
        """Return the explanation for a line without `: ` among the entries of a mapping. The parser reports the mistake
        only at the next key; the line itself begins at `opened`."""
        start = self.at if self.opened is None else self.opened
        number, column = self.lines.place(start)
        text = lexing.without_comment(self.lines.line(number)[column - 1 :])
        span = self._span(start, start + max(len(text), 1))
        if lexing.KEY_WITHOUT_SPACE.fullmatch(text):
            return Explanation(missing_space(span, text))
        if text[:1] in ("*", "&", "!"):
            return Explanation(unquoted_text(span, f"begins with `{text[0]}`", lexing.quote(text)))
        return Explanation(missing_colon(span, text))

    def _after_value(self) -> Explanation:
        """Return the explanation of a syntax error in the text after a complete value, where YAML expects the next
        entry or the end of the mapping or list."""
        blank = len(self.line) - len(self.line.lstrip())
        if self.column - 1 <= blank:
            return self._indentation()
        first = self.value[:1]
        if self.at >= self.value_start and first:
            if first in "\"'":
                end = self.value_start + lexing.close_quote(self.value, 0)
                if self.at >= end:
                    return Explanation(text_after_quote(self._span(self.at, self.value_end), first))
            if self.character in ("]", "}") and self.at == self.value_end - 1:
                return Explanation(closes_nothing(self._span(self.at, self.at + 1), self.character))
            if first in "*&![{":
                return self._quote_value(f"begins with `{first}`")
        return self._plain()

    def _indentation(self) -> Explanation:
        end = self.start + len(self.line)
        item = self.character == "-"
        found = self.column - 1
        wanted = self._open_columns()
        if any(column == found for column, _ in wanted):
            return Explanation(item_among_keys(self._span(self.at, end), item))
        return Explanation(fits_no_line(self._span(self.at, end), found, tuple(wanted)))

    def _open_columns(self) -> list[tuple[int, str]]:
        """Return (start column, description) of each mapping or list to which the wrong line could belong. They begin
        on the lines above it; the innermost is first."""
        wanted: list[tuple[int, str]] = []
        limit = 1 << 30
        for number in range(self.number - 1, 0, -1):
            if not self._content(number):
                continue
            lead, key, _, value = lexing.split_line(self.lines.line(number))
            indent = len(lead) - len(lead.lstrip())
            if indent < limit:
                if "-" in lead and len(lead) < limit:
                    wanted.append((len(lead), f"`{key or value}` on line {number}"))
                what = "the `-`" if "-" in lead else f"`{key or value}`"
                wanted.append((indent, f"{what} on line {number}"))
                limit = indent
            if limit == 0:
                break
        return wanted

    def _quote_value(self, what: str) -> Explanation:
        span = self._span(self.value_start, self.value_end)
        return Explanation(unquoted_text(span, what, lexing.quote(self.value)), (self.value_start, self.value_end))

    def _plain(self) -> Explanation:
        found = self.problem.replace("did not find expected", "expected").replace("<block end>", "the next key")
        end = max(self.at + 1, min(self.value_end, self.start + len(self.line)))
        if self.character:
            span = self._span(self.at, end)
        else:
            span = self._span(max(self.at - 1, 0), self.at)
        return Explanation(
            yaml_syntax(span, f"this is not YAML: {found}", "check quotes, brackets and indentation here")
        )

    def _content(self, number: int) -> bool:
        text = self.lines.line(number).strip()
        return bool(text) and not text.startswith("#")

    def _span(self, start: int, end: int) -> Span:
        return self.lines.span(start, end)
