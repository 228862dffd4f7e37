"""Parameters of blocks ("params"): reading of their declarations, and checks of the values that nodes give to them."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping as MappingABC
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import nearest
from declarative_train.core.names import RESERVED
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import bad_param
from declarative_train.recipe.checks.keys import missing_key, unknown_key, wrong_type, wrong_value
from declarative_train.recipe.hints.aliases import KEYS, NOTES, replace_word
from declarative_train.recipe.model.references import check_name
from declarative_train.recipe.validate import validate
from declarative_train.source.node import Mapping, Node, Scalar, Sequence, describe_node, is_open, to_value
from declarative_train.source.template import Templates

Kind = Literal["int", "float", "str", "bool", "list", "mapping"]

_WORDS: dict[str, str] = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "`true` or `false`",
    "list": "a list",
    "mapping": "a mapping",
}


class ParamSpec(BaseModel):
    """Declaration of a block parameter in the long form: `{type: int, min: 1}`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    type: Kind
    """Type of the value."""
    default: object = None
    """The value if the node gives none; without this key the param is required."""
    optional: bool = False
    """A node may leave it out; it is then `none` in templates."""
    min: int | float | None = None
    """The smallest value; for a list the smallest length."""
    max: int | float | None = None
    """The largest value; for a list the largest length."""
    choices: tuple[str | int | float, ...] | None = None
    """The allowed values."""
    items: Literal["int", "float", "str", "bool"] | None = None
    """Type of each entry of a list."""


class Param(NamedTuple):
    """Declared block parameter. `kind`: its type; None: any value is allowed, because the default is a template.
    `default`: the YAML node of its default, which may be a YAML null; None: there is no default, so every node must set
    the parameter."""

    name: str
    kind: Kind | None
    default: Node | None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[object, ...] | None = None
    items: str | None = None

    @property
    def is_required(self) -> bool:
        return self.default is None


def read_params(node: Node | None) -> tuple[dict[str, Param], list[Diagnostic]]:
    """Return {name: declaration} of the parameters of a block, and errors. `node`: the key `params` of the block."""
    if node is None:
        return {}, []
    if not isinstance(node, Mapping):
        return {}, [wrong_type(node.span, "params", describe_node(node), "a mapping of names")]
    params: dict[str, Param] = {}
    diagnostics: list[Diagnostic] = []
    for entry in node:
        problem = check_name(entry.key, "a param", RESERVED)
        if problem is not None:
            diagnostics.append(problem)
            continue
        param, found = _read_param(entry.name, entry.key.span, entry.value)
        diagnostics += found
        if param is not None:
            params[entry.name] = param
    return params, diagnostics


def _read_param(name: str, key_span: Span, node: Node) -> tuple[Param | None, list[Diagnostic]]:
    if isinstance(node, Mapping) and node.get("type") is not None:
        spec, found = validate(ParamSpec, node, where=f"the param `{name}`", at=key_span)
        if spec is None:
            return None, found
        default = node.get("default")
        if spec.optional and default is not None:
            return None, [bad_param(key_span, name, "is optional, and has a default")]
        if spec.optional:
            default = Scalar(None, "null", key_span)
        param = Param(name, spec.type, default, spec.min, spec.max, spec.choices, spec.items)
        if default is not None and not is_open(default) and to_value(default) is not None:
            _, found = check_value(param, default, "its declaration")
        return param, found
    if isinstance(node, Mapping) and node.entries and all(each.name in ParamSpec.model_fields for each in node):
        return None, [bad_param(key_span, name, f"has `{node.entries[0].name}` but no `type`")]
    items = None
    if isinstance(node, Sequence) and node.items:
        kinds = {_kind(item) for item in node.items}
        items = kinds.pop() if len(kinds) == 1 else None
    kind = None if is_open(node) else _kind(node)
    return Param(name, kind, node, items=None if items is None or is_open(node) else items), []


def _kind(node: Node) -> Kind | None:
    """Return the type of a default value; None for null."""
    if isinstance(node, Sequence):
        return "list"
    if isinstance(node, Mapping):
        return "mapping"
    for kind, python in (("bool", bool), ("int", int), ("float", float), ("str", str)):
        if isinstance(node.value, python):
            return kind  # type: ignore[return-value]
    return None


