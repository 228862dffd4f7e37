"""Interfaces of the components that a recipe can name; see also `data.py`, `transform.py` and `split.py`.

A component is a frozen pydantic model. Its fields are the keys of the recipe, and the docstrings under them become the
JSON schema and the docs. Its method `build()` makes the torch object; torch is imported only there. The models are
strict: `"10"` is not a number, `true` is not 1, and lists are given as tuples.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from declarative_train.components.matrix_products import Product, Use
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
    """Base class of everything with a `type:`. A concrete class declares `type: Literal["name"] = "name"`.

    A plan stores a component as JSON data, which `as_data` writes. `Registry.read` makes a component of any class from
    the data, `from_data` one of a known class."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    internal: ClassVar[frozenset[str]] = frozenset()  # fields of a plan that no recipe writes

    type: str

    def as_data(self, *, defaults: bool = True) -> dict[str, object]:
        """Return the component as JSON data under the keys that a recipe uses, `type` first. `defaults` False: leave
        out keys with their default value, and `type`."""
        data: dict[str, object] = self.model_dump(mode="json", by_alias=True, exclude_defaults=not defaults)
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Self:
        """Return a component of this class from the data that `as_data` returned. The data are read as JSON, because
        strict models accept a list for a tuple in JSON only. Raises pydantic's ValidationError."""
        return cls.model_validate_json(json.dumps(data))


def recipe_keys(model: type[BaseModel]) -> dict[str, str]:
    """Return a dict from each key that a recipe may write for a pydantic model to the name of the model's field."""
    internal = getattr(model, "internal", ())
    return {field.alias or name: name for name, field in model.model_fields.items() if name not in internal}


