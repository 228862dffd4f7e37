"""Division of a model of transformers over the ranks of the axes `tensor` and `expert`, by the library's plans.

The plans `tp_plan` and `ep_plan` map the name of a module or parameter to its style of division. Modules of one layer
that work together (attention, a feed-forward network) are a group: all are divided, or none. A group that the library's
code cannot compute in parts stays whole; this is tried on tensors without values.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from declarative_train.components.layers.modules.divided import TensorRanks, cut_parameters
from declarative_train.components.layers.modules.expert_ranks import ExpertRanks
from declarative_train.core.cuts import CutKind, LayerCut, NodeCut, ParameterCut, RankCut
from declarative_train.graph.probe import without_memory
from declarative_train.packs.pretrained.libraries.modules.divided import divide_parts
from declarative_train.packs.pretrained.libraries.modules.node import (
    Inputs,
    LibraryInterface,
    bare,
    build_node,
    key_of,
    sample,
)

_HEADS = ("num_attention_heads", "num_heads", "n_heads", "num_key_value_heads", "num_kv_heads")
_OF_ATTENTION = ("head_dim", "qk_head_dim", "num_key_value_groups", *_HEADS)
UNNAMED = "the library's plan leaves it whole"


class _WholeError(Exception):
    """Error: a group of modules cannot be divided over ranks. The text is the reason."""


_FOUND: dict[str, LayerCut | str | None] = {}


def find_division(layer: LibraryInterface, inputs: Inputs, size: int) -> LayerCut | str:
    """Return how a model of transformers is divided over `size` ranks of the axis `tensor`, or the reason why none of
    it is divided."""
    key = f"tensor {size} {key_of(layer, inputs)}"
    if key not in _FOUND:
        _FOUND[key] = _find(layer, inputs, size)
    return _FOUND[key]  # type: ignore[return-value]


def find_expert_division(layer: LibraryInterface, inputs: Inputs, size: int) -> LayerCut | str | None:
    """Return how the experts of a model of transformers are divided over `size` ranks of the axis `expert`, by the
    library's `ep_plan`. Return a sentence if they cannot be divided, and None if the model's class has no `ep_plan`."""
    key = f"expert {size} {key_of(layer, inputs)}"
    if key not in _FOUND:
        _FOUND[key] = _find_experts(layer, inputs, size)
    return _FOUND[key]


def _find_experts(layer: LibraryInterface, inputs: Inputs, size: int) -> LayerCut | str | None:
    model = bare(layer, inputs)
    plan: dict[str, str] = getattr(model, "ep_plan", None) or {}
    parts = [name for name, _ in model.named_modules() if plan.get(_generic(name)) == "ep_dispatch_experts"]
    cuts: dict[str, ParameterCut] = {}
    for part in parts:
        module: Any = model.get_submodule(part)
        for name, parameter in module.named_parameters(part):
            if plan.get(_generic(name)) != "grouped_gemm" or len(parameter) != module.num_experts:
                return f"the library's plan does not divide `{name}` by experts"
            if len(parameter) % size:
                return f"its {len(parameter)} experts cannot be divided evenly over {size} ranks"
            cuts[name] = ParameterCut(0, (len(parameter),))
    if not parts:
        return None
    peers: Any = _NoPeers(size)
    with torch.device("meta"):
        module = build_node(layer, inputs).eval()
    module.divide_experts(parts, ExpertRanks(peers))
    cut_parameters(module, {name: RankCut(cut, 0, size) for name, cut in cuts.items()})
    sent: dict[str, int] = {}

    def note(name: str, given: Sequence[Tensor]) -> None:
        if name in parts:
            sent[name] = given[0].shape[-1] * given[1].shape[-1]

    try:
        call_without_values(module, layer, inputs, note)
    except Exception as problem:  # the library's code may read values, or not work with a part of the experts
        return f"its forward cannot be tried with a part of its experts: {in_one_line(problem)}"
    return LayerCut("inside", cuts, parts={name: NodeCut("experts", sent=sent.get(name, 0)) for name in parts})


def _find(layer: LibraryInterface, inputs: Inputs, size: int) -> LayerCut | str:
    model = bare(layer, inputs)
    plan: dict[str, str] = getattr(model, "tp_plan", None) or {}
    if not plan:
        return f"transformers has no tensor plan for a `{type(model).__name__}`"
    styles = {name: style for name, _ in model.named_modules() if (style := plan.get(_generic(name)))}
    try:
        wanted = _trace(layer, inputs, size, {})
    except Exception as problem:  # the library's code may read values
        return f"its forward cannot be tried without values: {in_one_line(problem)}"
    kinds = dict.fromkeys(_generic(_group_of(name)) for name in styles)
    failure = ""
    for left in ("", *kinds):  # all groups; if this fails, all but one kind of group
        whole = {_group_of(name): failure for name in styles if _generic(_group_of(name)) == left}
        cuts = _divide_groups(model, size, plan, styles, whole)
        try:
            found = _trace(layer, inputs, size, cuts)
            break
        except Exception as problem:  # the library's code may not work with a part of the heads or features
            failure = failure or f"the library's code does not work with a part of it: {in_one_line(problem)}"
    else:
        return failure
    for name, shape in wanted.items():  # a norm or activation that reads a part of the features
        if name not in cuts and found.get(name, shape) != shape:
            cuts[name] = _Part(model, name, size, plan).share()
    return _join_parts(model, cuts, whole, styles)


def _divide_groups(
    model: nn.Module, size: int, plan: dict[str, str], styles: dict[str, str], whole: dict[str, str]
) -> dict[str, LayerCut]:
    """Return {path of a submodule: its division over `size` ranks}. In a group of submodules (`_group_of`), all are
    divided or none. `whole`: {group that must not be divided: reason}; groups that cannot be divided are added to it.
    `plan`: the tensor plan of the library. `styles`: {path of a submodule: its style in `plan`}."""
    groups: dict[str, dict[str, str]] = {}
    for name, style in styles.items():
        groups.setdefault(_group_of(name), {})[name] = style
    while True:
        cuts: dict[str, LayerCut] = {}
        for group, members in groups.items():
            if group in whole:
                continue
            try:
                cuts |= {name: _Part(model, name, size, plan).cut(style) for name, style in members.items()}
            except _WholeError as reason:
                whole[group] = str(reason)
        if not (apart := dict(_find_ties_apart(model, cuts))):
            return cuts
        whole |= apart


def _join_parts(
    model: nn.Module, cuts: dict[str, LayerCut], whole: dict[str, str], styles: dict[str, str]
) -> LayerCut | str:
    parameters = {f"{name}.{each}": cut for name, found in cuts.items() for each, cut in found.parameters.items()}
    if not parameters:
        return next(iter(whole.values()), "the library's plan divides no parameter of it")
    parts = {}
    for name, module in model.named_modules():
        if name in cuts:
            parts[name] = NodeCut(cuts[name].kind)
        elif next(module.parameters(recurse=False), None) is not None:
            parts[name] = NodeCut("", whole.get(_group_of(name), UNNAMED) if name in styles else UNNAMED)
    summed = tuple(f"{name}.{each}" for name, found in cuts.items() for each in found.summed)
    return LayerCut("inside", parameters, summed, parts=parts)


def in_one_line(problem: Exception) -> str:
    """Return the first line of an exception's text, or its type if it has none."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]


