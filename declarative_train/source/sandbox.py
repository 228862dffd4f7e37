"""Templates of recipes: Jinja expressions, compiled and run in the bounded environment of `core/sandbox.py`.

Templates of a recipe are expressions: names, operators, inline `if`, filters, a few methods. There are no statements,
so there are no loops and no state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.environment import Template
from jinja2.exceptions import TemplateSyntaxError
from jinja2.runtime import StrictUndefined, Undefined

from declarative_train.core.sandbox import OF_RECIPES, BoundedEnvironment, Forbidden, TooCostly

LIMITS = OF_RECIPES
MAX_ITEMS = 10_000  # items of a `range`

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


class NoValue(Exception):  # noqa: N818
    """Error: the result of a template is not a number, text, boolean, null, list or mapping."""


class NameMissing(Exception):  # noqa: N818
    """Error: a template uses a name that does not exist. `owner`: the value that lacks the attribute or item `name`;
    None if `name` is a variable."""

    def __init__(self, owner: object, name: object) -> None:
        super().__init__(str(name))
        self.owner, self.name = owner, name


class _Missing(StrictUndefined):
    """Undefined value of Jinja that can be used with `default` and `is defined`; any other use raises NameMissing."""

    __slots__ = ()

    def __init__(self, hint: str | None = None, obj: Any = None, name: Any = None, exc: Any = None) -> None:
        super().__init__(hint, None, name)
        owner = obj if isinstance(obj, dict | Mapping | list | tuple | str | int | float) else None
        self._undefined_exception = lambda message: NameMissing(owner, name)  # type: ignore[assignment]


class Compiled:
    """Compiled template. `is_value`: True if the text is exactly one `{{ }}`. Then the result of `run` is the value in
    it, of any type; otherwise it is a text."""

    def __init__(self, environment: Sandbox, template: Template, is_value: bool) -> None:
        self._environment, self._template, self.is_value = environment, template, is_value

    def run(self, names: Mapping[str, object]) -> object:
        """Return the result of the template for the variables `names`. Raises NoValue, NameMissing, TooCostly,
        Forbidden, and any exception of the expression itself."""
        with self._environment.clock:
            context = self._template.new_context(dict(names))
            pieces = list(self._template.root_render_func(context))
            if self.is_value:
                return self._environment.plain(context.vars["result"])
            text = "".join(pieces)
            return self._environment.check_value(text)


class Sandbox(BoundedEnvironment):
    """Jinja environment of the templates of a recipe. Compile a template with `read`."""

    def __init__(self) -> None:
        super().__init__(LIMITS, undefined=_Missing, keep_trailing_newline=True)
        filters: dict[str, Any] = self.filters | {"sum": _sum_of_numbers(self.filters["sum"])}
        tests: dict[str, Any] = self.tests
        self.filters = {name: self.bound(_in_list(filters[name])) for name in FILTERS}
        self.tests = {name: self.bound(test) for name, test in tests.items() if name not in ("filter", "test")}
        self.globals = {"range": self.bound(_range)}

    def read(self, text: str) -> Compiled:
        """Compile a template. Raises TemplateSyntaxError, TooCostly, Forbidden."""
        with self.compiling(text):
            tree = self.parse(text)
            check(tree)
            value = only_value(tree)
            if value is not None:
                tree.body = [nodes.Assign(nodes.Name("result", "store"), value, lineno=1)]
            return Compiled(self, self.compile_tree(tree), value is not None)

    def plain(self, value: object) -> object:
        """Return the value with tuples replaced by lists. Raises NoValue for a value that a recipe cannot have."""
        if isinstance(value, Undefined):
            str(value)  # raises NameMissing
        return _to_plain(self.check_value(value))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute` for a template. If `obj` is a mapping with the item `attribute`, return the item, so
        that a variable may be called `items`. Otherwise return the method of this name, if it is one of the few
        allowed ones."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        if isinstance(obj, Undefined):
            str(obj)  # raises NameMissing if obj is undefined
        if attribute in _METHODS.get(type(obj), ()) or (isinstance(obj, Mapping) and attribute in _METHODS[dict]):
            return self.bound(_in_list(getattr(obj, attribute)))
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


def _in_list(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function` and converts an iterator that it returns to a list."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        is_iterator = isinstance(result, Iterable) and not isinstance(result, str | list | tuple | dict | Undefined)
        return list(result) if is_iterator else result

    return call


def _sum_of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, list | tuple) for each in (*args[2:], *kwargs.values())):
            raise Forbidden("`sum` only adds numbers")
        return function(*args, **kwargs)

    return call


def check(tree: nodes.Template) -> None:
    """Raise Forbidden for parts of Jinja that recipe templates must not use."""
    for node in tree.find_all(nodes.Node):
        kind = type(node).__name__
        if isinstance(node, nodes.Stmt) and not isinstance(node, nodes.Output):
            hint = f"write {_STATEMENTS[kind]}" if kind in _STATEMENTS else "use expressions"
            raise Forbidden(f"recipes do not support Jinja's `{kind.lower()}`", hint)
        if isinstance(node, nodes.Name | nodes.NSRef) and node.name.startswith("_"):
            raise Forbidden(f"`{node.name}`: templates cannot use names that start with `_`")
        if isinstance(node, nodes.Filter) and node.name.startswith("_"):
            raise TemplateSyntaxError(f"No filter named '{node.name}'.", node.lineno)


def only_value(tree: nodes.Template) -> nodes.Expr | None:
    """Return the expression in `{{ }}` if the template contains nothing else, else None. Newlines outside of `{{ }}`,
    such as the last one of a block scalar, are ignored."""
    parts = [part for node in tree.body for part in (node.nodes if isinstance(node, nodes.Output) else [node])]
    shown = [part for part in parts if not (isinstance(part, nodes.TemplateData) and not part.data.strip("\n"))]
    only = shown[0] if len(shown) == 1 else None
    return only if isinstance(only, nodes.Expr) and not isinstance(only, nodes.TemplateData) else None


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
    raise NoValue("a function" if callable(value) else "an object of Python")


def _range(*bounds: int) -> list[int]:
    if not all(isinstance(bound, int) for bound in bounds):
        raise TypeError("`range` needs integers")
    numbers = range(*bounds)
    if abs(bounds[-1] if len(bounds) < 3 else bounds[1]) > 1 << 62 or len(numbers) > MAX_ITEMS:
        raise TooCostly(f"this `range` has more than {MAX_ITEMS:,} items")
    return list(numbers)
