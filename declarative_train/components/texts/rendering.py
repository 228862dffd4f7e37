"""Render chat templates with Jinja2, with limits on time and memory.

The environment is that of transformers (`apply_chat_template`): the same settings, filters and functions, and
`{% generation %}`. Templates are downloaded with tokenizers and are not trusted: Jinja's sandbox hides Python's
internals, every loop and call checks the time, and every operation that can enlarge a value checks its size.

Import this module only when a text has a template: importing Jinja takes time.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import ext, nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateRuntimeError, TemplateSyntaxError
from jinja2.parser import Parser
from jinja2.runtime import Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from declarative_train.core.value_size import excess

MAX_TEMPLATE = 200_000  # characters
MAX_BRACKETS = 100  # nesting depth
MAX_WEIGHT = 4_000_000  # characters and items of any intermediate value, and of the result
MAX_BITS = 256  # of an integer
MAX_WIDTH = 10_000  # characters that text is padded to
MAX_S = 1.0  # thread time of one rendering, in seconds
BEGIN, END = "\ufdd0", "\ufdd1"  # mark `{% generation %}` in the output; Unicode reserves them, so no text has them

_WIDTHS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap", "batch", "slice"})
_LEFT_OUT = ("random", "urlize", "xmlattr")  # not deterministic; for web pages


class RenderError(Exception):
    """Template that cannot be compiled or rendered: a message for the user."""


def check_size(value: object) -> None:
    """Raise RenderError if a value has too many characters and items, nested ones included."""
    found = excess(value, most=MAX_WEIGHT, most_bits=MAX_BITS)
    if found is not None:
        raise RenderError(f"the template makes {found}")


class Rendering:
    """Compiled template. `marks`: it has `{% generation %}`. `reads_tools`: it reads the name `tools`. `roles`: the
    strings that it compares the role of a message with."""

    def __init__(self, text: str) -> None:
        """Compile the template. Raises RenderError."""
        if len(text) > MAX_TEMPLATE:
            raise RenderError(f"the template is longer than {MAX_TEMPLATE:,} characters")
        if _depth(text) > MAX_BRACKETS:
            raise RenderError(f"the template has more than {MAX_BRACKETS} brackets inside each other")
        self.marks = re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", text) is not None
        self._environment = _Environment()
        try:
            tree = self._environment.parse(text)
            self.reads_tools = any(name.name == "tools" for name in tree.find_all(nodes.Name))
            self.roles = frozenset(_roles(tree))
            tree = _CheckInserter().visit(tree)
            tree.set_environment(self._environment)
            code = self._environment.compile(tree)
            self._template = Template.from_code(self._environment, code, self._environment.globals)
        except TemplateError as error:
            where = f", line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            raise RenderError(f"it is not a Jinja template{where}: {error.message}") from None
        except (RecursionError, SyntaxError):
            raise RenderError("the template is nested too deeply") from None

    def __call__(self, names: Mapping[str, object]) -> tuple[str, list[tuple[int, int]]]:
        """Render the template. Return the text and (begin, end) of each `{% generation %}` in it. Raises
        RenderError."""
        self._environment.begun_s = time.thread_time()
        pieces, size = [], 0
        try:
            for piece in self._template.root_render_func(self._template.new_context(dict(names))):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_WEIGHT:
                    raise RenderError(f"the template makes a text of more than {MAX_WEIGHT:,} characters")
        except RenderError:
            raise
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
        except Exception as error:  # any exception in here is a mistake of the template
            raise RenderError(f"the template fails: {type(error).__name__}: {str(error)[:200]}") from None
        return _extract_spans("".join(pieces))


def _roles(tree: nodes.Template) -> Iterator[str]:
    """Yield the constants that a template compares a role with."""
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
    """Remove the marks BEGIN and END. Return the text and the spans between them."""
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


class _GenerationTag(ext.Extension):
    """Jinja tag `{% generation %} ... {% endgeneration %}`."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller: Macro) -> str:
        return f"{BEGIN}{caller()}{END}"


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja environment with the settings and names of transformers. The nodes that `_CheckInserter` adds to a template
    call `check_value`, `join_checked` and `check_time`."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # else Jinja computes constants without a check of their size
            finalize=self.check_value,
            extensions=[_GenerationTag, ext.loopcontrols],
        )
        self.begun_s = 0.0
        found: dict[str, Any] = {name: each for name, each in self.filters.items() if name not in _LEFT_OUT}
        found["tojson"] = _to_json
        self.filters = {name: self._limit_filter(name, each) for name, each in found.items()} | {
            "check_value": self.check_value
        }
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
        if time.thread_time() - self.begun_s > MAX_S:
            raise RenderError(f"the template takes more than {MAX_S:g} s for one text")

    def check_value(self, value: Any) -> Any:
        check_size(value)
        return value

    def join_checked(self, *values: Any) -> str:
        check_size(values)
        return "".join(map(str, values))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.check_time()
        check_size([left, right])
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator in ("*", "**"):
            _check_product(operator, left, right)
        return self.check_value(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (names as in Jinja)
        __self.check_time()
        receiver = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # Jinja wraps `format`
        if isinstance(receiver, str):
            _check_growth(getattr(__obj, "__name__", ""), (receiver, *args, *kwargs.values()))
        found = super().call(__context, __obj, *args, **kwargs)
        if isinstance(found, str | list | tuple | dict):
            check_size(found)
        return found

    def _limit_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call_limited(*args: Any, **kwargs: Any) -> Any:
            self.check_time()
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, str | list | tuple | dict | int)]
            check_size(given)
            _check_growth(name, given)
            found = function(*args, **kwargs)
            if isinstance(found, str | list | tuple | dict):
                check_size(found)
            return found

        if (
            kind := getattr(function, "jinja_pass_arg", None)
        ) is not None:  # Jinja passes the environment as first argument
            setattr(call_limited, "jinja_pass_arg", kind)  # noqa: B010
        return call_limited