class _NoPeers:
    """Process group of `size` ranks that exchanges no values. It is used to find shapes."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        return torch.cat([tensor] * self.size, -1)

    def exchange(self, tensor: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        return tensor


def _trace(
    layer: LibraryInterface, inputs: Inputs, size: int, cuts: Mapping[str, LayerCut]
) -> dict[str, tuple[int, ...]]:
    """Return {path of a submodule: shape of the first tensor that it reads} for the submodules with parameters, if the
    model is divided over `size` ranks. The key "" has the shape of the model's output. The shapes are those of a
    forward on tensors without values. `cuts`: {path of a submodule: its division}."""
    with torch.device("meta"):
        module = build_node(layer, inputs).eval()
    peers: Any = _NoPeers(size)
    divide_parts(module, {name: cut.kind for name, cut in cuts.items()}, TensorRanks(peers))
    parameters = {f"{name}.{each}": cut for name, found in cuts.items() for each, cut in found.parameters.items()}
    cut_parameters(module, {name: RankCut(cut, 0, size) for name, cut in parameters.items()})
    shapes: dict[str, tuple[int, ...]] = {}
    output = call_without_values(
        module, layer, inputs, lambda name, given: shapes.setdefault(name, tuple(given[0].shape))
    )
    return shapes | {"": tuple(output.shape)}


def call_without_values(
    module: nn.Module,
    layer: LibraryInterface,
    inputs: Inputs,
    note: Callable[[str, Sequence[Tensor]], object] | None = None,
    *,
    is_graded: bool = False,
) -> Tensor:
    """Run a forward on fake tensors and return its output. `note`: function (path, tensors) that is called for each
    submodule with parameters, with the tensors that this submodule reads. `is_graded`: whether autograd records the
    forward."""
    if callable(choose := getattr(module, "set_experts_implementation", None)):
        choose("batched_mm")  # the grouped product does not accept every width

    def watch(name: str, part: nn.Module) -> None:
        def see(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            if note and (tensors := [each for each in (*given, *named.values()) if isinstance(each, Tensor)]):
                note(name, tensors)

        part.register_forward_pre_hook(see, with_kwargs=True)

    for name, part in module.named_modules():
        if note is not None and name and next(part.parameters(recurse=False), None) is not None:
            watch(name, part)
    log = logging.getLogger("torch._subclasses.fake_tensor")  # it would log a traceback if the forward fails
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with without_memory(module), torch.set_grad_enabled(is_graded):
            given = (sample(inputs[port.name]) if port.name in inputs else None for port in layer.ports)
            found: Tensor = module(*given)
            return found
    finally:
        log.setLevel(level)


def _generic(name: str) -> str:
    """Return the name of a module or parameter with `*` in place of each number, such as `layers.*.mlp`. The library's
    plans use this form."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _group_of(name: str) -> str:
    """Return the path of a submodule up to the first name after a number: `layers.0.self_attn.q_proj` ->
    `layers.0.self_attn`. A path without such a name is returned unchanged. Submodules with the same result form a
    group: either all of them are divided, or none."""
    found = re.match(r"(.*?\.\d+\.[^.]+)(\.|$)", name)
    return found[1] if found else name


