"""Bounded Jinja2: compile and run one template within limits of time and memory.

Templates of a recipe are expressions: names, operators, inline `if`, filters, a few methods. There are no statements,
so there are no loops and no state. A hostile template can only make large values, so every operator, filter and call is
checked against a size limit and a deadline. Jinja's own sandbox prevents access to Python internals.

This module is imported only for a template that is not plain (plain_template.py): importing Jinja takes longer than
reading a recipe.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.environment import Template
from jinja2.exceptions import TemplateSyntaxError
from jinja2.runtime import StrictUndefined, Undefined
from jinja2.sandbox import SandboxedEnvironment

from declarative_train.core.value_size import excess

MAX_TEXT = 10_000  # characters of a template
MAX_BRACKETS = 60  # nesting depth
MAX_WEIGHT = 50_000  # characters and items of any intermediate value
MAX_ITEMS = 10_000  # of a range
MAX_BITS = 64  # of an integer
MAX_S = 0.25  # of this thread's time, for one template
MAX_TOTAL_S = 5.0  # for all templates of a recipe

_FILTERS = (
    "abs capitalize count d default dictsort first float int items join last length list lower map max min reject "
    "rejectattr replace reverse round select selectattr sort string sum title tojson trim unique upper"
)
FILTERS = tuple(_FILTERS.split())
_METHODS: dict[type, frozenset[str]] = {
    kind: frozenset(words.split())
    for kind, words in {
        str: "capitalize count endswith find index isalpha isdigit islower isupper join lower lstrip removeprefix "
        "removesuffix replace rfind rsplit rstrip split splitlines startswith strip title upper",
        list: "count index",
        tuple: "count index",
        dict: "get items keys values",
        int: "bit_length",
        float: "is_integer",
    }.items()
}
_STATEMENTS = {"If": "{{ a if condition else b }}", "For": "{{ list | map(...) | join }}", "Assign": "a name in `vars`"}


class TooCostly(Exception):  # noqa: N818 (the name says it)
    """Error of a template that would take too long or too much memory."""


class Forbidden(Exception):  # noqa: N818
    """Error of a template that uses a part of Jinja that recipes do not have."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.help = help


class NoValue(Exception):  # noqa: N818
    """Error of a template whose result is not a value of a recipe."""


class NameMissing(Exception):  # noqa: N818
    """Error of a missing name. `owner` is the value that lacks it; None: the names of the template."""

    def __init__(self, owner: object, name: object) -> None:
        super().__init__(str(name))
        self.owner, self.name = owner, name


class _Missing(StrictUndefined):
    """Undefined value of Jinja: usable with `default` and `is defined`, otherwise it raises NameMissing."""

    __slots__ = ()

    def __init__(self, hint: str | None = None, obj: Any = None, name: Any = None, exc: Any = None) -> None:
        super().__init__(hint, None, name)
        owner = obj if isinstance(obj, dict | Mapping | list | tuple | str | int | float) else None
        self._undefined_exception = lambda message: NameMissing(owner, name)  # type: ignore[assignment]


def weigh(value: object) -> None:
    """Raise TooCostly for a value with too many characters and items, including nested ones."""
    found = excess(value, most=MAX_WEIGHT, most_bits=MAX_BITS)
    if found is not None:
        raise TooCostly(f"this template makes {found}")


class Compiled:
    """A compiled template. `is_value`: it is exactly one `{{ }}`, whose value keeps its type."""

    def __init__(self, environment: Sandbox, template: Template, is_value: bool) -> None:
        self._environment, self._template, self.is_value = environment, template, is_value

    def run(self, names: Mapping[str, object]) -> object:
        """Return the value. Raises the exceptions above, and any exception of the expression itself."""
        with self._environment.clock:
            context = self._template.new_context(dict(names))
            pieces = list(self._template.root_render_func(context))
            if self.is_value:
                return plain(context.vars["result"])
            text = "".join(pieces)
            weigh(text)
            return text


