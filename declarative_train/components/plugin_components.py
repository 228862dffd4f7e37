"""Components of plugins other than layers, made from the text of a user's class, which is read with `ast`.

The base class decides the kind of component, the arguments of `__init__` become its fields, and the methods decide what
it can do. A plan stores such a component with the path of its file under `plugin`."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import create_model

from declarative_train.components.component import Component, ShapeError
from declarative_train.components.plugin_file import (
    PluginFile,
    PluginProblem,
    arguments_of,
    import_plugin,
    positional,
    read_fields,
    type_name,
)
from declarative_train.components.plugin_types import default_of

_EMPTY = ("torch.utils.data.Dataset", "declarative_train.")  # bases without methods of their own
PLUGIN = "plugin"
"""The key of a component's data that holds the path of its file."""


class PluginComponent(Component):
    """Base class of components that call a user's class; `read_plugin_components` makes the subclasses. `may_import`:
    if False, the user's code must not run, and only the fields of the component may be used."""

    plugin_path: ClassVar[str] = ""
    plugin_class: ClassVar[str] = ""
    may_import: ClassVar[bool] = False
    list_fields: ClassVar[frozenset[str]] = frozenset()
    computed_defaults: ClassVar[frozenset[str]] = frozenset()
    method: ClassVar[str] = ""
    num_arguments: ClassVar[int] = 0
    is_variadic: ClassVar[bool] = False
    """`method`: the method of its kind that the user's class has. `num_arguments`: number of its arguments.
    `is_variadic`: whether it takes any number of them (`*values`)."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Attributes of plugin classes that have another name here."""
    own: ClassVar[frozenset[str]] = frozenset({"type"})
    """Keys that belong to dtrain and are not arguments of the class."""

    @classmethod
    def settle(cls) -> None:
        """Compute the class attributes that depend on other class attributes. It is called once, when the others are
        set."""

    @classmethod
    def declare(cls, key: str, value: object) -> None:
        """Set the class attribute of the component that corresponds to an attribute of the user's class. `key`: name of
        the user's attribute (one of `Kind.declares`). `value`: its value. Raises ValueError with the problem and a
        hint."""

    def as_data(self, *, defaults: bool = True) -> dict[str, object]:
        return super().as_data(defaults=defaults) | {PLUGIN: self.plugin_path}

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Self:
        return super().from_data({key: value for key, value in data.items() if key != PLUGIN})

    def settings(self) -> dict[str, Any]:
        """Return the fields as keyword arguments for `__init__` of the user's class."""
        found = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name in self.own or (name in self.computed_defaults and value is None):
                continue
            found[name] = list(value) if name in self.list_fields and isinstance(value, tuple) else value
        return found

    def make(self, *first: object) -> Any:
        """Import the user's file and return an object of the user's class. `first`: the first arguments of `__init__`,
        which dtrain provides. Raises any exception of the user's code."""
        return getattr(import_plugin(self.plugin_path), self.plugin_class)(*first, **self.settings())


class Method(NamedTuple):
    """Method that a user's class must have. `signature`: its first line, as hints show it. `least`, `most`: the
    smallest and the largest number of arguments after `self` that it may have."""

    name: str
    signature: str
    least: int
    most: int


class Kind(NamedTuple):
    """Kind of plugin component (loss, metric, field, ...), with the rules for the user's class.

    bases      base classes by which a class is recognised, as beginnings of dotted names
    adapter    dtrain's component class that calls the user's class, as `module.Class`
    methods    the class must have at least one of these methods
    ending     end of class names that is not part of the type: `SlackSink` has the type `slack`
    leads      number of first arguments of `__init__` that dtrain provides; the others are fields
    needs      names that must be arguments of `__init__`
    says       class attributes whose value must be True or False
    declares   class attributes that are passed to `PluginComponent.declare`
    required   further methods that the class must have
    inherits   base classes that already have all methods in `methods` and `required`
    refused    (base class, message, hint): deriving from this base class is an error"""

    bases: tuple[str, ...]
    adapter: str
    methods: tuple[Method, ...]
    ending: str = ""
    leads: int = 0
    needs: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    declares: tuple[str, ...] = ()
    required: tuple[Method, ...] = ()
    inherits: tuple[str, ...] = ()
    refused: tuple[str, str, str] | None = None


