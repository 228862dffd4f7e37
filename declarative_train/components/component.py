"""Interfaces of the components that a recipe can name; see also `data.py`, `transform.py` and `split.py`.

One file per component: its fields (a frozen, closed pydantic model; `field_docs` reads the docstrings under them for
the JSON schema) and a `build()` whose body alone imports torch. Neither this file nor any component imports torch at
the top of a module. Sequences arrive as tuples (`source.node.to_value`), so models are strict: `"10"` is not a number,
`true` is not 1.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from declarative_train.components.products import Product, Use
from declarative_train.core.cuts import CutKind, LayerCut
from declarative_train.core.duration import Duration
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from declarative_train.components.inits.draws import Draws
    from declarative_train.core.diagnostics.diagnostic import Diagnostic
    from declarative_train.core.span import Span
    from declarative_train.source.node import Mapping as MappingNode


class Component(BaseModel):
    """Anything with a `type:`. A leaf declares `type: Literal["name"]` with that name as its default.

    A plan holds it as data: `as_data` writes it, `Registry.read` (or `from_data`, where the class is known) reads it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    internal: ClassVar[frozenset[str]] = frozenset()  # fields of a plan that no recipe writes

    type: str

    def as_data(self, *, defaults: bool = True) -> dict[str, object]:
        """Return JSON values by the names that a recipe uses, `type` first. `defaults` False leaves out the fields that
        have their default value, `type` among them."""
        data: dict[str, object] = self.model_dump(mode="json", by_alias=True, exclude_defaults=not defaults)
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Self:
        """Read what `as_data` returned. It goes through JSON, where strict models take a list for a tuple. Raises
        pydantic's ValidationError."""
        return cls.model_validate_json(json.dumps(data))


def recipe_keys(model: type[BaseModel]) -> dict[str, str]:
    """Return the keys that a recipe may write for a model -> the name of the model's field."""
    internal = getattr(model, "internal", ())
    return {field.alias or name: name for name, field in model.model_fields.items() if name not in internal}


class Keys(BaseModel):
    """Model of a mapping that is a field of a component; an unknown key in it is an error, as in a section."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    inline: ClassVar[str | None] = None
    short_forms: ClassVar[tuple[str, ...]] = ()


class Port(NamedTuple):
    """Named input of a layer. `variadic`: it takes any number of tensors, called `NAME.0`, `NAME.1`, ...; only the last
    port may be variadic."""

    name: str
    optional: bool = False
    variadic: bool = False


class ShapeError(NamedTuple):
    """Reason why a component does not accept these inputs: a sentence in the recipe's words.

    `port` or `field` (dotted for nested fields): the value that the caret is put under. `help`: one hint. `is_warning`:
    torch accepts it, but it is probably not intended. `lacks_key`: the recipe lacks a key, whatever values occur in the
    data.
    """

    message: str
    port: str | None = None
    field: str | None = None
    help: str | None = None
    is_warning: bool = False
    lacks_key: bool = False


class Layer(Component, ABC):
    """A node of the model graph. `inputs` below maps each *bound* port to its TensorSpec."""

    ports: ClassVar[tuple[Port, ...]] = (Port("x"),)
    outputs: ClassVar[tuple[str, ...]] = ("output",)  # the first is the default
    keeps_range: ClassVar[bool] = False  # integer outputs have the range of the first input (reshape, flatten, ...)
    operation: ClassVar[str] = ""  # the expression operation that computes the same; it gives the range of the output
    mixes_samples: ClassVar[bool] = False  # reads across the batch; such a layer has a field `over`
    counts_only: ClassVar[bool] = False  # uses only the number of samples of its one input, so any field will do
    is_library: ClassVar[bool] = False  # a whole model of another library, whose code may read values of tensors
    is_pretrained: ClassVar[bool] = False  # starts from published weights

    @classmethod
    def ports_for(cls, named: Sequence[str]) -> tuple[Port, ...]:
        """Return the inputs of a node that connects the inputs `named`. The node above feeds the first one."""
        return cls.ports

    @classmethod
    def complete_fields(
        cls, fields: "MappingNode", resolve: "Callable[[str, Span], str]"
    ) -> "tuple[MappingNode, list[Diagnostic]]":
        """Return a node's keys with those that its files define, and errors. `resolve` makes a path of the recipe
        absolute."""
        return fields, []

    @property
    def is_random(self) -> bool:
        """True if it draws random numbers in training (dropout with p > 0)."""
        return False

    @classmethod
    def describe_data(cls, data: Mapping[str, object]) -> str:
        """Return the word for a node with this data in the table of a plan."""
        return str(data["type"])

    def find_text_ports(self) -> tuple[str, tuple[str, ...], str] | None:
        """Return the kind of encoder that it is, its ports for texts, the name to suggest last, and the port that hides
        padding; None if it reads no padding. Called when `check` found nothing."""
        return None

    def check(self, inputs: Mapping[str, TensorSpec]) -> ShapeError | None:
        """Return why the layer cannot take these inputs (shapes and dtypes), or None."""
        return None

    @abstractmethod
    def build(self, inputs: Mapping[str, TensorSpec]) -> "nn.Module":
        """Return the module, with sizes taken from the edges (`in_features`). Its parameters need not be initialised.

        Its `forward` takes the ports in declared order, `None` for an unbound optional port, a variadic port spread
        out. It returns one tensor, or a tuple in the order of `outputs`. It must be deterministic given the inputs
        (random layers excepted), must not modify an input in place, and must keep the batch as dimension 0 of
        everything it returns.

        It may be built on the meta device: after `to_empty`, `init_of` fills the parameters, and every module with a
        method `reset_buffers()` writes its buffers again. Call it only when `check` found nothing.
        """

    def find_units(self, module: "nn.Module") -> tuple[str, ...]:
        """Return the paths of the parts of the layer's module that are gathered, recomputed and compiled one by one."""
        return ()

    def with_sizes(self, inputs: Mapping[str, TensorSpec]) -> Self:
        """Return the layer with sizes written out that it otherwise takes from the values of these inputs. A later
        `check` compares with these sizes."""
        return self

    def init_of(self, parameter: str, inputs: Mapping[str, TensorSpec]) -> "Init":
        """Return the init of a parameter (its name in the module) if the recipe sets none: torch's own distribution.
        Raises LookupError for an unknown name."""
        raise LookupError(f"`{self.type}` has no parameter {parameter}")

    def cut(self, kind: CutKind, inputs: Mapping[str, TensorSpec], size: int) -> LayerCut | str | None:
        """Return how `size` ranks of the `tensor` axis divide the layer; a sentence if its sizes do not divide, None if
        it is not divided in this way. Its module has a method `divide` if more than its parameters change."""
        return None

    def products(self, use: Use) -> Iterable[Product]:
        """Return the matrix products of a forward, for estimates and utilisation; none for look-ups, norms and
        element-wise operations. A test compares every layer with torch's flop counter."""
        return ()