class Clock:
    """Deadline of one template, and of all templates together. Templates may run inside each other: `vars`."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._begins: list[float] = []

    def __enter__(self) -> None:
        self._begins.append(time.thread_time())

    def __exit__(self, *_: object) -> None:
        taken_s = time.thread_time() - self._begins.pop()
        self._spent_s += 0.0 if self._begins else taken_s

    def look(self) -> None:
        taken_s = time.thread_time() - self._begins[-1] if self._begins else 0.0
        if taken_s > MAX_S:
            raise TooCostly(f"this template takes more than {MAX_S} s")
        if self._spent_s + taken_s > MAX_TOTAL_S:
            raise TooCostly(f"the templates of this recipe take more than {MAX_TOTAL_S:g} s")


class Sandbox(SandboxedEnvironment):
    """Jinja's sandbox with limits. Compile with `read`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(undefined=_Missing, keep_trailing_newline=True, optimized=False)
        self.clock = Clock()
        filters: dict[str, Any] = self.filters
        tests: dict[str, Any] = self.tests
        self.filters = {name: self._bounded(filters[name]) for name in FILTERS}
        self.tests = {name: self._bounded(test) for name, test in tests.items() if name not in ("filter", "test")}
        self.globals = {"range": self._bounded(_range)}

    def read(self, text: str) -> Compiled:
        """Compile a template. Raises TemplateSyntaxError, TooCostly, Forbidden."""
        if len(text) > MAX_TEXT:
            raise TooCostly(f"this template is longer than {MAX_TEXT:,} characters")
        if _depth(text) > MAX_BRACKETS:
            raise TooCostly(f"this template has more than {MAX_BRACKETS} brackets inside each other")
        try:
            tree = self.parse(text)
            check(tree)
            value = only_value(tree)
            if value is not None:
                tree.body = [nodes.Assign(nodes.Name("result", "store"), value, lineno=1)]
            tree.set_environment(self)
            return Compiled(self, Template.from_code(self, self.compile(tree), self.globals), value is not None)
        except RecursionError:
            raise TooCostly("this template is nested too deep") from None
        except SyntaxError as problem:  # in the Python code generated by Jinja: too many nested levels
            raise TooCostly(f"this template is too long or too deep: {problem.msg}") from None

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        weigh([left, right])
        if operator == "%" and isinstance(left, str):
            raise Forbidden("`%` formats text here; recipes do not have that", "put values in with `~` or `{{ }}`")
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_repetition(left, right)
        return self._check_clock(super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `a.b`: the item b of a mapping first, so that a var may be called `items`; else one of a
        few methods."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        if isinstance(obj, Undefined):
            str(obj)  # raises NameMissing if obj is undefined
        if attribute in _METHODS.get(type(obj), ()) or (isinstance(obj, Mapping) and attribute in _METHODS[dict]):
            return self._bounded(getattr(obj, attribute))
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.clock.look()
        if isinstance(obj, Undefined):
            str(obj)
        if isinstance(obj, str | list | tuple | Mapping):
            try:
                return obj[argument]
            except IndexError:
                raise IndexError(f"index {argument} of {len(obj)} items") from None
            except (LookupError, TypeError):
                if not isinstance(obj, Mapping) and not isinstance(argument, str):
                    raise
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument)

    def is_safe_callable(self, obj: Any) -> bool:
        return isinstance(obj, functools.partial)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, Undefined):
            str(obj)
        if not self.is_safe_callable(obj):
            raise Forbidden("this cannot be called in a recipe")
        return obj(*args, **kwargs)

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with checks of the sizes of its arguments and result. Iterators become lists."""
        bounded = functools.partial(self._call_weighed, function)
        functools.update_wrapper(bounded, function)
        return bounded

    def _call_weighed(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = getattr(function, "__name__", "").removeprefix("do_")
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, str | list | tuple | dict | int)]
        receiver = getattr(function, "__self__", None)  # object of a method: the text of "a".join
        given += [receiver] if isinstance(receiver, str | list | tuple | dict) else []
        weigh(given)
        if name in ("replace", "join"):
            _check_growth(name, [len(each) for each in given if isinstance(each, str | list | tuple)])
        elif name == "sum" and any(isinstance(each, list | tuple) for each in (*args[2:], *kwargs.values())):
            raise Forbidden("`sum` adds numbers only")
        result = function(*args, **kwargs)
        if isinstance(result, Iterable) and not isinstance(result, str | list | tuple | dict | Undefined):
            result = list(result)  # at most as long as its input
        return self._check_clock(result)

    def _check_clock(self, value: Any) -> Any:
        self.clock.look()
        if not isinstance(value, Undefined):
            weigh(value)
        return value


def check(tree: nodes.Template) -> None:
    """Raise Forbidden for parts of Jinja that recipes do not have."""
    for node in tree.find_all(nodes.Node):
        kind = type(node).__name__
        if isinstance(node, nodes.Stmt) and not isinstance(node, nodes.Output):
            hint = f"write {_STATEMENTS[kind]}" if kind in _STATEMENTS else "use expressions"
            raise Forbidden(f"recipes do not have Jinja's `{kind.lower()}`", hint)
        if isinstance(node, nodes.Name | nodes.NSRef) and node.name.startswith("_"):
            raise Forbidden(f"`{node.name}`: names that begin with `_` are not for templates")
        if isinstance(node, nodes.Filter) and node.name.startswith("_"):
            raise TemplateSyntaxError(f"No filter named '{node.name}'.", node.lineno)


def only_value(tree: nodes.Template) -> nodes.Expr | None:
    """Return the expression of a template that is exactly one `{{ }}`, else None. A final newline comes from a block
    scalar and is ignored."""
    parts = [part for node in tree.body for part in (node.nodes if isinstance(node, nodes.Output) else [node])]
    shown = [part for part in parts if not (isinstance(part, nodes.TemplateData) and not part.data.strip("\n"))]
    only = shown[0] if len(shown) == 1 else None
    return only if isinstance(only, nodes.Expr) and not isinstance(only, nodes.TemplateData) else None


def plain(value: object) -> object:
    """Return the value with lists for tuples. Raises NoValue for a value that recipes do not have."""
    if isinstance(value, Undefined):
        str(value)  # raises NameMissing
    weigh(value)
    return _to_plain(value)


def _to_plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, Undefined):
        str(value)
    if isinstance(value, Mapping):
        raise NoValue("a mapping whose keys are not texts" if isinstance(value, dict) else "the whole environment")
    raise NoValue("a function" if callable(value) else "no value of a recipe")


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _range(*bounds: int) -> list[int]:
    if not all(isinstance(bound, int) for bound in bounds):
        raise TypeError("`range` takes integers")
    numbers = range(*bounds)
    if abs(bounds[-1] if len(bounds) < 3 else bounds[1]) > 1 << 62 or len(numbers) > MAX_ITEMS:
        raise TooCostly(f"this `range` has more than {MAX_ITEMS:,} items")
    return list(numbers)


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and right > 0 and abs(left) > 1:
        bits = left.bit_length() * right
        if bits > MAX_BITS * 2:
            raise TooCostly(f"this template makes an integer of more than {MAX_BITS} bits")


def _check_repetition(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int) and len(value) * times > MAX_WEIGHT:
            raise TooCostly(f"this template makes a value of more than {MAX_WEIGHT:,} characters or items")


def _check_growth(name: str, lengths: list[int]) -> None:
    """Raise TooCostly for a large result of `replace` or `join`, which repeat a text."""
    most = sorted(lengths, reverse=True)[:2]
    if len(most) == 2 and most[0] * most[1] > MAX_WEIGHT * 20:
        raise TooCostly(f"this `{name}` may make a text of more than {MAX_WEIGHT * 20:,} characters")
