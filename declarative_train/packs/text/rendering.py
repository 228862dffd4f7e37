"""Rendering of chat templates with Jinja2, with limits on time and memory.

The environment is that of transformers (`apply_chat_template`), with the tag `{% generation %}`. Templates are
downloaded with tokenizers and are not trusted: Jinja's sandbox hides Python's internals, and loops, calls and values
are limited. Import this module only for a template, because importing Jinja takes time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import ext, nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.parser import Parser
from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from declarative_train.core.sandbox import OF_CHATS, BoundedEnvironment, TooCostly

BEGIN, END, TURN = "\ufdd0", "\ufdd1", "\ufdd2"
"""Marks in the output: `{% generation %}` is between BEGIN and END; TURN encloses the place of a loop and the number of
its message. Unicode reserves these code points, so that no text has them."""

_LEFT_OUT = ("random", "urlize", "xmlattr")  # the first is not deterministic, the others are for web pages


class RenderError(Exception):
    """Error: a template cannot be compiled or rendered. The message is for the user."""


class Rendering:
    """Compiled chat template. `marks`: whether it contains `{% generation %}`. `reads_tools`: whether it reads the
    variable `tools`. `roles`: the strings with which it compares the role of a message."""

    def __init__(self, text: str) -> None:
        """Compile the template `text`. Raises RenderError."""
        self._text = text
        self.marks = re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", text) is not None
        self._environment = _Environment()
        try:
            with self._environment.compiling(text):
                tree = self._environment.parse(text)
                self.reads_tools = any(name.name == "tools" for name in tree.find_all(nodes.Name))
                self.roles = frozenset(_roles(tree))
                self._template = self._compile(tree)
        except TooCostly as error:
            raise RenderError(str(error)) from None
        except TemplateError as error:
            where = f", line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            raise RenderError(f"it is not a Jinja template{where}: {error.message}") from None

    def _compile(self, tree: nodes.Template) -> Template:
        return self._environment.compile_tree(_CheckInserter().visit(tree))

    @cached_property
    def _template_of_turns(self) -> Template:
        """Template that also writes marks (TURN) into the text. They show which text each iteration of a loop over
        messages has written."""
        return self._compile(_TurnInserter().visit(self._environment.parse(self._text)))

    def __call__(self, names: Mapping[str, object]) -> tuple[str, list[tuple[int, int]]]:
        """Render the template with the variables `names`. Return (text, [(begin, end) of each `{% generation %}` in the
        text]). Raises RenderError."""
        return _extract_spans(self._render(self._template, names))

    def turns(self, names: Mapping[str, object]) -> tuple[str, list[tuple[int | None, int, int]]]:
        """Render the template with the variables `names`. Return the text, and its division into passages
        (message, begin, end). A passage is what a loop over messages writes for one message. `message`: index of that
        message; None outside such loops. `begin`, `end`: positions in the text, in characters. Raises RenderError."""
        return _extract_turns(_extract_spans(self._render(self._template_of_turns, names))[0])

    def _render(self, template: Template, names: Mapping[str, object]) -> str:
        pieces, size = [], 0
        try:
            with self._environment.clock:
                for piece in template.root_render_func(template.new_context(dict(names))):
                    pieces.append(piece)
                    size += len(piece)
                    if size > OF_CHATS.weight:
                        raise RenderError(f"this template makes a text of more than {OF_CHATS.weight:,} characters")
        except RenderError:
            raise
        except TooCostly as error:
            raise RenderError(str(error)) from None
        except SecurityError as error:
            raise RenderError(f"the template does something forbidden: {error.message}") from None
        except TemplateRuntimeError as error:
            raise RenderError(f"the template fails: {error.message}") from None
        except TemplateError as error:
            raise RenderError(f"the template says: {error.message}") from None
        except RecursionError:
            raise RenderError("the template calls itself without end") from None
        except MemoryError:
            raise
        except Exception as error:  # any exception while rendering is a mistake of the template
            raise RenderError(f"the template fails: {type(error).__name__}: {str(error)[:200]}") from None
        return "".join(pieces)


def _roles(tree: nodes.Template) -> Iterator[str]:
    """Yield the constant strings that a template compares with the role of a message, such as `user`."""
    for compare in tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        if any(_is_role(side) for side in sides):
            for constant in (each for side in sides for each in (side, *side.find_all(nodes.Const))):
                if isinstance(constant, nodes.Const) and isinstance(constant.value, str):
                    yield constant.value


def _is_role(node: nodes.Expr) -> bool:
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "role"
    return (isinstance(node, nodes.Getattr) and node.attr == "role") or (
        isinstance(node, nodes.Name) and node.name == "role"
    )


def _extract_spans(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Remove the marks BEGIN and END from a text. Return (text, spans). Each span is the (begin, end), in the returned
    text, of a passage that was between two marks."""
    kept: list[str] = []
    found, size, begin = [], 0, 0
    for part in re.split(f"([{BEGIN}{END}])", text):
        if part == BEGIN:
            begin = size
        elif part == END:
            found.append((begin, size))
        else:
            kept.append(part)
            size += len(part)
    return "".join(kept), found


