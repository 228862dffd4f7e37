"""Memory format of images: `training.channels_last`, and the format that its value `auto` chooses for a device.

CPU   channels last, unless a norm is slower with it (measured: docs/performance.md)
GPU   in half precision the format for which fewer elements are copied: convolutions compute with channels last,
      norms over groups of channels with the default format
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
class ReorderedElements:
    """Elements per sample that a layer, or all layers of a graph, copy into another memory format: inputs and outputs
    of layers that do not compute in the format that the model uses.

    by_convolutions   copied by convolutions if the model uses the default format
    by_norms          copied by group and instance norms if the model uses channels last
    is_slower         a norm is slower with channels last
    """

    by_convolutions: int = 0
    by_norms: int = 0
    is_slower: bool = False

    def __add__(self, other: ReorderedElements) -> ReorderedElements:
        return ReorderedElements(
            self.by_convolutions + other.by_convolutions,
            self.by_norms + other.by_norms,
            self.is_slower or other.is_slower,
        )


def count_reordered(graph: Graph) -> ReorderedElements:
    """Return how many elements per sample all nodes of a graph copy into another memory format."""
    return sum(count_reordered_by_node(graph).values(), ReorderedElements())


def count_reordered_by_node(graph: Graph) -> dict[str, ReorderedElements]:
    """Return {name of a node in `graph`: how many elements per sample it copies into another memory format}."""
    specs, found = graph.specs(), {}
    for node in graph.nodes:
        called = graph.node(str(node.target)) if node.kind == "reuse" else node
        if called.graph is not None:
            found[node.name] = count_reordered(called.graph)
        else:
            found[node.name] = _count_layer(
                called, _count_elements(node, [specs[edge] for edge in node.inputs.values()])
            )
    return found


def _count_layer(node: Node, moved: int) -> ReorderedElements:
    component = node.component or {}
    kind = component.get("type")
    if kind in CONVOLUTIONS:
        return ReorderedElements(by_convolutions=moved)
    if kind in NORMS_IN_ORDER:
        return ReorderedElements(by_norms=moved, is_slower=kind == "instance_norm" or component.get("num_groups") != 1)
    return ReorderedElements()


def _count_elements(node: Node, read: list[TensorSpec]) -> int:
    return sum(spec.num_elements for spec in (*read, *node.outputs.values()))


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Properties of a run that decide the memory format of its images.

    `word`: the recipe's `channels_last` (true, false or auto). `reordered`: for each of the two formats, how many
    elements the layers of the model would copy into the other one. `precision`: number format of the computation, such
    as `bf16`. `has_plugins`: the recipe has plugins, whose code may need the default format.
    """

    word: Word
    reordered: ReorderedElements
    precision: str
    has_plugins: bool

    @property
    def has_convolutions(self) -> bool:
        return self.reordered.by_convolutions > 0

    def decide(self, device: str, *, is_plain: bool) -> tuple[bool, str]:
        """Return whether the model uses channels last, and the reason in words. `device`: cpu, cuda or mps. `is_plain`:
        every rank has the whole model."""
        if not self.has_convolutions:
            return False, "the model has no convolution over images"
        if not is_plain:
            return False, "shards and stages use the default memory format"
        if self.word != "auto":
            return self.word, "set in the recipe"
        if self.has_plugins:
            return False, "a plugin's code may rely on the default memory format"
        if device == "cpu":
            if self.reordered.is_slower:
                return False, "norms over groups of channels are slower with it"
            return True, "operations after the convolutions are faster with it"
        if self.precision not in HALF:
            return False, f"it is not faster in {self.precision}"
        if self.reordered.by_norms >= self.reordered.by_convolutions:
            return False, "norms would reorder as much as convolutions do now"
        return True, f"convolutions in {self.precision} compute with it, without reordering"

    def count_in(self, node: ReorderedElements, *, is_last: bool) -> int:
        """Return how many elements per sample a node copies into another memory format, in its forward on a GPU.
        `node`: these numbers for a model in the default format and for one in channels last. `is_last`: the model uses
        channels last."""
        if not self.has_convolutions:
            return 0
        if is_last:
            return node.by_norms
        return node.by_convolutions if self.precision in HALF else 0


def image_layout(plan: Plan) -> ImageLayout:
    training = plan.training
    return ImageLayout(training.channels_last, count_reordered(plan.graph), training.precision, bool(plan.plugins))


def is_plain(layout: LayoutPlan) -> bool:
    return not layout.is_sharded and layout.pipeline is None


def uses_channels_last(plan: Plan, device: str) -> bool:
    return image_layout(plan).decide(device, is_plain=is_plain(plan.layout))[0]


def describe_layout(plan: Plan) -> str | None:
    """Return as text whether convolutions use the memory format channels_last, and why. If the answers for the CPU and
    for GPUs differ and the run may use either, the text has both. Return None for a model without convolutions over
    images."""
    images, layout = image_layout(plan), plan.layout
    if not images.has_convolutions:
        return None
    found = {device: images.decide(device, is_plain=is_plain(layout)) for device in _devices(layout)}
    texts = {device: f"{'yes' if last else 'no'}, {why}" for device, (last, why) in found.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{'on the CPU' if device == 'cpu' else 'on GPUs'}: {text}" for device, text in texts.items())


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
    if word == "auto" or count_reordered(graph).by_convolutions:
        return []
    return [no_images(recipe.span("training.channels_last"), word)]