class Keys(BaseModel):
    """Base class of pydantic models for a mapping inside a component. An unknown key in the mapping is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    inline: ClassVar[str | None] = None
    short_forms: ClassVar[tuple[str, ...]] = ()


class Port(NamedTuple):
    """Named input of a layer. `variadic`: any number of tensors can be connected, called `NAME.0`, `NAME.1`, ...; only
    the last port may be variadic."""

    name: str
    optional: bool = False
    variadic: bool = False


class ShapeError(NamedTuple):
    """Reason why a component cannot be used with its inputs. `message`: a sentence for the user, with the names in the
    recipe.

    `port` or `field`: the input or the key that is wrong (`a.b` for the key `b` inside `a`). `help`: one hint.
    `is_warning`: torch accepts the inputs, but they are probably not intended. `lacks_key`: the recipe must say more,
    such as a size; the error stays, whatever values the data have."""

    message: str
    port: str | None = None
    field: str | None = None
    help: str | None = None
    is_warning: bool = False
    lacks_key: bool = False


class ModelParts(NamedTuple):
    """Parts of a model from another library, which are computed one after the other. `outputs`: {path of a part: spec
    of its output}, in order. `ties`: {name of a parameter: another name of the same tensor}."""

    outputs: Mapping[str, TensorSpec]
    ties: Mapping[str, str]


class Layer(Component, ABC):
    """Layer: a component that a node of the model graph uses. In its methods, `inputs` maps each *connected* port to
    its TensorSpec."""

    ports: ClassVar[tuple[Port, ...]] = (Port("x"),)
    outputs: ClassVar[tuple[str, ...]] = ("output",)  # the first is the default
    keeps_range: ClassVar[bool] = False  # whole numbers in the output are in the range of the first input (reshape)
    operation: ClassVar[str] = ""  # operation of expressions that computes the same, for the range of the output
    mixes_samples: ClassVar[bool] = False  # the result of a sample depends on others; such a layer has a field `over`
    counts_only: ClassVar[bool] = False  # uses only the number of samples of its input, so any field can be its input
    is_library: ClassVar[bool] = False  # a whole model of another library, whose code may read values of tensors
    is_pretrained: ClassVar[bool] = False  # starts from published weights

    @classmethod
    def ports_for(cls, named: Sequence[str]) -> tuple[Port, ...]:
        """Return the ports (inputs) that the layer has at one node. `named`: the names in the node's key `inputs`;
        empty if the node does not name its input, which is then connected to the first port."""
        return cls.ports

    @classmethod
    def complete_fields(
        cls, fields: "MappingNode", resolve: "Callable[[str, Span], str]"
    ) -> "tuple[MappingNode, list[Diagnostic]]":
        """Return the keys of a node with further keys added, and errors. Keys are added if the recipe names a file that
        defines them, such as a published model's configuration. `fields`: the keys in the recipe. `resolve`: function
        that makes a path in the recipe absolute."""
        return fields, []

    @property
    def is_random(self) -> bool:
        """True if the layer draws random numbers in training (dropout with p > 0)."""
        return False

    @classmethod
    def describe_data(cls, data: Mapping[str, object]) -> str:
        """Return the text by which the table of `dtrain plan` names a layer. `data`: the layer as JSON data
        (`as_data`)."""
        return str(data["type"])

    def find_text_ports(self) -> tuple[str, tuple[str, ...], str] | None:
        """Return (model name, its inputs for token ids, its input for the padding mask) for a text encoder; None for
        any other layer. Warnings about a missing mask name them; of the inputs for token ids, they name the last. Call
        it only if `check` found no error."""
        return None

    def check(self, inputs: Mapping[str, TensorSpec]) -> ShapeError | None:
        """Return why the layer cannot accept the shapes and dtypes of these inputs, or None if it can."""
        return None

    @abstractmethod
    def build(self, inputs: Mapping[str, TensorSpec]) -> "nn.Module":
        """Return the layer's module, with sizes such as `in_features` from the inputs. Call it only if `check` found no
        error.

        arguments   ports in declared order, None if not connected; tensors of a variadic port as separate arguments
        result      one tensor, or a tuple in the order of `outputs`; dimension 0 of each is the batch

        `forward` must be deterministic (unless the layer `is_random`), and must not modify an input in place. On the
        meta device, `init_of` fills the parameters after `to_empty`, and `reset_buffers()` of a submodule its buffers.
        """

    def find_units(self, module: "nn.Module") -> tuple[str, ...]:
        """Return the paths of the units of `module`: submodules, such as transformer blocks, that `fully_shard`,
        activation checkpointing and compilation handle one by one."""
        return ()

    def split(self, inputs: Mapping[str, TensorSpec]) -> "ModelParts | str":
        """Return the parts of a model from another library between which a pipeline can divide it, or a sentence that
        says why it cannot."""
        return "its library has no plan for a pipeline"

    def take_part(self, path: str) -> "Layer":
        """Return a layer that computes only one part of a library's model. `path`: path of the part in the result of
        `split`."""
        raise LookupError(f"{self.type} has no parts")

    def with_sizes(self, inputs: Mapping[str, TensorSpec]) -> Self:
        """Return a copy of the layer that stores the sizes of these inputs, such as the number of classes. The `check`
        of the copy then reports other inputs that do not fit these sizes."""
        return self

    def init_of(self, parameter: str, inputs: Mapping[str, TensorSpec]) -> "Init":
        """Return the init (rule for start values) of a parameter for which the recipe sets none. It is the distribution
        that torch uses. `parameter`: its name in the module. Raises LookupError for an unknown name."""
        raise LookupError(f"`{self.type}` has no parameter {parameter}")

    def cut(self, kind: CutKind, inputs: Mapping[str, TensorSpec], size: int) -> LayerCut | str | None:
        """Return how `size` ranks of the `tensor` axis divide the layer by `kind`, such as "rows" or "heads"
        (`core/cuts.py`). Return None if it cannot be divided by `kind`, and the reason as text if `size` does not
        divide its sizes. If the layer computes differently when divided, its module has a method `divide`."""
        return None

    def products(self, use: Use) -> Iterable[Product]:
        """Return the matrix products of one forward, for estimates of time and utilisation. Look-ups, norms and
        element-wise operations have none. A test compares every layer with torch's flop counter."""
        return ()


