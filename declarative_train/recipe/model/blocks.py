"""Blocks: graphs with parameters that a node can have as its `type`. They are defined in `model.blocks` of a recipe, or
in files that dtrain ships.

A shipped file has one block, in the form of an entry of `model.blocks`. It may define blocks of its own (`blocks:`)
that only it can use. A block in a recipe can use all other blocks of the recipe and all shipped blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from declarative_train.components.component import Layer, Port
from declarative_train.components.layers import LAYERS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.names import RESERVED
from declarative_train.core.packs import PackError, find_folder, find_packs
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import shadowed_type
from declarative_train.recipe.checks.keys import missing_key, unknown_key, wrong_type, wrong_value
from declarative_train.recipe.checks.wiring import unused_param
from declarative_train.recipe.model.blocks_params import Param, read_params
from declarative_train.recipe.model.references import REUSE, Edge, check_name, read_reference
from declarative_train.source.document import SourceFile
from declarative_train.source.node import Entry, Mapping, Node, Scalar, Sequence, describe_node, is_open, scalars
from declarative_train.source.reader import read_text

_FOLDER = Path(__file__).parent.parent.parent / "blocks"
_ONE_PARAM = re.compile(r"\bparams\s*\.\s*(\w+)")
_ALL_PARAMS = re.compile(r"\bparams\b(?!\s*\.\s*\w)")  # passed on as a mapping, or read by a computed name
_KEYS = ("params", "inputs", "graph", "output", "outputs", "parameters")


@dataclass(frozen=True, slots=True, eq=False)
class BlockDefinition:
    """Definition of a block. `ports`: its inputs. `outputs`: {name: reference to a node inside}; the first one is the
    default. `blocks`: definitions that only nodes inside this block can use. `parameters`: settings of the parameters
    inside; their selectors are relative to the block.
    """

    name: str
    span: Span  # of the name
    params: MappingABC[str, Param]
    ports: tuple[Port, ...]
    port_spans: MappingABC[str, Span]
    graph: Mapping
    outputs: MappingABC[str, Edge]
    parameters: Mapping | None = None
    blocks: MappingABC[str, BlockDefinition] = field(default_factory=dict)
    file: SourceFile | None = None  # of a shipped block


def read_blocks(
    node: Node | None, taken: MappingABC[str, str], where: str = "model.blocks"
) -> tuple[dict[str, BlockDefinition | None], list[Diagnostic]]:
    """Return {name: definition} for the blocks declared in `node`, and errors; a definition with errors is None.
    `taken`: {name of an existing type: what it is}, such as {"linear": "a layer"}. `where`: path of `node`, for
    messages.
    """
    if node is None:
        return {}, []
    if not isinstance(node, Mapping):
        return {}, [wrong_type(node.span, where, describe_node(node), "a mapping of names")]
    blocks: dict[str, BlockDefinition | None] = {}
    diagnostics: list[Diagnostic] = []
    for entry in node:
        problem = check_name(entry.key, "a block")
        if problem is None and entry.name in taken:
            problem = shadowed_type(entry.key.span, entry.name, "block", taken[entry.name])
        if problem is not None:
            diagnostics.append(problem)
            continue
        blocks[entry.name], found = read_block(entry.key, entry.value)
        diagnostics += found
    return blocks, diagnostics


def read_block(
    key: Scalar, node: Node, file: SourceFile | None = None
) -> tuple[BlockDefinition | None, list[Diagnostic]]:
    where = f"the block `{key.text}`"
    if not isinstance(node, Mapping):
        return None, [
            wrong_type(node.span, key.text, describe_node(node), "a mapping with `inputs`, `graph` and `output`")
        ]
    keys = (*_KEYS, "blocks") if file is not None else _KEYS
    present = {entry.name for entry in node}
    unknown = (entry for entry in node if entry.name not in keys)
    diagnostics = [unknown_key(entry.key.span, entry.name, where, keys, present=present) for entry in unknown]
    params, found = read_params(node.get("params"))
    graph, handed = _expand_param_lists(node.get("graph"), params, where)
    node = node.with_values(lambda entry: graph if entry.name == "graph" and graph is not None else entry.value)
    ports, port_spans, wrong_ports = _read_ports(node.get("inputs"), where, key.span)
    outputs, wrong_outputs = _read_outputs(node, where, key.span)
    diagnostics += [*found, *handed, *wrong_ports, *wrong_outputs]
    blocks, found = read_blocks(node.get("blocks"), {}, f"{where}: blocks")
    diagnostics += found
    parameters = node.get("parameters")
    if graph is None:
        diagnostics.append(missing_key(key.span, "graph", where, "{...}"))
    elif not isinstance(graph, Mapping):
        diagnostics.append(wrong_type(graph.span, "graph", describe_node(graph), "a mapping of nodes"))
    elif not graph.entries:
        diagnostics.append(wrong_value(graph.span, f"the graph of {where} is empty"))
    if parameters is not None and not isinstance(parameters, Mapping):
        diagnostics.append(
            wrong_type(parameters.span, "parameters", describe_node(parameters), "a mapping of selectors")
        )
    if diagnostics or not isinstance(graph, Mapping):
        return None, diagnostics
    selectors = parameters if isinstance(parameters, Mapping) else None
    family: dict[str, BlockDefinition] = {}  # blocks of one shipped file can use each other
    family |= {name: replace(block, blocks=family, file=file) for name, block in blocks.items() if block is not None}
    block = BlockDefinition(key.text, key.span, params, ports, port_spans, graph, outputs, selectors, family, file)
    return block, list(_find_unused(key.text, node))


def _expand_param_lists(
    graph: Node | None, params: MappingABC[str, Param], where: str
) -> tuple[Node | None, list[Diagnostic]]:
    """Return the graph of a block without the short form `params: [norm]` in its nodes, and errors. The short form
    means `norm: "{{ params.norm }}"`, unless the node has a key `norm`. `params`: the parameters of the block. `where`:
    name of the block, for messages."""
    diagnostics: list[Diagnostic] = []
    if not isinstance(graph, Mapping):
        return graph, diagnostics

    def expand_params(entry: Entry) -> Node:
        node = entry.value
        handed = node.entry("params") if isinstance(node, Mapping) else None
        if handed is None or not isinstance(node, Mapping):
            return node
        entries = [each for each in node if each is not handed]
        names = handed.value.items if isinstance(handed.value, Sequence) else ()
        if not names:
            found, wanted = describe_node(handed.value), "a list of params of the block"
            diagnostics.append(wrong_type(handed.value.span, "params", found, wanted, "write `params: [NAME]`"))
        for name in names:
            if not isinstance(name, Scalar):
                diagnostics.append(wrong_type(name.span, "params", describe_node(name), "the name of a param"))
            elif name.text not in params:
                diagnostics.append(unknown_key(name.span, name.text, f"`params` of {where}", [*params]))
            elif not any(each.name == name.text for each in entries):
                text = f"{{{{ params.{name.text} }}}}"
                entries.append(Entry(Scalar(name.text, name.text, name.span), Scalar(text, text, name.span)))
        return node.with_entries(entries)

    return graph.with_values(expand_params), diagnostics


def _find_unused(block: str, node: Mapping) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each parameter of a block that no template inside reads. `block`: name of the block.
    `node`: its definition.
    """
    params = node.get("params")
    texts = [each.text for each in scalars(node) if each.template is not None or is_open(each)]
    if not isinstance(params, Mapping) or any(_ALL_PARAMS.search(text) for text in texts):
        return
    read = {name for text in texts for name in _ONE_PARAM.findall(text)}
    yield from (unused_param(entry.key.span, entry.name, block) for entry in params if entry.name not in read)