_DATASETS = (
    *(
        f"torch.utils.data.{name}"
        for name in ("Concat", "Dataset", "Iterable", "Stack", "Subset", "Tensor", "dataset.")
    ),
    "torchvision.datasets.",
)
_JUDGES = Method("forward", "def forward(self, input, target)", 1, 2)
KINDS = {
    "optimizer": Kind(
        ("torch.optim.",),
        "optimizers.plugin.PluginOptimizer",
        (Method("step", "def step(self, closure=None)", 0, 1),),
        leads=1,
        needs=("lr",),
        says=("takes_shards",),
    ),
    "lr schedule": Kind(
        ("declarative_train.plugins.LrSchedule",),
        "lr_schedules.plugin.PluginLrSchedule",
        (Method("factor", "def factor(self, step: int, num_steps: int) -> float", 2, 2),),
        "Schedule",
    ),
    "loss": Kind(
        ("declarative_train.plugins.Loss",),
        "losses.plugin.PluginLoss",
        (_JUDGES,),
        "Loss",
        says=("mixes_samples",),
    ),
    "metric": Kind(
        ("declarative_train.plugins.Metric",),
        "metrics.plugin.PluginMetric",
        (_JUDGES, Method("whole", "def whole(self, input, target)", 1, 2)),
        "Metric",
        says=("higher_is_better",),
    ),
    "field": Kind(
        ("declarative_train.plugins.Field",),
        "fields.plugin.PluginField",
        (
            Method("decode", "def decode(self, value)", 1, 1000),
            Method("decode_rows", "def decode_rows(self, values)", 1, 1000),
        ),
        "Field",
        says=("takes_text",),
        declares=("shape", "dtype", "num_values"),
    ),
    "transform": Kind(
        ("declarative_train.plugins.Transform",),
        "transforms.plugin.PluginTransform",
        (Method("apply", "def apply(self, picture, random)", 1, 2),),
        "Transform",
        says=("is_random", "on_numbers"),
        declares=("size", "interval"),
    ),
    "source": Kind(
        ("declarative_train.plugins.Source", *_DATASETS),
        "datasets.plugin.PluginDataset",
        (
            Method("__getitem__", "def __getitem__(self, index: int)", 1, 1),
            Method("read", "def read(self, rows, columns)", 1, 2),
        ),
        "Source",
        declares=("columns",),
        required=(Method("__len__", "def __len__(self) -> int", 0, 0),),
        inherits=_DATASETS,
        refused=(
            "torch.utils.data.IterableDataset",
            "is an IterableDataset: it gives rows in its own order, and not by number",
            "order, splits and resuming ask for rows by number: derive from `Dataset`, with `__getitem__`",
        ),
    ),
}
"""Kinds of plugin components, by the name that `recipe/validate.py` uses for the kind."""


@dataclass(frozen=True, slots=True)
class FoundComponent:
    """Component class made for a class of a plugin's file, and the position of the class name in the file."""

    component: type[PluginComponent]
    line: int
    column: int
    end_column: int


Found = Mapping[str, Mapping[str, FoundComponent]]
"""Component classes by kind and type."""


@lru_cache(maxsize=64)
def read_plugin_components(path: str, text: str, *, may_import: bool) -> tuple[Found, tuple[PluginProblem, ...]]:
    """Return the components of a plugin's file by kind and type, and the problems found. `text`: content of the file
    `path`. `may_import`: whether the code of the file may run later. If the file is not valid Python, both results are
    empty, because `read_plugin` reports the error."""
    try:
        file = PluginFile(path, text, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}, ()
    found: dict[str, dict[str, FoundComponent]] = {word: {} for word in KINDS}
    problems: list[PluginProblem] = []
    for word, kind in KINDS.items():
        for node in file.public_classes(kind.bases):
            component, wrong = _read(file, node, word, kind, may_import)
            problems += wrong
            if component is None:
                continue
            name = str(component.model_fields["type"].default)
            if name in found[word]:
                message = f"two classes of this file are the {word} `{name}`"
                problems.append(PluginProblem("name", message, *file.name_place(node), name))
            found[word][name] = FoundComponent(component, *file.name_place(node))
    return found, tuple(problems)


def find_plugin_component(word: str, path: str, name: str) -> type[PluginComponent] | None:
    """Return the component class of a plugin file that a plan names, or None if the file does not have it. `word`: kind
    of the component, such as `loss`. `path`: path of the file. `name`: type of the component. Raises OSError, and
    ValueError if the file no longer passes the checks."""
    with open(path, encoding="utf-8") as file:
        found, problems = read_plugin_components(path, file.read(), may_import=True)
    if problems:
        raise ValueError(f"{path}:{problems[0].line}: {problems[0].message}")
    one = found.get(word, {}).get(name)
    return None if one is None else one.component


