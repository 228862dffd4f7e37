"""Initial values of a built module: each element of a parameter is drawn from (seed, parameter name, position).

So a parameter has the same initial value in every mode and on every stage, and a rank draws only its own part. The
layer of a plugin is an exception, because only its code knows how its tensors depend on each other. Such a layer is
constructed as a whole, with a generator seeded by (seed, path)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple, Protocol

import torch
from torch import nn

from declarative_train.components.component import Init, Layer
from declarative_train.components.counter_rng import key_of
from declarative_train.components.inits import INITS
from declarative_train.components.inits.draws import Draws
from declarative_train.components.layers.modules.divided import find_cuts
from declarative_train.components.layers.modules.packed import as_written, find_packed
from declarative_train.components.plugin_layer import AsTheCodeDoes, PluginLayer
from declarative_train.core.cuts import RankCut
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Graph
from declarative_train.graph.read import read_layer

Layers = Mapping[str, tuple[Layer, Mapping[str, TensorSpec]]]
"""Every layer of a model by its path, with the specs that it is built for."""
_KEPT = "_dtrain_start_values"
_DRAWN_AT_ONCE = 1 << 24  # elements


class Start(Protocol):
    """Interface of a parameter that gets an initial value: its name, its init component (None: the init that its layer
    defines), and the name of the parameter to which it is tied (None: not tied)."""

    @property
    def name(self) -> str: ...

    @property
    def init(self) -> dict[str, object] | None: ...

    @property
    def tie(self) -> str | None: ...


def build_plugin_layer(layer: PluginLayer, inputs: Mapping[str, TensorSpec], seed: int | None, path: str) -> nn.Module:
    """Return the module of a plugin's layer with its initial values, on torch's current default device. On the meta
    device, the values are stored on the module, and `initialise` later writes them into the parameters.

    `inputs`: specs of the inputs. `seed`: seed of the run; None: no values are stored on the module. `path`: path of
    the node."""
    made = layer.start(inputs, key_of(seed or 0, path) >> 1)  # 63 bits, as torch's generator takes them
    device = torch.empty(0).device
    if device.type != "meta":
        return made.to(device)
    values = _detach_values(made)
    if seed is not None:
        setattr(made, _KEPT, values)
    return made


def _detach_values(module: nn.Module) -> dict[str, torch.Tensor]:
    """Replace parameters and buffers by meta tensors, and return the original tensors by name. A tensor that was shared
    under several names is replaced by one meta tensor, and is returned under each name."""
    kept: dict[str, torch.Tensor] = {}
    empty: dict[torch.Tensor, torch.Tensor] = {}
    for path, part in module.named_modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                kept[f"{path}.{name}" if path else name] = tensor.detach()
                if tensor not in empty:
                    bare = torch.empty_like(tensor, device="meta")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    empty[tensor] = nn.Parameter(bare, tensor.requires_grad) if is_parameter else bare
                tensors[name] = empty[tensor]
    return kept


def initialise(
    module: nn.Module,
    graph: Graph,
    parameters: Iterable[Start],
    seed: int,
    plugins: Sequence[str] = (),
    *,
    replaced: Container[str] = (),
) -> None:
    """Write the initial values of the parameters and buffers of `module`; for a DTensor, only the local part. `graph`:
    the graph of `module`, or of the whole model if `module` is one pipeline stage. `parameters`: the parameters of
    `graph`. `replaced`: names of parameters that are skipped, because they get their values elsewhere."""
    layers = {path: (layer, specs) for path, layer, specs in _layers(graph, "", plugins)}
    held = dict(module.named_parameters(remove_duplicate=False))
    own_code = {id(part) for path in _plugin_paths(layers) if has_module(module, path) for part in _parts(module, path)}
    packed, cuts = find_packed(module), find_cuts(module)
    own_code |= inner_parts(module)
    with torch.no_grad():
        for each in packed.values():  # needed before `as_written` unpacks a weight
            each.reset_buffers()
        for part in list(module.modules()):
            _restore_values(part)
        for start in parameters:
            if start.tie is not None or start.name not in held or start.name in replaced:
                continue
            rule = _read_init(start.init) if start.init is not None else _find_init(start.name, layers)
            with as_written(held[start.name], packed.get(start.name)) as values:
                if start.name in cuts:
                    _fill_part(values, rule, seed, start.name, cuts[start.name])
                elif not isinstance(rule, AsTheCodeDoes):
                    _fill(values, rule, seed, start.name)
                elif (
                    start.init is not None
                ):  # the init comes from a parameter of a plugin, to which another one was tied
                    write_whole(values, _construct(rule.parameter, layers, seed))
        for part in module.modules():
            if id(part) not in own_code and callable(reset := getattr(type(part), "reset_buffers", None)):
                reset(part)


def _restore_values(part: nn.Module) -> None:
    """Copy the values that `build_plugin_layer` stored on the module `part` into its parameters and buffers. Do nothing
    if none are stored."""
    kept = part.__dict__.pop(_KEPT, {})
    if kept:
        places = {
            **dict(part.named_parameters(remove_duplicate=False)),
            **dict(part.named_buffers(remove_duplicate=False)),
        }
        for name, value in kept.items():
            write_whole(places[name], value)


def _plugin_paths(layers: Layers) -> list[str]:
    return [path for path, (layer, _) in layers.items() if isinstance(layer, PluginLayer)]


def _parts(module: nn.Module, path: str) -> Iterator[nn.Module]:
    return module.get_submodule(path).modules()


def inner_parts(module: nn.Module) -> set[int]:
    """Return the ids of the modules inside library models (transformers, timm), which initialise themselves."""
    libraries = [part for part in module.modules() if getattr(part, "is_library", False)]
    return {id(inner) for part in libraries for inner in part.modules() if inner is not part}


def has_module(module: nn.Module, path: str) -> bool:
    """Return whether a module exists at `path`. It does not for an expression, or for a node of another pipeline
    stage."""
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True


def _construct(name: str, layers: Layers, seed: int) -> torch.Tensor:
    """Return the initial value that the code of a layer gives to the parameter `name`. `layers`: {path: (layer, specs
    of its inputs)} for all layers of the graph. A layer of a plugin is built to get the value."""
    path = next(path for path in _list_parents(name) if path in layers)
    layer, specs = layers[path]
    if not isinstance(layer, PluginLayer):
        return layer.init_of(name.removeprefix(f"{path}."), specs).whole(seed, path)
    with torch.device("cpu"):
        return build_plugin_layer(layer, specs, seed, path).get_parameter(name.removeprefix(f"{path}.")).detach()


def _layers(graph: Graph, prefix: str, plugins: Sequence[str]) -> Iterator[tuple[str, Layer, Mapping[str, TensorSpec]]]:
    """Yield (path, layer, specs of the inputs for which the layer is built) for every layer of the graph. `prefix`:
    path of the block whose graph is `graph`, with a dot at the end."""
    known = graph.specs()
    for node in graph.nodes:
        if node.graph is not None:
            yield from _layers(node.graph, f"{prefix}{node.name}.", plugins)
        elif node.component is not None:
            specs = {port: known[edge] for port, edge in node.inputs.items()}
            yield f"{prefix}{node.name}", read_layer(node.component, plugins), specs


def find_layer_init(graph: Graph, name: str, plugins: Sequence[str] = ()) -> Init:
    """Return the init that a layer defines for its parameter `name`, which is used if the recipe sets none.

    For a layer that sets initial values in its own code, such as one of a plugin, the init copies the values of `name`
    from there, also if it fills another parameter that is tied to `name`.
    """
    rule = _find_init(name, {path: (layer, specs) for path, layer, specs in _layers(graph, "", plugins)})
    return AsTheCodeDoes(parameter=name) if rule.of_layer else rule


def _find_init(name: str, layers: Layers) -> Init:
    """Return the default init of the parameter `name`, which its layer defines. `layers`: the layers of the graph by
    path. Raises LookupError if none of them has the parameter."""
    for path in _list_parents(name):
        if path in layers:
            layer, specs = layers[path]
            return layer.init_of(name.removeprefix(f"{path}."), specs)
    raise LookupError(f"no layer of the graph has the parameter {name}")


def _list_parents(name: str) -> Iterator[str]:
    """Yield the paths that a parameter's name begins with, the longest first: `a.b`, then `a`, for `a.b.weight`."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))


