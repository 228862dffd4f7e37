"""Jinja2, bounded: compiles the text of one template and runs it, never for long and never with much memory.

Jinja's own sandbox keeps a template from Python's insides. This one also keeps it small: every operator, filter and
method weighs what goes in and what comes out, loops draw on one budget, and only what a recipe can use is there
(expressions, `if`, `for`, `set`; no macros, includes, formatting, or anything random).

Imported only for a template that is not plain (plain_template.py): importing Jinja takes longer than reading a recipe.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.environment import Template
from jinja2.runtime import LoopContext, StrictUndefined, Undefined
from jinja2.sandbox import SandboxedEnvironment

from declarative_train.source.template_tree import (
    Forbidden,
    TooCostly,
    check,
    check_size,
    lead_through_filters,
    only_value,
)

MAX_WEIGHT = 50_000  # characters and items of any value on the way
MAX_ITEMS = 10_000  # of a range
MAX_STEPS = 100_000  # of one template: an operator, a call, a node in the body of a loop, 20 items weighed
MAX_TOTAL_STEPS = 3_000_000  # of all templates of a recipe
MAX_BITS = 64  # of an integer

FILTERS = (
    "abs",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "select",
    "selectattr",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
)
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        {
            "capitalize",
            "count",
            "endswith",
            "find",
            "index",
            "isalpha",
            "isdigit",
            "islower",
            "isupper",
            "join",
            "lower",
            "lstrip",
            "removeprefix",
            "removesuffix",
            "replace",
            "rfind",
            "rsplit",
            "rstrip",
            "split",
            "splitlines",
            "startswith",
            "strip",
            "title",
            "upper",
        }
    ),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"get", "items", "keys", "values"}),
    int: frozenset({"bit_length"}),
    float: frozenset({"is_integer"}),
}
_LOOP = frozenset(
    {"index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "previtem", "nextitem"}
)


class NoValue(Exception):  # noqa: N818
    """The result is nothing that can stand in a recipe."""


class NameMissing(Exception):  # noqa: N818
    """`name` was looked for in `owner` (None: among the names of the template) and is not there."""

    def __init__(self, owner: object, name: object) -> None:
        super().__init__(str(name))
        self.owner, self.name = owner, name


class _Missing(StrictUndefined):
    """A name that is not there: usable with `default` and `is defined`, else a NameMissing."""

    __slots__ = ()

    def __init__(self, hint: str | None = None, obj: Any = None, name: Any = None, exc: Any = None) -> None:
        super().__init__(hint, None, name)
        owner = obj if isinstance(obj, dict | Mapping | list | tuple | str | int | float) else None
        self._undefined_exception = lambda message: NameMissing(owner, name)  # type: ignore[assignment]


def weigh(value: object, limit: int = MAX_WEIGHT) -> int:
    """Characters and items of a value, nested ones too. Raises TooCostly beyond `limit`."""
    weight, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            weight += len(item)
        elif isinstance(item, int) and item.bit_length() > MAX_BITS:
            raise TooCostly(f"this template makes an integer of more than {MAX_BITS} bits")
        elif isinstance(item, dict):
            weight += len(item)
            waiting += [part for pair in item.items() for part in pair] if weight <= limit else []
        elif isinstance(item, list | tuple):
            weight += len(item)
            waiting += item if weight <= limit else []
        weight += 1
        if weight > limit:
            raise TooCostly(f"this template makes a value of more than {limit:,} characters or items")
    return weight


class Compiled:
    """A template ready to run. `is_value`: exactly one `{{ }}`, whose value keeps its type."""

    def __init__(self, environment: Sandbox, template: Template, is_value: bool) -> None:
        self._environment, self._template, self.is_value = environment, template, is_value

    def run(self, names: Mapping[str, object]) -> object:
        """The value. Raises the exceptions above, or whatever the expression itself raises."""
        self._environment.steps = 0
        context = self._template.new_context(dict(names))
        pieces: list[str] = []
        weight = 0
        for piece in self._template.root_render_func(context):
            weight += len(piece)
            if weight > MAX_WEIGHT:
                raise TooCostly(f"this template makes a text of more than {MAX_WEIGHT:,} characters")
            pieces.append(piece)
        return _plain(context.vars["result"]) if self.is_value else "".join(pieces)


class Sandbox(SandboxedEnvironment):
    """Jinja's sandbox with bounds; compile with `read`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(undefined=_Missing, keep_trailing_newline=True, optimized=False, finalize=self._seen)
        self.steps = self.total_steps = 0
        filters: dict[str, Any] = self.filters
        tests: dict[str, Any] = self.tests
        self.filters = {name: self._bounded(filters[name]) for name in FILTERS}
        self.filters |= {"_concat": self._concat, "_counted": self._counted, "_seen": self._seen}
        self.tests = {name: self._bounded(test) for name, test in tests.items() if name not in ("filter", "test")}
        self.globals = {"range": self._range}

    def read(self, text: str) -> Compiled:
        """Raises TemplateSyntaxError, TooCostly, Forbidden."""
        check_size(text)
        try:
            tree = self.parse(text)
            check(tree)
            value = only_value(tree)
            if value is not None:
                tree.body = [nodes.Assign(nodes.Name("result", "store"), value, lineno=1)]
            lead_through_filters(tree)
            tree.set_environment(self)
            return Compiled(self, Template.from_code(self, self.compile(tree), self.globals), value is not None)
        except RecursionError:
            raise TooCostly("this template is nested too deep") from None
        except SyntaxError as problem:  # of the Python code that Jinja makes: too many levels of anything
            raise TooCostly(f"this template is too long or too deep: {problem.msg}") from None

    def _step(self, count: int = 1) -> None:
        self.steps += count
        self.total_steps += count
        if self.steps > MAX_STEPS:
            raise TooCostly(f"this template takes more than {MAX_STEPS:,} steps")
        if self.total_steps > MAX_TOTAL_STEPS:
            raise TooCostly(f"the templates of this recipe take more than {MAX_TOTAL_STEPS:,} steps")

    def _seen(self, value: Any) -> Any:
        """The value as it is, its weight counted."""
        if not isinstance(value, Undefined):
            self._step(1 + weigh(value) // 20)
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._seen([left, right])
        if operator == "%" and isinstance(left, str):
            raise Forbidden("`%` formats text here; recipes do not have that", "put values in with `~` or `{{ }}`")
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_repetition(left, right)
        return self._seen(super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`a.b`: the item b of a mapping first, so that a var may be called `items`; else one of a few methods."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        if isinstance(obj, Undefined):
            str(obj)  # raises NameMissing: what has no value has no parts
        if isinstance(obj, LoopContext) and attribute in _LOOP:
            return getattr(obj, attribute)
        kind = dict if isinstance(obj, Mapping) else type(obj)
        if attribute in _METHODS.get(kind, ()):
            return self._bounded(getattr(obj, attribute))
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
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
        return isinstance(obj, functools.partial) or obj == self._range

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, Undefined):
            str(obj)
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        if not self.is_safe_callable(obj):
            raise Forbidden("this cannot be called in a recipe")
        return obj(*args, **kwargs)

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, weighing its arguments and its result; iterators become lists."""
        bounded = functools.partial(self._weighed, function)
        functools.update_wrapper(bounded, function)
        return bounded

    def _weighed(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = getattr(function, "__name__", "").removeprefix("do_")
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, str | list | tuple | dict | int)]
        receiver = getattr(function, "__self__", None)  # of a method: the text of "a".join
        given += [receiver] if isinstance(receiver, str | list | tuple | dict) else []
        self._seen(given)
        if name in ("replace", "join"):
            _check_growth(name, [len(each) for each in given if isinstance(each, str | list | tuple)])
        elif name == "sum" and any(isinstance(each, list | tuple) for each in (*args[2:], *kwargs.values())):
            raise Forbidden("`sum` adds numbers only")
        result = function(*args, **kwargs)
        if isinstance(result, Iterable) and not isinstance(result, str | list | tuple | dict | Undefined):
            result = self._listed(result)
        return self._seen(result)

    def _listed(self, items: Iterable[Any]) -> list[Any]:
        listed = []
        for item in items:
            self._step()
            listed.append(item)
        return listed

    def _counted(self, items: Any, cost: int) -> Iterable[Any]:
        if not isinstance(items, Iterable):
            raise TypeError("only lists, mappings and texts can be looped over")
        for item in items:
            self._step(cost)
            yield item

    def _concat(self, parts: list[Any]) -> str:
        self._seen(parts)
        return "".join(str(part) for part in parts)

    def _range(self, *bounds: int) -> list[int]:
        if not all(isinstance(bound, int) for bound in bounds):
            raise TypeError("`range` takes integers")
        numbers = range(*bounds)
        if abs(bounds[-1] if len(bounds) < 3 else bounds[1]) > 1 << 62 or len(numbers) > MAX_ITEMS:
            raise TooCostly(f"this `range` has more than {MAX_ITEMS:,} items")
        self._step(len(numbers))
        return list(numbers)


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and right > 0 and abs(left) > 1:
        bits = left.bit_length() * right
        if bits > MAX_BITS * 2:
            raise TooCostly(f"this template makes an integer of more than {MAX_BITS} bits")


def _check_repetition(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        weight = weigh(value) if isinstance(value, str | list | tuple) and isinstance(times, int) else 0
        if weight and weight * times > MAX_WEIGHT:
            raise TooCostly(f"this template makes a value of more than {MAX_WEIGHT:,} characters or items")


def _check_growth(name: str, lengths: list[int]) -> None:
    """`replace` and `join` put one text in many places."""
    most = sorted(lengths, reverse=True)[:2]
    if len(most) == 2 and most[0] * most[1] > MAX_WEIGHT * 20:
        raise TooCostly(f"this `{name}` may make a text of more than {MAX_WEIGHT * 20:,} characters")


def _plain(value: object) -> object:
    """The value with lists for tuples. Raises NoValue for what cannot stand in a recipe."""
    if isinstance(value, Undefined):
        str(value)  # raises NameMissing
    weigh(value)
    return _listed(value)


def _listed(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): _listed(item) for key, item in value.items()}
    if isinstance(value, Undefined):
        str(value)
    if isinstance(value, Mapping):
        raise NoValue("a mapping whose keys are no texts" if isinstance(value, dict) else "the whole environment")
    raise NoValue("a function" if callable(value) else "no value of a recipe")