class LossModule(ABC):
    """Interface of the `nn.Module` that `Loss.build` returns. It gives two scalars for a batch, `sum` and `count`. The
    loss of a step is the sum of all `sum` divided by the sum of all `count`, over all batches of all ranks.

    input, target, mask   (B, ...), target and mask as the component defines them
    row_weight            (B,) float: 0 for rows of padding, else 1
    count                 float64; does not depend on `input`, so it is known before the first backward
    items_per_row         constant count of one row; None if it depends on values (a mask, class weights)"""

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
    """Loss: one term of the objective. `input`, `target`, `mask` and `weight` are keys of the section `objective`, not
    fields of the loss.

    bounds         least and greatest possible loss of one item; a run reports a loss outside
    about          kind of targets: `numbers` (a regression), `classes` (also binary), or "" for others
    one_class      an item belongs to exactly one of several classes
    per_item       each item has a loss of its own, and the loss is their mean
    needs_balance  a class weight is `balanced`: before `build`, the compiler adds up `tally` of all training targets,
                   and calls `balance` with the total, which replaces `balanced` by a number"""

    about: ClassVar[str] = ""
    one_class: ClassVar[bool] = False
    per_item: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (0.0, math.inf)
    needs_target: ClassVar[bool] = True
    mixes_samples: ClassVar[bool] = False

    @property
    def needs_balance(self) -> bool:
        """True if a class weight is `balanced`, so that `tally` and `balance` must be called before `build`."""
        return False

    def tally(self, targets: "np.ndarray", input: TensorSpec) -> "np.ndarray":
        """Count the target values (N, ...), and return the counts as an int64 array. The counts of several chunks can
        be added; from the sum `balance` computes class weights. Raises ValueError, with a message for the user, for a
        target that the loss does not accept."""
        raise TypeError(f"`{self.type}` has nothing to balance")

    def balance(self, tally: "np.ndarray") -> "Loss":
        """Return a copy of the loss in which computed class weights replace `balanced`. `tally`: total of the counts
        that the method `tally` returned for all training targets. Raises ValueError, with a message for the user, if no
        weights can be computed."""
        raise TypeError(f"`{self.type}` has nothing to balance")

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        """Return why the loss does not accept these tensors, or None if it does. Losses never broadcast: shapes must be
        equal, except for a class dimension. `ShapeError.port` is input, target or mask."""
        return None

    def can_divide_classes(self, input: TensorSpec, target: TensorSpec | None) -> bool:
        """Return whether ranks can compute the loss together if each has the scores of only some classes. If True, the
        loss module has a method `divide`."""
        return False

    @abstractmethod
    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule: ...