class LossModule(ABC):
    """Interface of what `Loss.build` returns, an `nn.Module` too. A term's value is sum / count over the *global*
    batch.

    Shapes: input (B, ...), target and mask as the component defines them, row_weight (B,) float, 1 for real rows and 0
    for padding. Both results are scalars. `count` is float64 and is computed from target, mask and row_weight alone, so
    it is known before the first backward. `items_per_row` is the constant count of one real row, or None when it
    depends on the values (ignore_index, a mask, class weights): then the ranks have to add up their counts.
    """

    items_per_row: float | None

    @abstractmethod
    def sum(
        self,
        input: "torch.Tensor",
        target: "torch.Tensor | None",
        mask: "torch.Tensor | None",
        row_weight: "torch.Tensor | None",
    ) -> "torch.Tensor": ...

    @abstractmethod
    def count(
        self, target: "torch.Tensor | None", mask: "torch.Tensor | None", row_weight: "torch.Tensor | None", rows: int
    ) -> "torch.Tensor": ...


class Loss(Component, ABC):
    """Term of the objective. The objective section reads `input`, `target`, `mask` and `weight`, not this class.

    `bounds`: the range of the loss's value: the least and the greatest loss of one item. A run reports a value outside.

    `about`: `numbers` (a regression), `classes` (binary ones too), or "" for neither.

    `one_class`: an item belongs to exactly one of several classes.

    `per_item`: it is a mean over the items of all rows, each with its own loss.

    `balanced` weights: while `needs_balance` is true the term cannot be built. The plan adds up `tally` over the
    target's training rows (in chunks of any size) and continues with `balance(tally)`, which holds the numbers.
    """

    about: ClassVar[str] = ""
    one_class: ClassVar[bool] = False
    per_item: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (0.0, math.inf)
    needs_target: ClassVar[bool] = True
    mixes_samples: ClassVar[bool] = False

    @property
    def needs_balance(self) -> bool:
        """True if a field is `balanced` and the training rows are not counted yet."""
        return False

    def tally(self, targets: "np.ndarray", input: TensorSpec) -> "np.ndarray":
        """Return the int64 counts of these target rows (N, ...) that `balance` needs; they add up over chunks. Raises
        ValueError, in the recipe's words, for a target that the loss cannot take."""
        raise TypeError(f"`{self.type}` has nothing to balance")

    def balance(self, tally: "np.ndarray") -> "Loss":
        """Return the same term with numbers in place of `balanced`. Raises ValueError with the reason, in the recipe's
        words, if these counts cannot be balanced."""
        raise TypeError(f"`{self.type}` has nothing to balance")

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        """Return why the loss cannot take these tensors, or None. Losses never broadcast: shapes must agree (class
        dimension aside). `ShapeError.port` is input, target or mask."""
        return None

    def takes_parts_of(self, input: TensorSpec, target: TensorSpec | None) -> bool:
        """Return whether each rank may have the scores of some classes only: then its module has a method `divide`."""
        return False

    @abstractmethod
    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule: ...


