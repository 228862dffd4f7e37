"""Groups of samples, the same for any layout, for nodes with `over: N samples` (batch norm, contrastive losses).

A group is N consecutive samples of the global batch. N is a divisor or a multiple of microbatch_size (rows of a
microbatch on one rank): a microbatch has several groups, or a group extends over N / microbatch_size neighbouring
ranks.

The engine makes these calls, the first two once and the others in every step:

  groups = SampleGroups(microbatch_size, make_process_groups(rank_spans(model, microbatch_size), ranks, make))
  attach(model, groups)
  for batch in batches:
      groups.begin(batch.num_rows)        # then forward and backward
  end_step(model, ranks)                  # running statistics: the mean over the groups of the step

A forward without `begin` (evaluation, shape inference) changes no state; batch norms then use running statistics.

In an evaluation, a group may begin in one batch and end in a later one. So the evaluation calls `take_rest` after the
last batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from pydantic import AfterValidator, BeforeValidator, Field

from declarative_train.components.component import Collective

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup

_FORM = re.compile(r"([1-9]\d*) samples?")


def group_size(over: str) -> int | None:
    """Return N if `over` is `N samples`, or None if it is `microbatch`. Raises ValueError for any other text."""
    if over == "microbatch":
        return None
    if match := _FORM.fullmatch(over):
        return int(match[1])
    raise ValueError(f"`{over}` is not `microbatch` or a number of samples such as `32 samples`")


def _with_unit(over: object) -> object:
    if isinstance(over, int) and not isinstance(over, bool):
        raise ValueError(f"`over` is {over} without a unit: write `over: {over} samples`")
    return over


def _check_over(over: str) -> str:
    group_size(over)
    return over


Over = Annotated[
    str,
    BeforeValidator(_with_unit),
    AfterValidator(_check_over),
    Field(json_schema_extra={"pattern": r"^(microbatch|[1-9][0-9]* samples?)$"}),
]


class SampleGroups:
    """State of the current forward for modules that compute over groups of samples, such as batch norms. There is one
    object per copy of a model. The engine writes to it, and the modules read it.

    microbatch_size   number of rows of a full microbatch on one rank; None in one process without a plan
    process_groups    {n: process group of n consecutive ranks, one of which is this rank}
    ranks             the data-parallel ranks, in the order of their rows in an evaluation batch; None without a plan
    """

    def __init__(
        self,
        microbatch_size: int | None = None,
        process_groups: Mapping[int, ProcessGroup] | None = None,
        ranks: Collective | None = None,
    ) -> None:
        self.microbatch_size = microbatch_size
        self.process_groups = dict(process_groups or {})
        self.ranks = ranks
        self.num_rows: int | None = None
        self.recording = False  # the forward is one of a step
        self.recomputing = False  # the forward already ran once and was counted

    def begin(self, num_rows: int | None = None) -> None:
        """Tell the modules that the next forwards are training forwards, in which they update running statistics.
        `num_rows`: number of samples at the start of the batch; the rows after them are padding. None: there is no
        padding."""
        self.num_rows = num_rows
        self.recording = True

    def end(self) -> None:
        """End the training forwards of a step. Forwards after this call do not change running statistics."""
        self.num_rows = None
        self.recording = False

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return two contexts, for a forward and for its recomputation, as `torch.utils.checkpoint.checkpoint` needs
        them (`context_fn`). In the recomputation, modules see the number of rows of the forward, and do not update the
        running statistics again."""
        return nullcontext(), _Recomputation(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> SampleGroups:
        """Return a copy for another replica of the model, with the same process groups. The state of the current
        forward is not copied."""
        return SampleGroups(self.microbatch_size, self.process_groups, self.ranks)

    def __reduce__(self) -> tuple[type[SampleGroups], tuple[int | None]]:
        """Return what pickle stores: the object without its process groups and ranks, which are valid only in this
        process.
        """
        return SampleGroups, (self.microbatch_size,)


class _Recomputation(AbstractContextManager[None]):
    """Context for the recomputation of a forward (activation checkpointing). Modules see the number of rows of the
    original forward. They do not add to the running statistics a second time.
    """

    def __init__(self, groups: SampleGroups) -> None:
        self._groups = groups
        self._forward = groups.num_rows, groups.recording
        self._before: list[tuple[int | None, bool, bool]] = []

    def __enter__(self) -> None:
        groups = self._groups
        self._before.append((groups.num_rows, groups.recording, groups.recomputing))
        (groups.num_rows, groups.recording), groups.recomputing = self._forward, True

    def __exit__(self, *_: object) -> None:
        groups = self._groups
        groups.num_rows, groups.recording, groups.recomputing = self._before.pop()


@runtime_checkable
class MixesSamples(Protocol):
    """Interface of a module whose result for a sample depends on the other samples of its group. `over`: number of
    samples of a group; None: the microbatch. A module with running statistics also has

    take_pending()                   vector of sums over its groups since the last call, which ranks can add up
    fold(modules, pending, finite)   static method: updates the running statistics of several modules from their
                                     vectors `pending`; if `finite` is false, it changes nothing
    """

    over: int | None
    groups: SampleGroups


@runtime_checkable
class HoldsSamples(Protocol):
    """Interface of a loss over groups of samples, where a group can begin in one evaluation batch and end in a later
    one. The loss's method `sum` returns the loss sum of the groups that its batch completes. `take_rest()` is called
    after the last batch. It returns the loss sum of the last group if this group is incomplete, else 0.
    """

    def take_rest(self) -> torch.Tensor: ...


def attach(model: nn.Module, groups: SampleGroups) -> None:
    """Set the attribute `groups` of every module in `model` that computes over groups of samples, as a batch norm does
    in training."""
    for module in model.modules():
        if isinstance(module, MixesSamples):
            module.groups = groups


def rank_spans(model: nn.Module, microbatch_size: int) -> tuple[int, ...]:
    """Return over how many neighbouring ranks the groups of samples in `model` extend: (2, 4) if some groups have the
    samples of 2 ranks and some those of 4. Groups that fit into a microbatch are left out. `microbatch_size`: number of
    rows of a microbatch on one rank."""
    sizes = {module.over for module in model.modules() if isinstance(module, MixesSamples)}
    return tuple(sorted(size // microbatch_size for size in sizes if size is not None and size > microbatch_size))


def make_process_groups(
    spans: Sequence[int], ranks: Sequence[int], make: Callable[[Sequence[int]], ProcessGroup]
) -> dict[int, ProcessGroup]:
    """Return a dict from each number n in `spans` to a process group of n neighbouring ranks, one of which is this
    rank. `ranks`: the global indices of the data-parallel ranks, in order. Each of these ranks must call this function
    with the same `spans`. `make(ranks)`: function that creates a process group.
    """
    from torch import distributed

    made: dict[int, ProcessGroup] = {}
    position = list(ranks).index(distributed.get_rank())
    for span in spans:
        first = position // span * span
        made[span] = make(ranks[first : first + span])
    return made


def end_step(model: nn.Module, ranks: Collective, finite: torch.Tensor | None = None) -> None:
    """Update the running statistics of `model` from the groups of the step, with one reduction over `ranks` for the
    whole model. All data-parallel ranks must call this function once per optimizer step. `finite`: a bool tensor, False
    if the step was skipped. The statistics of a skipped step are discarded.
    """
    import torch

    modules: list[Any] = [
        module for module in model.modules() if isinstance(module, MixesSamples) and hasattr(module, "take_pending")
    ]
    modules = [module for module in modules if module.training]
    if not modules:
        return
    pending = [module.take_pending() for module in modules]
    total = torch.split(ranks.sum(torch.cat(pending)), [len(vector) for vector in pending])
    for kind in dict.fromkeys(module.fold for module in modules):
        own = [at for at, module in enumerate(modules) if module.fold is kind]
        kind([modules[at] for at in own], [total[at] for at in own], finite)
