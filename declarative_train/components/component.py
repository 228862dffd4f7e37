"""The families of things that a recipe can name, as interfaces; those that make samples stand in `components/data.py`.

One file per thing: its fields (a frozen, closed pydantic model; the docstrings under them, read by `field_docs`, become
the JSON schema) and a `build()` whose body alone imports torch. Nothing here or in any component imports torch at the
top of a module.
Sequences arrive as tuples (`source.node.to_value`), so models are strict: `"10"` is not a number, `true` is not 1.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from declarative_train.components.products import Product, Use
from declarative_train.core.duration import Duration
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from declarative_train.components.inits.draws import Draws


class Component(BaseModel):
    """Anything with a `type:`. A leaf declares `type: Literal["name"]` with that name as its default.

    A plan holds it as data: `as_data` writes, `Registry.read` (or `from_data`, where the class is known) reads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    internal: ClassVar[frozenset[str]] = frozenset()  # fields of a plan that no recipe writes

    type: str

    def as_data(self, *, defaults: bool = True) -> dict[str, object]:
        """JSON values by the names that a recipe uses, `type` first. `defaults` False: fields that have their default
        value, `type` among them, are left out."""
        data: dict[str, object] = self.model_dump(mode="json", by_alias=True, exclude_defaults=not defaults)
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Self:
        """Through JSON, where strict models take a list for a tuple. Raises pydantic's ValidationError."""
        return cls.model_validate_json(json.dumps(data))


def written_keys(model: type[BaseModel]) -> dict[str, str]:
    """Return the keys that a recipe may write for a model, each with the name of its field."""
    internal = getattr(model, "internal", ())
    return {field.alias or name: name for name, field in model.model_fields.items() if name not in internal}


class Keys(BaseModel):
    """A mapping inside a component, read like a section: its keys are all known."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    inline: ClassVar[str | None] = None
    short_forms: ClassVar[tuple[str, ...]] = ()


class Port(NamedTuple):
    """A named input. `variadic`: takes any number of edges, bound as `NAME.0`, `NAME.1`, ...; only the last port."""

    name: str
    optional: bool = False
    variadic: bool = False


class Misfit(NamedTuple):
    """Why a component does not take these inputs: a sentence in the recipe's words.

    `port` or `field` (dotted for nested fields) says which value to put the caret under; `help` is one hint.
    `is_warning`: torch takes it, but it is hardly what was meant. `lacks_key`: a key is missing, whatever values occur
    in the data.
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
    operation: ClassVar[str] = ""  # of expressions, that computes the same of all inputs: intervals follow it
    mixes_samples: ClassVar[bool] = False  # reads across the batch; such a layer has a field `over`
    counts_only: ClassVar[bool] = False  # takes of its one input the number of samples; any field serves

    @classmethod
    def ports_for(cls, named: Sequence[str]) -> tuple[Port, ...]:
        """The ports of a node that binds these by name; the first one is what a node above feeds."""
        return cls.ports

    @property
    def is_random(self) -> bool:
        """Draws random numbers in training (dropout with p > 0)."""
        return False

    def check(self, inputs: Mapping[str, TensorSpec]) -> Misfit | None:
        """The component's own sentence for inputs that it cannot take; shapes and dtypes both."""
        return None

    @abstractmethod
    def build(self, inputs: Mapping[str, TensorSpec]) -> "nn.Module":
        """The module, with sizes taken from the edges (`in_features`), parameters not yet initialised by us.

        Its `forward` takes the ports in declared order, `None` for an open optional port, a variadic port spread out;
        it returns one tensor, or a tuple in the order of `outputs`. It must be deterministic given the inputs but for
        random layers, must not modify an input in place, and must keep the batch as dimension 0 of all it returns.

        It may be built on the meta device: after `to_empty` the parameters are filled by `init_of`, and every module
        with a method `reset_buffers()` is asked to write its buffers anew. Call it only when `check` found nothing.
        """

    def sized(self, inputs: Mapping[str, TensorSpec]) -> Self:
        """The same with the sizes written out that it takes from the values of these inputs: what calls it again meets
        them."""
        return self

    def init_of(self, parameter: str, inputs: Mapping[str, TensorSpec]) -> "Init":
        """How a parameter of the built module (by its name in it) starts when the recipe says nothing: torch's own
        distribution, as a rule that can be drawn from any generator. Raises LookupError for a name it does not have."""
        raise LookupError(f"`{self.type}` has no parameter {parameter}")

    def products(self, use: Use) -> Iterable[Product]:
        """The matrix products of its forward, for estimates and utilisation; none for a look-up, a norm, or what works
        element by element. A test holds every layer beside torch's counter."""
        return ()


