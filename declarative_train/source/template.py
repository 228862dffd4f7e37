"""Renderer of templates: nodes with `{{ }}` in their scalars -> nodes with values at the same positions.

A scalar that is exactly one `{{ }}` becomes the value itself, also a list or mapping. Any other template becomes a
text, which is not parsed as YAML again. Keys cannot be templates. Compiled templates are cached, because the copies of
a repeated block render the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from operator import is_
from typing import TYPE_CHECKING

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.secrets import in_texts, record_derived, used_variables
from declarative_train.core.span import Span
from declarative_train.source.checks.templates import circular_vars
from declarative_train.source.node import Entry, Mapping, Node, Scalar, Sequence, is_template, scalars
from declarative_train.source.template_names import FAILED, CircularVars, FailedVar, TemplateNames, VarValues, to_lists

if TYPE_CHECKING:
    from declarative_train.source.sandbox import Compiled, Sandbox


class Templates:
    """Renderer of the templates of one recipe. Its time limit is for all of them together.

    `failed`: spans of the scalars that could not be rendered, so that the caller can leave out further diagnostics
    there.
    """

    def __init__(self) -> None:
        self.failed: set[Span] = set()
        # variables of the last call of `render`: as given, and as templates read them
        self._names: tuple[MappingABC[str, object], TemplateNames] | None = None
        self._sandbox: Sandbox | None = None
        self._compiled: dict[str, Compiled] = {}

    def render(self, node: Node, names: MappingABC[str, object]) -> tuple[Node, list[Diagnostic]]:
        """Return `node` with every template in it rendered, and diagnostics. A template that fails stays unrendered
        and is reported.

        `names`: the variables that templates may use: `vars`, `env`, `params` in a block, `index` in a repeat.
        Sequences in them may be tuples; templates get lists.
        """
        diagnostics: list[Diagnostic] = []
        return self._node(node, names, diagnostics), diagnostics

    def _node(self, node: Node, names: MappingABC[str, object], diagnostics: list[Diagnostic]) -> Node:
        if isinstance(node, Scalar):
            if isinstance(node.value, str) and node.template is None and is_template(node.value):
                return self._scalar(node, names, diagnostics)
            return node
        if node.is_plain:
            return node
        if isinstance(node, Sequence):
            items = [self._node(item, names, diagnostics) for item in node.items]
            same = all(map(is_, items, node.items))
            return node if same else Sequence(tuple(items), node.span)
        entries = []
        for entry in node.entries:
            value = entry.value if _is_chat_template(entry) else self._node(entry.value, names, diagnostics)
            entries.append(entry if value is entry.value else Entry(entry.key, value))
        return node if all(map(is_, entries, node.entries)) else Mapping(tuple(entries), node.span)

    def _scalar(self, scalar: Scalar, names: MappingABC[str, object], diagnostics: list[Diagnostic]) -> Node:
        if self._names is None or self._names[0] is not names:
            self._names = (names, TemplateNames(names))
        listed = self._names[1]
        try:
            return from_value(self._value(scalar.text, listed), scalar.span, scalar)
        except MemoryError:
            raise
        except Exception as problem:  # any exception is a mistake in the template
            self.failed.add(scalar.span)
            if isinstance(problem, CircularVars):
                diagnostics.append(circular_vars(scalar.span, problem.chain))
            elif not _is_echo(problem):
                from declarative_train.source.explaining import explain  # only for mistakes

                diagnostics.append(explain(problem, scalar, listed))
            return scalar

    def _value(self, text: str, names: MappingABC[str, object]) -> object:
        reads = used_variables.num_reads
        compiled = self._compiled.get(text)
        if compiled is None:
            compiled = self._compiled[text] = self._environment().read(text)
        value = compiled.run(names)
        if used_variables.num_reads > reads:
            in_texts(record_derived, value)
        return value

    def _environment(self) -> Sandbox:
        if self._sandbox is None:
            from declarative_train.source.sandbox import Sandbox

            self._sandbox = Sandbox()
        return self._sandbox


def _is_chat_template(entry: Entry) -> bool:
    """Return whether an entry of the recipe is a chat template, which is rendered for each dialogue, not when the
    recipe is read. Its key is `template`, and its value has `{% %}` statements, which other templates do not have.
    """
    value = entry.value
    return entry.name == "template" and isinstance(value, Scalar) and "{%" in value.text


def from_value(value: object, span: Span, template: Scalar) -> Node:
    """Return the result `value` of a template as a node. This node and all nodes in it have the span `span`.
    `template`: the scalar with the template; each scalar in the result keeps the text of the template."""
    if isinstance(value, list | tuple):
        return Sequence(tuple(from_value(item, span, template) for item in value), span)
    if isinstance(value, dict):
        return Mapping(
            tuple(Entry(Scalar(key, key, span), from_value(item, span, template)) for key, item in value.items()), span
        )
    assert value is None or isinstance(value, bool | int | float | str), "the sandbox lets nothing else out"
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if value is None or isinstance(value, bool) else str(value)
    return Scalar(value, text, span, template.quoted, template=template.text)


def render_vars(root: Mapping, env: MappingABC[str, str]) -> tuple[dict[str, object], list[Diagnostic]]:
    """Return the values of the section `vars` of a recipe, and diagnostics. A variable may use other variables of the
    section, and `env`. A variable that fails is left out and reported. A variable that uses a failed one is left out
    without a diagnostic."""
    section = root.get("vars")
    if not isinstance(section, Mapping):
        return {}, []
    variables = _Variables(section, env)
    for name in variables:
        variables.resolve(name)
    values = VarValues((name, value) for name, value in variables.known.items() if value is not FAILED)
    values.from_env = frozenset(variables.from_env)
    values.failed = frozenset(name for name in variables if name not in values)
    return values, variables.diagnostics


def _is_echo(problem: Exception) -> bool:
    """Return whether a template failed because it uses a variable of the section `vars` that could not be rendered.
    That failure is already reported."""
    owner, name = getattr(problem, "owner", None), getattr(problem, "name", None)
    return isinstance(problem, FailedVar) or (isinstance(owner, VarValues) and name in owner.failed)


class _Variables(MappingABC[str, object]):
    """Section `vars` as a mapping that renders each of its variables when it is first read."""

    def __init__(self, section: Mapping, env: MappingABC[str, str]) -> None:
        self.known: dict[str, object] = {}
        self.diagnostics: list[Diagnostic] = []
        self._entries = {entry.name: entry for entry in section.entries}
        self._env = env
        self._templates = Templates()
        self._open: list[str] = []
        self.from_env: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> object:
        """Return the value of a variable. Raises CircularVars if it refers to itself, FailedVar if it could not be
        rendered."""
        if name not in self._entries:
            raise KeyError(name)
        if name in self._open:
            raise CircularVars([*self._open[self._open.index(name) :], name])
        value = self.resolve(name)
        if value is FAILED:
            raise FailedVar(name)
        used_variables.num_reads += name in self.from_env
        return value

    def resolve(self, name: str) -> object:
        if name not in self.known:
            self._open.append(name)
            reads = used_variables.num_reads
            node, found = self._templates.render(self._entries[name].value, {"vars": self, "env": self._env})
            self._open.pop()
            self.diagnostics += found
            failed = any(_is_unrendered(scalar) for scalar in scalars(node))
            self.known[name] = FAILED if failed else to_lists(node)
            if used_variables.num_reads > reads:
                self.from_env.add(name)
        return self.known[name]


def _is_unrendered(scalar: Scalar) -> bool:
    return scalar.template is None and isinstance(scalar.value, str) and is_template(scalar.value)