def _extract_turns(text: str) -> tuple[str, list[tuple[int | None, int, int]]]:
    """Remove the marks of `_TurnInserter` from a rendered text. Return the text, and the passages between the marks as
    (message, begin, end). `message`: index of the message that the passage belongs to; None if it belongs to none."""
    kept: list[str] = []
    found: list[tuple[int | None, int, int]] = []
    size = 0
    open_loops: dict[str, int] = {}
    for number, part in enumerate(text.split(TURN)):
        if number % 2 == 0:
            message = next(reversed(open_loops.values()), None)
            found.append((message, size, size + len(part)))
            kept.append(part)
            size += len(part)
            continue
        loop, _, given = part.partition(":")
        for inner in list(open_loops)[list(open_loops).index(loop) :] if loop in open_loops else ():
            del open_loops[inner]
        if given:
            open_loops[loop] = int(given)
    return "".join(kept), found


class _GenerationTag(ext.Extension):
    """Jinja tag `{% generation %} ... {% endgeneration %}`, which templates put around an answer of the assistant. The
    answer is marked in the rendered text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller: Macro) -> str:
        return f"{BEGIN}{caller()}{END}"


class _Environment(BoundedEnvironment):
    """Jinja environment with the settings and variables of transformers. Its methods `check_value`, `join_checked` and
    `check_time` are called by the nodes that `_CheckInserter` adds to a template."""

    def __init__(self) -> None:
        super().__init__(
            OF_CHATS,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=self.check_value,
            extensions=[_GenerationTag, ext.loopcontrols],
        )
        found: dict[str, Any] = {name: each for name, each in self.filters.items() if name not in _LEFT_OUT}
        found["tojson"] = _to_json
        self.filters = {name: self.bound(each) for name, each in found.items()} | {"check_value": self.check_value}
        self.globals = {
            "range": self.globals["range"],
            "dict": self.globals["dict"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _format_now,
        }

    def check_time(self) -> None:
        self.clock.look()

    def mark_turn(self, loop: int, item: Any = None) -> str:
        """Return the mark that a chat template writes before each message in a loop over messages, and after the loop.
        It shows which message the following text belongs to. `loop`: number of the loop. `item`: the message; None
        after the loop. If `item` is not a message, return ""."""
        number = "" if item is None else getattr(item, "number", None)
        return "" if number is None else f"{TURN}{loop}:{number}{TURN}"

    def join_checked(self, *values: Any) -> str:
        self.check_value(values)
        return "".join(map(str, values))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (names as in Jinja)
        __self.check_call(__obj, *args, *kwargs.values())
        return __self.check_value(super().call(__context, __obj, *args, **kwargs))


class _CheckInserter(NodeTransformer):
    """Transformer of a template's syntax tree, which adds checks of the time to loops, and checks of the size to values
    that Jinja creates."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call_node("check_time", []), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call_node("join_checked", node.nodes).set_lineno(node.lineno)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, "check_value", [], [], None, None, lineno=node.lineno)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call_node("check_value", [node]).set_lineno(node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call_node("check_value", [node]).set_lineno(node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx != "load" else _call_node("check_value", [node]).set_lineno(node.lineno)


class _TurnInserter(NodeTransformer):
    """Transformer of a chat template's syntax tree. It adds statements that write marks into the rendered text. From
    the marks, `_extract_turns` finds which message a passage belongs to.

    A loop writes a mark at the beginning of each iteration and after its end. A loop over `range(...)` also writes one
    after each assignment, because the variable may be the message. Text that a template stores in a variable gets no
    marks."""

    def __init__(self) -> None:
        self._num_loops = 0
        self._range: nodes.Const | None = None

    def visit_For(self, node: nodes.For) -> list[nodes.Node]:  # noqa: N802
        self._num_loops += 1
        outer, loop = self._range, nodes.Const(self._num_loops)
        is_range = isinstance(node.iter, nodes.Call) and getattr(node.iter.node, "name", None) == "range"
        self._range = loop if is_range else None
        self.generic_visit(node)
        self._range = outer
        if isinstance(node.target, nodes.Name):
            node.body.insert(0, _mark_statement(loop, node.target))
        return [node, nodes.Output([_call_node("mark_turn", [loop])], lineno=node.lineno)]

    def visit_Assign(self, node: nodes.Assign) -> list[nodes.Node]:  # noqa: N802
        if self._range is None or not isinstance(node.target, nodes.Name):
            return [node]
        return [node, _mark_statement(self._range, node.target)]

    def _skip(self, node: nodes.Node) -> nodes.Node:
        return node

    visit_AssignBlock = visit_Macro = visit_CallBlock = visit_FilterBlock = _skip  # noqa: N815


def _mark_statement(loop: nodes.Const, target: nodes.Name) -> nodes.Node:
    """Return a template statement that writes a mark into the rendered text. The mark says that the text after it
    belongs to the message in the variable `target`. `loop`: number of the loop that contains the statement."""
    return nodes.Output([_call_node("mark_turn", [loop, nodes.Name(target.name, "load")])], lineno=target.lineno)


def _call_node(name: str, given: Sequence[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(given), [], None, None)


class _Namespace(Namespace):
    """Jinja's `namespace` for untrusted templates. Names that begin with `_` raise an error."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no name `self`, which a template may give as a keyword
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _check_name(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no names that begin with `_`: {name!r}")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _format_now(written: str) -> str:
    return datetime.now().strftime(written)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, Undefined):
        str(value)
        raise RenderError("the template writes an undefined name as JSON")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