class LossModule(ABC):
    """What `Loss.build` returns, an `nn.Module` too. A term's value is sum / count over the *global* batch.

    Shapes: input (B, ...), target and mask as the component says, row_weight (B,) float, 1 for real rows and 0 for
    padding. Both results are scalars; `count` is float64 and is computed from target, mask and row_weight alone, so it
    is known before the first backward. `items_per_row` is the constant count of one real row, or None when it depends
    on the values (ignore_index, a mask, class weights): then the ranks have to add their counts up.
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
    """One term of the objective. `input`, `target`, `mask`, `weight` are read by the objective section, not here.

    `bounds`: the least and the largest value of an item, for inputs and targets that the loss is made for. A run
    reports a value outside.

    `about`: `numbers` (a regression), `classes` (yes and no, too), or "" for what is neither.

    `one_class`: an item is of one class of several.

    `balanced` weights: while `needs_balance` is true the term cannot be built. The plan adds up `tally` over the
    target's training rows (in chunks of any size) and goes on with `balanced(tally)`, which holds the numbers.
    """

    about: ClassVar[str] = ""
    one_class: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (0.0, math.inf)
    needs_target: ClassVar[bool] = True
    mixes_samples: ClassVar[bool] = False

    @property
    def needs_balance(self) -> bool:
        """A field says `balanced` and waits for the counts of the training rows."""
        return False

    def tally(self, targets: "np.ndarray", input: TensorSpec) -> "np.ndarray":
        """What `balanced` needs to know of these target rows (N, ...), as int64 counts that add up over chunks. Raises
        ValueError, in the recipe's words, for a target that the loss cannot take."""
        raise TypeError(f"`{self.type}` has nothing to balance")

    def balanced(self, tally: "np.ndarray") -> "Loss":
        """The same term with numbers in the place of `balanced`. Raises ValueError with the reason, in the recipe's
        words, when these rows cannot be balanced."""
        raise TypeError(f"`{self.type}` has nothing to balance")

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        """Losses never broadcast: shapes must agree (class dimension aside). `Misfit.port`: input, target or mask."""
        return None

    @abstractmethod
    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule: ...