def _find_ties_apart(model: nn.Module, cuts: dict[str, LayerCut]) -> Iterator[tuple[str, str]]:
    """Yield (group, reason) for each group of submodules that must stay undivided because of a tie: it has a parameter
    that is tied to another one, and `cuts` does not divide both in the same way."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for same in (each for each in names.values() if len(each) > 1):
        owners = [name.rpartition(".") for name in same]
        found = [cuts[owner].parameters.get(name) if owner in cuts else None for owner, _, name in owners]
        if any(each != found[0] for each in found):
            for (owner, _, _), cut in zip(owners, found, strict=True):
                if cut is not None:
                    others = [name for name in same if not name.startswith(f"{owner}.")]
                    yield _group_of(owner), f"it is tied to `{others[0]}`, which is divided in another way"


class _Part:
    """Submodule that the library's tensor-parallel plan names. For each style of the plan there is a method that
    returns the submodule's division."""

    def __init__(self, model: nn.Module, path: str, size: int, plan: dict[str, str]) -> None:
        self._model, self._path, self._size, self._plan = model, path, size, plan
        self._module: Any = model.get_submodule(path)

    def cut(self, style: str) -> LayerCut:
        """Return how the ranks divide this submodule. `style`: the library's word for the division, such as `colwise`.
        Raises _WholeError if the submodule cannot be divided."""
        if style not in _STYLES:
            raise _WholeError(f"the library's plan has the style `{style}` for `{self._path}`, which is not supported")
        return _STYLES[style](self)

    def cut_columns(self) -> LayerCut:
        owner = self._model.get_submodule(self._path.rpartition(".")[0])
        for name, _ in owner.named_parameters(recurse=False):
            if _generic(f"{self._path.rpartition('.')[0]}.{name}") not in self._plan:
                raise _WholeError(f"the library's plan does not say how its `{name}` is divided")
        self._check_heads()
        return self._linear("columns", 0)

    def cut_and_gather(self) -> LayerCut:
        return self._linear("gathered", 0)

    def cut_rows(self) -> LayerCut:
        return self._linear("rows", 1)

    def cut_split(self) -> LayerCut:
        return self._linear("split", 1)

    def cut_vocabulary(self) -> LayerCut:
        return self._embedding("vocabulary", 0)

    def cut_embedding_columns(self) -> LayerCut:
        return self._embedding("gathered", 1)

    def share(self) -> LayerCut:
        return LayerCut("shared", {}, tuple(name for name, _ in self._module.named_parameters(recurse=False)))

    def keep_whole(self) -> LayerCut:
        return LayerCut("shared", {})

    def share_output(self) -> LayerCut:
        """Return a division in which every rank has the whole layer. It is for a projection of latent attention whose
        output (the latent vector and the rotary keys) the heads of all ranks read. Raises _WholeError for any other
        module."""
        if type(self._module).forward is not nn.Linear.forward or self._rope_width is None:
            raise _WholeError(f"`{self._path}` is not a linear layer with rotary keys")
        return LayerCut("shared", {})

    def cut_experts(self) -> LayerCut:
        """Return the division of a module of experts. Every rank has all experts, but only a part of their hidden
        features."""
        return LayerCut("hidden", self._own())

    def cut_own_parameters(self) -> LayerCut:
        """Return the division of the parameters that the module itself has, such as attention sinks: each rank has
        those of its heads. Parameters of submodules are not included."""
        return LayerCut("heads", self._own())

    def share_identity(self) -> LayerCut:
        if not isinstance(self._module, nn.Identity):
            raise _WholeError(f"`{self._path}` is not an identity")
        return LayerCut("hidden", {})

    @property
    def _rope_width(self) -> int | None:
        model: Any = self._model
        width: int | None = getattr(model.config.get_text_config(), "qk_rope_head_dim", None)
        return width

    def _own(self) -> dict[str, ParameterCut]:
        cuts = {}
        for name, parameter in self._module.named_parameters(recurse=False):
            style = self._plan.get(_generic(f"{self._path}.{name}"))
            if style is None:
                continue
            if style not in _OF_PARAMETERS:
                raise _WholeError(f"the library's plan has the style `{style}` for `{name}`, which is not supported")
            if "gate_up" in name and style in ("colwise", "rowwise"):
                raise _WholeError(f"`{name}` joins two projections, and the library's plan divides it as one")
            from_end, pieces = _OF_PARAMETERS[style]
            dim = max(0, parameter.dim() - from_end)
            cuts[name] = self._parameter(name, dim, pieces)
        return cuts

    def _linear(self, kind: CutKind, dim: int) -> LayerCut:
        if type(self._module).forward is not nn.Linear.forward:
            raise _WholeError(f"`{self._path}` is a `{type(self._module).__name__}`, not a linear layer")
        cuts = {"weight": self._parameter("weight", dim)}
        if dim == 0 and self._module.bias is not None:
            cuts["bias"] = self._parameter("bias", 0)
        return LayerCut(kind, cuts)

    def _embedding(self, kind: CutKind, dim: int) -> LayerCut:
        if not isinstance(self._module, nn.Embedding):
            raise _WholeError(f"`{self._path}` is a `{type(self._module).__name__}`, not an embedding")
        if len(list(self._module.parameters())) > 1:  # the others would get gradients of only some tokens
            raise _WholeError(f"`{self._path}` has more parameters than its table")
        return LayerCut(kind, {"weight": self._parameter("weight", dim)})

    def _parameter(self, name: str, dim: int, pieces: int = 1) -> ParameterCut:
        length = self._module._parameters[name].shape[dim]
        if length % (pieces * self._size):
            words = "columns" if dim else "rows"
            raise _WholeError(f"`{self._path}.{name}` has {length} {words}, not a multiple of {pieces * self._size}")
        return ParameterCut(dim, (length // pieces,) * pieces)

    def _check_heads(self) -> None:
        """Raise _WholeError if the submodule projects to attention heads whose number is not a multiple of the number
        of ranks."""
        owner: Any = self._model.get_submodule(self._path.rpartition(".")[0])
        if not any(hasattr(owner, name) for name in _OF_ATTENTION):
            return
        config = getattr(owner, "config", None)
        for name in _HEADS:
            count = getattr(owner, name, getattr(config, name, None))
            if isinstance(count, int) and count % self._size:
                heads = "key heads" if "_k" in name else "heads"
                raise _WholeError(f"its {count} {heads} are not a multiple of {self._size} ranks")
        width = getattr(owner, "head_dim", None)
        if isinstance(width, int) and self._module.out_features % (width * self._size):
            raise _WholeError(f"the heads of `{self._path}` are not a multiple of {self._size} ranks")


_STYLES: dict[str, Callable[[_Part], LayerCut]] = {
    "all_reduce": _Part.cut_experts,
    "colwise": _Part.cut_columns,
    "colwise_gather_output": _Part.cut_and_gather,
    "colwise_rep": _Part.cut_and_gather,
    "embedding_colwise": _Part.cut_embedding_columns,
    "embedding_rowwise": _Part.cut_vocabulary,
    "local_params": _Part.cut_own_parameters,
    "mla_kv_a_proj": _Part.share_output,
    "moe_identity_expert": _Part.share_identity,
    "moe_tp_experts": _Part.cut_experts,
    "replicate": _Part.keep_whole,
    "replicated_with_grad_allreduce": _Part.share,
    "rowwise": _Part.cut_rows,
    "rowwise_rep": _Part.cut_split,
    "rowwise_split_input": _Part.cut_split,
}
"""Divisions of modules by the styles of the library's plans."""

_OF_PARAMETERS = {"colwise": (2, 1), "packed_colwise": (2, 2), "packed_rowwise": (1, 2), "rowwise": (1, 1)}
"""Divided dimension, counted from the end, and number of pieces of a parameter, by its style."""