class Collective(ABC):
    """Communication between the data-parallel ranks, for metrics. `rank`: index of this process among them. `size`:
    number of data-parallel ranks."""

    rank: int
    size: int

    @abstractmethod
    def sum(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return the element-wise sum over the data-parallel ranks."""

    @abstractmethod
    def concatenate(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return the rows of all ranks, concatenated in rank order.

        Each rank may have any number of rows, also none. The dtype of the result is that of the ranks that have
        rows."""


class MetricModule(ABC):
    """Accumulator of a metric over the batches of one rank. `update` never makes the host wait for the device.

    Rows of padding (`row_weight` 0), masked items and ignored items do not count."""

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
        """Return the metric over the batches of all ranks, computed exactly: a scalar float64 tensor on the device, nan
        if there was no item."""

    @abstractmethod
    def reset(self) -> None: ...


class MetricInputs(NamedTuple):
    """Specs of the tensors that a metric reads. `class_dim`, `ignore_index`: keys of the loss to which the metric
    belongs; for a metric without a loss, their defaults."""

    input: TensorSpec
    target: TensorSpec | None = None
    mask: TensorSpec | None = None
    class_dim: int = -1
    ignore_index: int | None = None


class Metric(Component, ABC):
    """Metric: a number computed in evaluations.

    is_mean    a mean over items, or a function of such a mean, so it can also be computed during training
    about      kind of the targets, `numbers`, `classes` or "", as in `Loss`
    has_unit   the value depends on the unit of the target, so input and target are given in the unit of its columns"""

    is_mean: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = True
    needs_target: ClassVar[bool] = True
    has_unit: ClassVar[bool] = False
    about: ClassVar[str] = ""

    def check(self, edges: MetricInputs) -> ShapeError | None:
        """Return why the metric cannot be computed from these tensors, or None if it can. `ShapeError.port` is input,
        target or mask."""
        return None

    def is_undefined(self, target: "np.ndarray[Any, Any]") -> bool:
        """Return whether the metric is nan for these targets (N, ...), whatever the model predicts. An example is a set
        of samples that all have one class."""
        return False

    @abstractmethod
    def build(self, edges: MetricInputs, device: "torch.device") -> MetricModule: ...


class Optimizer(Component, ABC):
    """Optimizer: the update rule of parameters. A parameter group can have its own `lr` and `weight_decay`.

    takes_shards        a shard of a parameter can be updated alone; False: fsdp is an error
    works_elementwise   an element depends only on its own gradients; False: the axis `tensor` is an error
    averages            evaluations and checkpoints use an average of the weights: torch's `eval()` puts it into the
                        model, `train()` puts the trained weights back
    usual_lr            smallest and largest usual lr; lint reports an lr far outside"""

    takes_shards: ClassVar[bool] = True
    works_elementwise: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    usual_lr: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def check(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int = 1) -> ShapeError | None:
        """Return an error if the optimizer cannot update these parameters, such as a vector in an optimizer for
        matrices, else None. `parameters`: dict from name to shape. `num_shards`: number of ranks among which dimension
        0 of each parameter is divided."""
        return None

    @abstractmethod
    def build(self, groups: list[dict[str, object]]) -> "torch.optim.Optimizer":
        """Return the torch optimizer for the parameter groups `{params, lr, weight_decay}`. If torch has a fused kernel
        for the device, it may use that."""

    @abstractmethod
    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        """Return the number of elements of optimizer state for a parameter of this shape, without step counters."""

    def arguments(self) -> dict[str, Any]:
        """Return the optimizer's fields as keyword arguments of the torch optimizer."""
        return self.model_dump(exclude={"type"})


class LrSchedule(Component, ABC):
    """Learning-rate schedule: a factor by which the lr of every parameter group is multiplied."""

    @abstractmethod
    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        """Return the factor of the lr in optimizer step `step` (from 0) of `num_steps`, of which the first
        `num_warmup_steps` are the warm-up. The result depends on these three numbers and the fields only."""

    def resolve(self, to_steps: Callable[[Duration], int]) -> "LrSchedule":
        """Return a copy whose durations are all in steps, as `factor` needs them. Raises ValueError, as `to_steps`
        does, if a duration cannot be converted."""
        return self

    def check_milestones(
        self, exact_steps: Callable[[Duration], float], num_steps: int, warmup: float
    ) -> Sequence[ShapeError]:
        """Return an error or a warning for each duration that does not fit into the run. Called before `resolve`, while
        durations have their units. `exact_steps`: function that converts a duration to steps, without rounding.
        `num_steps`: the steps of the run. `warmup`: how many of them are the warm-up. Raises ValueError, as
        `exact_steps` does."""
        return ()


class Init(Component, ABC):
    """Init: the rule for the start values of a parameter, which `fill` writes.

    `of_layer`: the layer's own code computes the start values, and `fill` is not called. Instead, the method `whole`
    returns them; those of a plugin's layer are read from the layer after its construction.
    """

    of_layer: ClassVar[bool] = False

    def check(self, shape: tuple[int, ...]) -> ShapeError | None:
        """Return why a parameter of this shape cannot be filled, or None if it can."""
        return None

    @abstractmethod
    def fill(self, tensor: "torch.Tensor", draws: "Draws") -> None:
        """Write the start values into `tensor` in place, on any device. `draws`: the only source of random numbers.

        `tensor` is the whole parameter or a block of its rows. `draws.shape`: shape of the whole parameter.
        `draws.first_row`: index in the parameter of the first row of `tensor`."""

    def whole(self, seed: int, path: str) -> "torch.Tensor":
        """Return the start values of the whole parameter, as the layer's code sets them. Call it only for an init with
        `of_layer`, and not for a plugin's layer. `seed`: seed of the run. `path`: path of the layer in the model."""
        raise NotImplementedError