class Collective(ABC):
    """What a metric needs of the other ranks; one process is the trivial case. `rank` of `size` is this one."""

    rank: int
    size: int

    @abstractmethod
    def sum(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """The element-wise sum over the data-parallel ranks."""

    @abstractmethod
    def concatenate(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return all ranks' rows, in rank order.

        Dimension 0 may differ between ranks, and may be 0; the dtype is that of the ranks that have rows."""


class MetricModule(ABC):
    """Gathers a metric over many batches of one rank; `update` never synchronises with the host.

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
        """The exact value over all ranks, a scalar float64 tensor on the device; nan when there was no item."""

    @abstractmethod
    def reset(self) -> None: ...


class Judged(NamedTuple):
    """What a metric looks at. `class_dim` and `ignore_index` are those of the loss that it is `of`."""

    input: TensorSpec
    target: TensorSpec | None = None
    mask: TensorSpec | None = None
    class_dim: int = -1
    ignore_index: int | None = None


class Metric(Component, ABC):
    """A number to watch. `is_mean`: a mean over items (or a function of one), so it may also run during training.

    `about` as of a loss. `has_unit`: its value depends on the unit of the target. It is given input and target in the
    unit of the target's columns, as they were before `scale` and `normalize`. `ranks_answers`: nan where all answers
    are the same.
    """

    is_mean: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = True
    needs_target: ClassVar[bool] = True
    has_unit: ClassVar[bool] = False
    ranks_answers: ClassVar[bool] = False
    about: ClassVar[str] = ""

    def check(self, edges: Judged) -> Misfit | None:
        """As in `Loss.check`."""
        return None

    @abstractmethod
    def build(self, edges: Judged, device: "torch.device") -> MetricModule: ...


class Optimizer(Component, ABC):
    """An update rule. `lr` and `weight_decay` are fields; groups override them (`lr_scale`, `weight_decay`).

    `takes_shards`: it updates parameters that `fully_shard` has split exactly as whole ones; False is refused in fsdp.
    `usual_lr`: the smallest and the largest lr that people train with; one far outside is reported.
    """

    takes_shards: ClassVar[bool] = True
    usual_lr: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def check(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int = 1) -> Misfit | None:
        """Why it cannot update these parameters (name -> shape), such as a vector given to a rule for matrices.
        `num_shards`: ranks that hold a part of each, cut along the first dimension."""
        return None

    @abstractmethod
    def build(self, groups: list[dict[str, object]]) -> "torch.optim.Optimizer":
        """torch's own object over param groups `{params, lr, weight_decay}`; fused where the device has it."""

    @abstractmethod
    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        """Elements of the tensors that it remembers for a parameter; step counters are not counted."""

    def arguments(self) -> dict[str, Any]:
        """Its fields as keywords of torch's object."""
        return self.model_dump(exclude={"type"})

    def build_functional(self, groups: list[dict[str, object]]) -> "torch.optim.Optimizer | None":
        """The same update through torch's functional form, without importing `torch._dynamo`; None: there is none.

        It has `param_groups`, `state`, `step()`, `zero_grad()`, `state_dict()` with the names and tensors of torch's,
        and takes `found_inf` as those do (`_step_supports_amp_scaling`). Of sharded parameters it updates this rank's
        rows.
        """
        return None


class LrSchedule(Component, ABC):
    """A factor on every group's lr."""

    @abstractmethod
    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        """The factor for optimizer step `step` (the first step is 0) of `num_steps`, of which the first
        `num_warmup_steps` are warm-up. Pure; no torch."""

    def resolved(self, to_steps: Callable[[Duration], int]) -> "LrSchedule":
        """The same schedule with every duration among its fields in steps; `factor` may be asked only of that one.
        Raises ValueError, as `to_steps` does, when a duration cannot become steps."""
        return self

    def misfits(self, exact_steps: Callable[[Duration], float], num_steps: int, warmup: float) -> Sequence[Misfit]:
        """The durations among its fields that do not fit in a run of `num_steps` after `warmup` steps; raises as
        `resolved`, and is asked of the schedule as it was written."""
        return ()


class Init(Component, ABC):
    """How a parameter starts."""

    def check(self, shape: tuple[int, ...]) -> Misfit | None:
        """The rule's own sentence for a parameter shape that it cannot fill."""
        return None

    @abstractmethod
    def fill(self, tensor: "torch.Tensor", draws: "Draws") -> None:
        """Write the start values in place, on any device; `draws` alone decides the random ones.

        `tensor` holds rows of the parameter: those from `draws.first_row` on, of `draws.shape`, which is the whole's.
        """


class Adapter(Component, ABC):
    """What is trained beside the frozen weight (out, in) of a linear map."""

    @property
    def made_from(self) -> str | None:
        """The folder that says how it is, and has its start values."""
        return None

    @property
    def is_random(self) -> bool:
        """Draws random numbers in training."""
        return False

    @abstractmethod
    def shapes(self, weight: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        """Its parameters, by the names that they have beside the map's own."""

    @abstractmethod
    def init_of(self, parameter: str) -> "Init":
        """How one of them starts, by such a name."""

    @abstractmethod
    def build(self, base: "nn.Linear") -> "nn.Module":
        """In the place of `base`: a module whose `weight` and `bias` are those of `base`, with its own beside them."""

    @abstractmethod
    def merged(self, weight: "torch.Tensor", own: Mapping[str, "torch.Tensor"]) -> "torch.Tensor":
        """The weight with which a map without an adapter gives the same; `own` are the adapter's parameters."""
