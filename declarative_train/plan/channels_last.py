"""Whether the channels of images lie last in memory: `training.channels_last`, and what `auto` makes of it on a device.

On the CPU what was measured decides (docs/performance.md): what follows a convolution takes less time so, but for norms
of groups of channels. On GPUs the kernels of half precision compute with channels last in any case: weights that lie
otherwise have each input and output of a convolution turned around in memory; behind weights that lie so it is done for
norms whose kernels take the usual order alone. So the fewer elements decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Graph, Node
from declarative_train.plan.checks.shapes import no_images

if TYPE_CHECKING:
    from declarative_train.plan.layout import LayoutPlan
    from declarative_train.plan.plan import Plan
    from declarative_train.recipe.recipe import Recipe

Word = bool | Literal["auto"]
CONVOLUTIONS = frozenset({"conv2d", "conv_transpose2d"})
NORMS_IN_ORDER = frozenset({"group_norm", "instance_norm"})
HALF = frozenset({"bf16", "fp16"})


@dataclass(frozen=True, slots=True)
class Turned:
    """Elements per sample, one way: `by_convolutions` over images, read and given; `by_norms` that take the usual order
    alone. `is_slower`: a norm of groups of channels is among them."""

    by_convolutions: int = 0
    by_norms: int = 0
    is_slower: bool = False

    def __add__(self, other: Turned) -> Turned:
        return Turned(
            self.by_convolutions + other.by_convolutions,
            self.by_norms + other.by_norms,
            self.is_slower or other.is_slower,
        )


def turned(graph: Graph) -> Turned:
    return sum(turned_by_node(graph).values(), Turned())


def turned_by_node(graph: Graph) -> dict[str, Turned]:
    specs, found = graph.specs(), {}
    for node in graph.nodes:
        called = graph.node(str(node.target)) if node.kind == "reuse" else node
        if called.graph is not None:
            found[node.name] = turned(called.graph)
        else:
            found[node.name] = _of_layer(called, _moved(node, [specs[edge] for edge in node.inputs.values()]))
    return found


def _of_layer(node: Node, moved: int) -> Turned:
    component = node.component or {}
    kind = component.get("type")
    if kind in CONVOLUTIONS:
        return Turned(by_convolutions=moved)
    if kind in NORMS_IN_ORDER:
        return Turned(by_norms=moved, is_slower=kind == "instance_norm" or component.get("num_groups") != 1)
    return Turned()


def _moved(node: Node, read: list[TensorSpec]) -> int:
    return sum(spec.num_elements for spec in (*read, *node.outputs.values()))


@dataclass(frozen=True, slots=True)
class Images:
    """What decides, but for the device. `is_plain`: every rank holds its model whole, in one stage."""

    word: Word
    turned: Turned
    precision: str
    has_plugins: bool

    @property
    def are_there(self) -> bool:
        return self.turned.by_convolutions > 0

    def lie_last(self, device: str, *, is_plain: bool) -> tuple[bool, str]:
        """And why. `device`: cpu, cuda or mps."""
        if not self.are_there:
            return False, "there is no convolution over images"
        if not is_plain:
            return False, "shards and stages keep the usual order"
        if self.word != "auto":
            return self.word, "as the recipe says"
        if self.has_plugins:
            return False, "beside a plugin, whose code may count on the usual order"
        if device == "cpu":
            if self.turned.is_slower:
                return False, "norms of groups of channels take longer so"
            return True, "what follows the convolutions takes less time so"
        if self.precision not in HALF:
            return False, f"in {self.precision} nothing is gained"
        if self.turned.by_norms >= self.turned.by_convolutions:
            return False, "norms would turn as much around as convolutions do now"
        return True, f"convolutions compute so in {self.precision}, and turn nothing around"

    def turns(self, node: Turned, *, is_last: bool) -> int:
        """Elements per sample that a GPU turns around in the forward of a node."""
        if not self.are_there:
            return 0
        if is_last:
            return node.by_norms
        return node.by_convolutions if self.precision in HALF else 0


def images_of(plan: Plan) -> Images:
    training = plan.training
    return Images(training.channels_last, turned(plan.graph), training.precision, bool(plan.plugins))


def is_plain(layout: LayoutPlan) -> bool:
    return not layout.is_sharded and layout.pipeline is None


def lies_last(plan: Plan, device: str) -> bool:
    return images_of(plan).lie_last(device, is_plain=is_plain(plan.layout))[0]


def in_words(plan: Plan) -> str | None:
    """Of every device that the ranks may have; None where there are no images."""
    images, layout = images_of(plan), plan.layout
    if not images.are_there:
        return None
    found = {device: images.lie_last(device, is_plain=is_plain(layout)) for device in _devices(layout)}
    said = {device: f"{'yes' if last else 'no'}, {why}" for device, (last, why) in found.items()}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{'on the CPU' if device == 'cpu' else 'on GPUs'}: {text}" for device, text in said.items())


def _devices(layout: LayoutPlan) -> Iterator[str]:
    if layout.device != "auto":
        yield layout.device
        return
    if layout.hardware in (None, "cpu"):
        yield "cpu"
    if layout.hardware != "cpu":
        yield "cuda"


def check_channels_last(recipe: Recipe, graph: Graph) -> list[Diagnostic]:
    word = recipe.training.channels_last
    if word == "auto" or turned(graph).by_convolutions:
        return []
    return [no_images(recipe.span("training.channels_last"), word)]