def _read_ports(node: Node | None, where: str, at: Span) -> tuple[tuple[Port, ...], dict[str, Span], list[Diagnostic]]:
    if node is None:
        return (), {}, [missing_key(at, "inputs", where, "[x]")]
    declared: list[tuple[Scalar, bool]] = []
    diagnostics: list[Diagnostic] = []
    if isinstance(node, Sequence):
        for item in node.items:
            if isinstance(item, Scalar):
                declared.append((item, False))
            else:
                diagnostics.append(wrong_type(item.span, "inputs", f"holding {describe_node(item)}", "a list of names"))
    elif isinstance(node, Mapping):
        for entry in node:
            word = entry.value.value if isinstance(entry.value, Scalar) else None
            if word not in ("required", "optional"):
                message = f"the input `{entry.name}` is {describe_node(entry.value)}, expected `required` or `optional`"
                diagnostics.append(wrong_value(entry.value.span, message))
            declared.append((entry.key, word == "optional"))
    else:
        diagnostics.append(wrong_type(node.span, "inputs", describe_node(node), "a list of names, `[x]`, or a mapping"))
    spans: dict[str, Span] = {}
    for name, _ in declared:
        problem = check_name(name, "an input", RESERVED)
        if problem is None and name.text in spans:
            problem = wrong_value(name.span, f"the input `{name.text}` is declared twice")
        if problem is not None:
            diagnostics.append(problem)
        spans.setdefault(name.text, name.span)
    if not declared and not diagnostics:
        diagnostics.append(wrong_value(node.span, f"{where} has no inputs", "declare one with `inputs: [x]`"))
    return tuple(Port(name.text, optional) for name, optional in declared), spans, diagnostics