def _read_init(component: Mapping[str, object]) -> Init:
    is_the_codes = component["type"] == "as_the_code_does"
    return AsTheCodeDoes.from_data(component) if is_the_codes else INITS.read(component)


def _fill(parameter: torch.Tensor, rule: Init, seed: int, name: str) -> None:
    rows = local_rows(parameter)
    if rows is not None:
        rule.fill(rows.values, Draws(seed, name, parameter.shape, rows.first))
        return
    whole = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
    rule.fill(whole, Draws(seed, name, parameter.shape))
    write_whole(parameter, whole)


def _fill_part(parameter: torch.Tensor, rule: Init, seed: int, name: str, cut: RankCut) -> None:
    """Draw this rank's part of a parameter with the init `rule`. `cut`: how the ranks divide the parameter. If they
    divide rows, whole blocks of rows are drawn at once. If they divide columns, whole rows are drawn, a few at a time,
    and the rank keeps its columns of these rows."""
    shape = cut.whole_shape(parameter.shape)
    for values, first in blocks_of(parameter, cut):
        if cut.cut.dim == 0:
            rule.fill(values, Draws(seed, name, shape, first[0]))
            continue
        at_once = max(1, _DRAWN_AT_ONCE // prod(shape[1:]))
        columns = tuple(slice(begin, begin + length) for begin, length in zip(first[1:], values.shape[1:], strict=True))
        for row in range(0, len(values), at_once):
            rows = torch.empty((min(at_once, len(values) - row), *shape[1:]), dtype=values.dtype)
            rule.fill(rows, Draws(seed, name, shape, first[0] + row))
            values[row : row + at_once].copy_(rows[:, *columns])


def blocks_of(tensor: torch.Tensor, cut: RankCut) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """Yield (view, offset in the whole parameter) for each contiguous block of a divided parameter that this rank has.
    `tensor`: this rank's values of the parameter. `cut`: how the ranks divide the parameter."""
    rows = local_rows(tensor)
    assert rows is not None
    for block in cut.blocks(tensor.shape, range(rows.first, rows.first + len(rows.values))):
        place = tuple(slice(begin, begin + length) for begin, length in zip(block.local, block.sizes, strict=True))
        yield rows.values[place], block.whole


class LocalRows(NamedTuple):
    """Rows of a tensor that are on this rank. `values`: the local tensor. `first`: index in the whole tensor of its
    first row."""

    values: torch.Tensor
    first: int


def local_rows(tensor: torch.Tensor) -> LocalRows | None:
    """Return the rows of a tensor that are on this rank; None if it is a DTensor that is divided along other dimensions
    than rows."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return LocalRows(tensor, 0)
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert isinstance(tensor, DTensor)
    values = tensor.to_local()
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)
    if tuple(values.shape) != tuple(shape) or tuple(shape[1:]) != tuple(tensor.shape[1:]):
        return None
    return LocalRows(values, offset[0] if offset else 0)


def write_whole(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy `whole` into `tensor`. If `tensor` is sharded, copy only the part of this rank."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        tensor.copy_(whole)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    local = distribute_tensor(whole.to(tensor.device), tensor.device_mesh, placements, src_data_rank=None)
    tensor.to_local().copy_(local.to_local())