class _CheckInserter(NodeTransformer):
    """Transformer of a template's tree: add checks of the time to loops, and of the size to values that Jinja makes."""

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


def _call_node(name: str, given: Sequence[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(given), [], None, None)


class _Namespace(Namespace):
    """Jinja namespace that refuses names that begin with `_`."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a template can use the name `self`
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


def _check_product(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > 2 * MAX_BITS and abs(left) > 1:
            raise RenderError(f"the template makes an integer of more than {MAX_BITS} bits")
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int) and len(value) * times > MAX_WEIGHT:
            raise RenderError(f"the template makes a value of more than {MAX_WEIGHT:,} characters or items")


def _check_growth(name: str, given: Sequence[Any]) -> None:
    """Raise RenderError if a function would make a text too long: padding, formatting, `join` and `replace`."""
    if name in _WIDTHS and any(isinstance(each, int) and each > MAX_WIDTH for each in given):
        raise RenderError(f"the template pads text to more than {MAX_WIDTH:,} characters")
    if name in ("format", "format_map") and given:
        _check_format(str(given[0]))
    if name == "indent" and any(isinstance(each, str) and len(each) > MAX_WIDTH for each in given[1:]):
        raise RenderError(f"the template pads text to more than {MAX_WIDTH:,} characters")
    if name in ("join", "replace"):
        sizes = sorted((len(each) for each in given if isinstance(each, str | list | tuple)), reverse=True)
        if name == "join" and len(sizes) > 1 and sizes[0] * sizes[1] > MAX_WEIGHT * 4:
            raise RenderError(f"the template makes a text of more than {MAX_WEIGHT:,} characters")
        if name == "replace" and len(given) > 2 and all(isinstance(each, str) for each in given[:3]):
            text, old, new = given[:3]
            if text.count(old) * len(new) > MAX_WEIGHT:
                raise RenderError(f"the template makes a text of more than {MAX_WEIGHT:,} characters")


def _check_format(text: str) -> None:
    if re.search(r"[%{][^a-zA-Z{}]*\*|[%{:.][^a-zA-Z%]*\d{5}", text):
        raise RenderError(f"the template pads text to more than {MAX_WIDTH:,} characters")


def _depth(text: str) -> int:
    depth = deepest = 0
    for sign in re.findall(r"[(\[{)\]}]", text):
        depth += 1 if sign in "([{" else -1
        deepest = max(deepest, depth)
    return deepest