class Collective(ABC):
    """Communication that a metric needs between ranks; one process is the trivial case. This is rank `rank` of
    `size`."""

    rank: int
    size: int

    @abstractmethod
    def sum(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return the element-wise sum over the data-parallel ranks."""

    @abstractmethod
    def concatenate(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return all ranks' rows, in rank order.

        Dimension 0 may differ between ranks, and may be 0; the dtype is that of the ranks that have rows."""


class MetricModule(ABC):
    """Accumulator of a metric over many batches of one rank. `update` never synchronises with the host.

    Rows with `row_weight` 0 are padding and do not count; neither do masked or ignored items.
    """

    @abstractmethod
    def update(
        self,
        input: "torch.Tensor",
        target: "torch.Tensor | None",
        mask: "torch.Tensor | None",
        row_weight: "torch.Tensor | None",
    ) -> None: ...

    @abstractmethod
    def compute(self, ranks: Collective) -> "torch.Tensor":
        """Return the exact value over all ranks, a scalar float64 tensor on the device; nan when there was no item."""

    @abstractmethod
    def reset(self) -> None: ...


class MetricInputs(NamedTuple):
    """Specs of the tensors that a metric reads. `class_dim` and `ignore_index`: those of the loss that it belongs to
    (`of`)."""

    input: TensorSpec
    target: TensorSpec | None = None
    mask: TensorSpec | None = None
    class_dim: int = -1
    ignore_index: int | None = None


class Metric(Component, ABC):
    """A number to watch. `is_mean`: a mean over items (or a function of one), so it may also run during training.

    `about`: as in `Loss`. `has_unit`: its value depends on the unit of the target. Its input and target are then in the
    unit of the target's columns, as they were before `scale` and `normalize`.
    """

    is_mean: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = True
    needs_target: ClassVar[bool] = True
    has_unit: ClassVar[bool] = False
    about: ClassVar[str] = ""

    def check(self, edges: MetricInputs) -> ShapeError | None:
        """Return why it cannot be computed from these, or None; see `Loss.check`."""
        return None

    def is_undefined(self, target: "np.ndarray[Any, Any]") -> bool:
        """Return whether the metric of a set with this target (N, *S) is nan, whatever is predicted."""
        return False

    @abstractmethod
    def build(self, edges: MetricInputs, device: "torch.device") -> MetricModule: ...


class Optimizer(Component, ABC):
    """An update rule. `lr` and `weight_decay` are fields; groups override them (`lr_scale`, `weight_decay`).
    `takes_shards`: it updates the shards of `fully_shard` exactly as it updates whole parameters; False is refused in
    fsdp. `takes_parts`: it updates an element from the gradients of this element alone; False is refused with `tensor`.
    `usual_lr`: the smallest and the largest usual lr; one far outside is reported.
    """

    takes_shards: ClassVar[bool] = True
    takes_parts: ClassVar[bool] = True
    usual_lr: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def check(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int = 1) -> ShapeError | None:
        """Return why the optimizer cannot update these parameters (name -> shape), such as a vector given to a rule for
        matrices, or None. `num_shards`: the number of ranks that each hold a part, cut along the first dimension."""
        return None

    @abstractmethod
    def build(self, groups: list[dict[str, object]]) -> "torch.optim.Optimizer":
        """Return torch's optimizer for the groups `{params, lr, weight_decay}`; fused where the device supports it."""

    @abstractmethod
    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        """Return the number of elements of optimizer state for a parameter of this shape, without step counters."""

    def arguments(self) -> dict[str, Any]:
        """Return the keys as keyword arguments of torch's optimizer."""
        return self.model_dump(exclude={"type"})


class LrSchedule(Component, ABC):
    """A factor on every group's lr."""

    @abstractmethod
    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        """Return the factor on lr in optimizer step `step` (from 0) of `num_steps`, of which the first
        `num_warmup_steps` are warm-up. It is a pure function without torch."""

    def resolve(self, to_steps: Callable[[Duration], int]) -> "LrSchedule":
        """Return the same schedule with every duration among its fields in steps; only such a schedule has a `factor`.
        Raises ValueError, as `to_steps` does, when a duration cannot become steps."""
        return self

    def check_milestones(
        self, exact_steps: Callable[[Duration], float], num_steps: int, warmup: float
    ) -> Sequence[ShapeError]:
        """Return an error for each field with a duration that does not fit in a run of `num_steps` after `warmup`
        steps. Called before durations are resolved to steps. Raises ValueError, as `exact_steps` does."""
        return ()


class Init(Component, ABC):
    """Start values of a parameter. `of_layer`: the layer's code makes them; a parameter tied to one has those of
    `whole`."""

    of_layer: ClassVar[bool] = False

    def check(self, shape: tuple[int, ...]) -> ShapeError | None:
        """Return why the rule cannot fill a parameter of this shape, or None."""
        return None

    @abstractmethod
    def fill(self, tensor: "torch.Tensor", draws: "Draws") -> None:
        """Write the initial values into `tensor` in place, on any device. Random ones come from `draws` alone. `tensor`
        may be only some rows of the parameter, from `draws.first_row` on; `draws.shape` is the whole shape."""

    def whole(self, seed: int, path: str) -> "torch.Tensor":
        """Return all initial values, for inits that a layer's code defines (`of_layer`). `path`: that of the layer."""
        raise NotImplementedError