def bind_params(
    block: str,
    params: MappingABC[str, Param],
    given: Mapping,
    at: Span,
    templates: Templates,
    present: Collection[str] = (),
    *,
    shipped: bool = False,
) -> tuple[dict[str, object] | None, list[Diagnostic]]:
    """Return (values, errors). `values`: {name: value} of a block's parameters, as variables for its templates; None if
    there are errors.

    `params`   declared parameters of the block
    `given`    keys that a node sets for the block, rendered
    `at`       span at which a missing parameter is reported
    `present`  all keys of the node, so that no fix renames a key to one of them
    `shipped`  the block is one that dtrain ships
    """
    diagnostics: list[Diagnostic] = []
    meant: set[str] = set()  # parameters that the node sets under a wrong name; they are not reported as missing
    for entry in given:
        if entry.name in params:
            continue
        here = next((word for word in KEYS.get(entry.name, ()) if word in params), None) if shipped else None
        home = f"its name here is `{here}`" if here else NOTES.get(entry.name) if shipped else None
        fixes = () if here is None or here in present else replace_word(entry.key.span, entry.name, here)
        meant |= {word for word in (here, nearest(entry.name, params)) if word is not None}
        keys, where = [*params, *RESERVED], f"`{block}`"
        diagnostics.append(unknown_key(entry.key.span, entry.name, where, keys, home, present, fixes, closed=shipped))
    values: dict[str, object] = {}
    for name, param in params.items():
        node = given.get(name)
        if node is None and param.default is None:
            diagnostics += [] if name in meant else [missing_key(at, name, f"`{block}`")]
            continue
        if node is None:
            assert param.default is not None
            node, found = templates.render(param.default, {"params": values})
            if found:
                return None, [*diagnostics, *found]
        value, found = check_value(param, node, f"`{block}`")
        diagnostics += found
        values[name] = value
    return (None if diagnostics else values), diagnostics


def check_value(param: Param, node: Node, where: str) -> tuple[object, list[Diagnostic]]:
    """Return the value of a block parameter as plain data, and errors if it does not fit the declaration `param`. The
    value is None if it has the wrong type. `where`: name of the block, for messages.
    """
    value = to_value(node)
    if param.kind is None or (value is None and param.default is not None and to_value(param.default) is None):
        return value, []
    if not _is(value, param.kind):
        hint = f"the default of `{param.name}` in {where} gives the type" if param.default is not None else None
        if param.kind == "list" and isinstance(node, Scalar) and param.items is not None and _is(value, param.items):
            hint = f"write `[{node.text}]`"
        return None, [wrong_type(node.span, param.name, describe_node(node), _WORDS[param.kind], hint)]
    if param.kind == "float":
        value = float(value)  # type: ignore[arg-type]
    if param.items is not None and isinstance(node, Sequence):
        wrong = [(place, item) for place, item in enumerate(node.items) if not _is(to_value(item), param.items)]
        if wrong:
            kind = _WORDS[param.items]
            return None, [wrong_type(item.span, f"{param.name}.{at}", describe_node(item), kind) for at, item in wrong]
    return value, _bounds(param, value, node.span)


def _is(value: object, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    python: dict[str, type | tuple[type, ...]] = {
        "int": int,
        "float": (int, float),
        "str": str,
        "list": tuple,
        "mapping": dict,
    }
    return isinstance(value, python[kind])


def _bounds(param: Param, value: object, span: Span) -> list[Diagnostic]:
    if param.choices is not None and value not in param.choices:
        known = ", ".join(map(str, param.choices))
        return [wrong_value(span, f"`{param.name}` is {value}, expected one of {known}")]
    is_number = isinstance(value, int | float)
    size = value if isinstance(value, int | float) else len(value) if isinstance(value, tuple | str) else None
    what = "" if is_number else " entries" if isinstance(value, tuple) else " characters"
    if size is None:
        return []
    has = f"`{param.name}` is {size}; it must be" if is_number else f"`{param.name}` has {size}{what}, but must have"
    if param.minimum is not None and size < param.minimum:
        return [wrong_value(span, f"{has} at least {param.minimum}")]
    if param.maximum is not None and size > param.maximum:
        return [wrong_value(span, f"{has} at most {param.maximum}")]
    return []