def _read_outputs(node: Mapping, where: str, at: Span) -> tuple[dict[str, Edge], list[Diagnostic]]:
    one, many = node.entry("output"), node.entry("outputs")
    if one is not None and many is not None:
        return {}, [wrong_value(many.key.span, f"{where} has `output` and `outputs`", "combine them in `outputs`")]
    if one is not None:
        return _references([(None, one.value)])
    if many is None:
        return {}, [missing_key(at, "output", where)]
    if not isinstance(many.value, Mapping) or not many.value.entries:
        wanted = "a mapping of names, `{mean: mu}`"
        return {}, [wrong_type(many.value.span, "outputs", describe_node(many.value), wanted)]
    return _references([(entry.key, entry.value) for entry in many.value])


def _references(pairs: list[tuple[Scalar | None, Node]]) -> tuple[dict[str, Edge], list[Diagnostic]]:
    outputs: dict[str, Edge] = {}
    diagnostics: list[Diagnostic] = []
    for key, node in pairs:
        name = "output" if key is None else key.text
        problem = None if key is None else check_name(key, "an output")
        text = node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None
        edge = None if text is None else read_reference(text, node.span)
        if problem is None and edge is None:
            wanted = "the name of a node, such as `out` or `attn.weights`"
            problem = wrong_type(node.span, name, describe_node(node), wanted)
        if problem is not None:
            diagnostics.append(problem)
        if edge is not None:
            outputs[name] = edge
    return outputs, diagnostics


@cache
def _files() -> dict[str, Path]:
    """Return {block: file} for the shipped blocks, including those of packs. Raises PackError if a pack's block has the
    name of another type.
    """
    found = {path.stem: path for path in _FOLDER.glob("*.yaml")}
    for pack, its in ((name, pack.blocks) for name, pack in find_packs().items() if pack.blocks):
        for path in find_folder(its).glob("*.yaml"):
            if path.stem in found or path.stem in LAYERS:
                raise PackError(
                    f"the pack `{pack}` has a block `{path.stem}`, and there is a type of that name already"
                )
            found[path.stem] = path
    return dict(sorted(found.items()))


def list_shipped() -> tuple[str, ...]:
    return tuple(_files())


@cache
def load_shipped_block(name: str) -> tuple[BlockDefinition | None, tuple[Diagnostic, ...]]:
    """Return (block, errors) for the shipped block `name`. The block is None if it has errors. Results are cached."""
    file = read_shipped_file(name)
    root, found = read_text(file.path, file.text)
    if not isinstance(root, Mapping) or found:
        return None, tuple(found)
    block, found = read_block(Scalar(name, name, root.span), root, file)
    return block, tuple(found)


def read_shipped_file(name: str) -> SourceFile:
    path = _files()[name]
    return SourceFile(str(path), path.read_text(encoding="utf-8"), "block")


class TypeLibrary:
    """Types that a node can have: layers, the blocks of the recipe and the shipped blocks."""

    def __init__(self, layers: MappingABC[str, type[Layer]], node: Node | None) -> None:
        self.layers = layers
        self._shipped = list_shipped()
        taken = dict.fromkeys(layers, "a layer")
        taken |= dict.fromkeys(self._shipped, "a shipped block") | {REUSE: "a reserved word"}
        self._blocks, self.diagnostics = read_blocks(node, taken)
        self.files: dict[str, SourceFile] = {}
        """Files of the shipped blocks that were used, by name."""

    def find(self, name: str, inside: BlockDefinition | None) -> type[Layer] | BlockDefinition | None:
        """Return the layer class or the block with this name. None if there is no such type, or if the block has
        errors. `inside`: the block with the node that has this type; None for a node outside of blocks.
        """
        if name in self.layers:
            return self.layers[name]
        family = inside.blocks if inside is not None and inside.file is not None else self._blocks
        if name in family:
            return family[name]
        if name not in self._shipped:
            return None
        block, found = load_shipped_block(name)
        if name not in self.files:
            self.diagnostics += found
        self.files[name] = read_shipped_file(name) if block is None or block.file is None else block.file
        return block

    def is_broken(self, name: str) -> bool:
        """Return True if there is a block with this name, but with errors, which are already reported. Call it only for
        a name for which `find` returns None."""
        return name in self._shipped or (name in self._blocks and self._blocks[name] is None)

    def types(self) -> list[str]:
        """Return the names of all types that a node of the recipe can have."""
        return [*self.layers, *self._blocks, *self._shipped, REUSE]

    def own(self) -> set[str]:
        """Return the names of the types that the recipe and its plugins define."""
        return {*self._blocks, *(self.layers.keys() - LAYERS.keys())}