def _read(
    file: PluginFile, node: ast.ClassDef, word: str, kind: Kind, may_import: bool
) -> tuple[type[PluginComponent] | None, list[PluginProblem]]:
    from importlib import import_module

    place = file.name_place(node)

    def say(message: str, help: str | None, at: tuple[int, int, int] = place) -> None:
        problems.append(PluginProblem("signature", message, *at, node.name, help))

    name, problems = type_name(file, node, node.name.removesuffix(kind.ending) or node.name, word)
    if kind.refused is not None and file.derives(node, kind.refused[0]):
        say(f"`{node.name}` {kind.refused[1]}", kind.refused[2])
        return None, problems
    functions = {method: file.method(node, method.name) for method in kind.methods}
    method, function = next(((each, found) for each, found in functions.items() if found), (kind.methods[0], None))
    num_arguments = method.least if function is None else len(positional(function))
    inherits = any(file.derives(node, start) for start in kind.inherits) and not file.derives_just(node, _EMPTY)
    for each, found in ((method, function), *((each, file.method(node, each.name)) for each in kind.required)):
        if found is None and not inherits:
            others = [each] if each in kind.required else kind.methods
            wanted = " or ".join(f"`{other.name}`" for other in others)
            say(f"the {word} `{node.name}` has no {wanted}", f"write `{each.signature}: ...`")
        elif found is not None and found.args.vararg is None and not each.least <= len(positional(found)) <= each.most:
            counted = f"{len(positional(found))} arguments after `self`"
            at = file.place(found)
            place_of_name = (at[0], at[1], at[1] + len("def ") + len(each.name))
            say(
                f"`{each.name}` of the {word} `{node.name}` takes {counted}",
                f"it is called as `{each.signature}`",
                place_of_name,
            )
    made_by = file.method(node, "__init__")
    if made_by is None and (kind.leads or inherits):
        signature = "self, params, lr: float = 1e-3" if kind.leads else "self, root: str"
        hint = f"write one that names its arguments: `def __init__({signature})`"
        say(f"the {word} `{node.name}` has no `__init__` of its own, so its fields are not known", hint)
    module, _, adapter = kind.adapter.rpartition(".")
    base: type[PluginComponent] = getattr(import_module(f"declarative_train.components.{module}"), adapter)
    arguments = [] if made_by is None else arguments_of(made_by)[kind.leads :]
    fields, wrong = read_fields(file, node.name, arguments, {*dir(base), *base.model_fields})
    problems += wrong
    for needed in kind.needs:
        if made_by is not None and needed not in fields.fields and not wrong:
            say(f"the {word} `{node.name}` takes no `{needed}`", f"give `__init__` an argument `{needed}: float`")
    says = dict(_read_attributes(file, node, kind.says))
    problems += [
        PluginProblem("signature", f"`{key}` is true or false", *file.place(item))
        for key, (item, value) in says.items()
        if not isinstance(value, bool)
    ]
    if problems:
        return None, problems
    literal: Any = (Literal[name], name)
    made = create_model(node.name, __base__=base, __module__=__name__, type=literal, **dict[str, Any](fields.fields))
    made.__doc__ = ast.get_docstring(node) or f"`{node.name}` of {file.path}."
    made.plugin_path, made.plugin_class, made.may_import = file.path, node.name, may_import
    made.list_fields, made.computed_defaults = fields.lists, fields.computed
    made.method, made.num_arguments = method.name, num_arguments
    made.is_variadic = function is not None and function.args.vararg is not None
    for key, (_, value) in says.items():
        setattr(made, base.renamed.get(key, key), value)
    for key, (item, value) in _read_attributes(file, node, kind.declares):
        try:
            made.declare(key, value)
        except ValueError as error:
            message, hint = error.args
            problems.append(PluginProblem("signature", message, *file.place(item), "", hint))
    made.settle()
    return (None, problems) if problems else (made, [])


class Makeable(Protocol):
    """Interface of a plugin component that can create an object of the user's class."""

    @property
    def type(self) -> str: ...
    def settings(self) -> dict[str, Any]: ...
    def make(self, *first: object) -> Any: ...


def make_seeded(component: Makeable) -> tuple[Any, bool]:
    """Return an object of the user's class, and whether creating it drew random numbers. The random generators are
    seeded from the component's settings, so that every process creates the same object. Raises any exception of the
    user's code."""
    from declarative_train.components.counter_rng import key_of
    from declarative_train.components.plugin_layer import read_random_states, seed_generators

    settings = json.dumps(component.settings(), sort_keys=True, default=str)
    with seed_generators(key_of(component.type, settings)):
        before = read_random_states()
        made = component.make()
        return made, read_random_states() != before


def line_in_plugin(error: BaseException, path: str) -> str:
    """Return the last line of the plugin's file in the traceback of an error as text, such as `; mine.py, line 12`.
    Return "" if the traceback has no line of the file."""
    from traceback import extract_tb

    from declarative_train.files.open_files import format_path

    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == path]
    return f"; {format_path(path)}, line {lines[-1]}" if lines else ""


def describe_failure(type: str, problem: Exception) -> ShapeError:
    """Return the error for a component of type `type` whose user code raised `problem` on generated samples."""
    lines = str(problem).splitlines() or [""]
    return ShapeError(f"`{type}` fails on generated samples: {problem.__class__.__name__}: {lines[0]}")


def _read_attributes(
    file: PluginFile, node: ast.ClassDef, names: tuple[str, ...]
) -> Iterator[tuple[str, tuple[ast.AST, object]]]:
    """Yield (name, (assignment, value)) for each attribute in `names` that a class, or its base class in the same file,
    assigns. `assignment`: its syntax node. `value`: the value if it is a literal, else None."""
    for name in names:
        item = file.attribute(node, name)
        if item is not None:
            yield name, (item, default_of(item.value)[1])
