"""`over: N samples`: which rows a node that mixes samples looks at together, whatever the layout.

A group is N consecutive samples of the global batch. `data/spec.py` lays a global batch out so that the rows that go
through all data-parallel ranks together are consecutive: N either divides the rows of one rank's microbatch (several
groups in one forward), or is a multiple of it, and then N / microbatch_size neighbouring ranks hold one group.

What an engine does, once and then in every step:

    groups = SampleGroups(microbatch_size, make_process_groups(rank_spans(model, microbatch_size), ranks, make))
    attach(model, groups)
    for batch in batches:
        groups.begin(batch.num_rows)        # then forward and backward
    end_step(model, ranks)                  # running statistics: the mean over the groups of the step

A forward that is not announced (evaluation, shape inference) leaves no trace. Nodes then use running statistics; a
loss looks at N consecutive samples of the set, whatever the ranks and their batches: what a batch begins, a later one
ends, so the evaluation calls `take_rest` after the last.
Running statistics are equal on all ranks after `end_step`: nobody has to broadcast or average them.
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
    """N of `N samples`, None for `microbatch`. Raises ValueError with what was wanted."""
    if over == "microbatch":
        return None
    if match := _FORM.fullmatch(over):
        return int(match[1])
    raise ValueError(f"`{over}` is not `microbatch` or a number of samples such as `32 samples`")


def _with_unit(over: object) -> object:
    if isinstance(over, int) and not isinstance(over, bool):
        raise ValueError(f"`over` is {over} without a unit: write `over: {over} samples`")
    return over


def _checked(over: str) -> str:
    group_size(over)
    return over


Over = Annotated[
    str,
    BeforeValidator(_with_unit),
    AfterValidator(_checked),
    Field(json_schema_extra={"pattern": r"^(microbatch|[1-9][0-9]* samples?)$"}),
]


class SampleGroups:
    """What nodes that mix samples must know of the forward at hand. One object for each copy of a model: the engine
    writes it, the modules read it.

    `microbatch_size` is the number of rows that a full microbatch has on one rank, None where there is one process
    and no plan; `process_groups` maps a number of neighbouring ranks to the group of those that this rank is in;
    `ranks` are those whose rows follow each other in a batch of an evaluation, None where there is no plan.
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
        self.recomputing = False  # it ran before, and was counted then

    def begin(self, num_rows: int | None = None) -> None:
        """Announce a training forward with this many real rows, which stand first; None: all rows are real."""
        self.num_rows = num_rows
        self.recording = True

    def end(self) -> None:
        """Forwards that follow are not announced."""
        self.num_rows = None
        self.recording = False

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """`context_fn` of `torch.utils.checkpoint.checkpoint`: the recomputation sees the rows of its own forward,
        though another one may have begun since (pipelines), and does not count its statistics twice."""
        return nullcontext(), _Again(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> SampleGroups:
        """A copy of a model is another replica: its own rows, the same ranks."""
        return SampleGroups(self.microbatch_size, self.process_groups, self.ranks)

    def __reduce__(self) -> tuple[type[SampleGroups], tuple[int | None]]:
        """A process group is of this run only."""
        return SampleGroups, (self.microbatch_size,)


class _Again(AbstractContextManager[None]):
    """The rows of a forward that is computed again."""

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
    """A module that reads across the batch. `over` is N, or None for the microbatch.

    A module with running statistics has more: `take_pending()` gives what its groups since the last call summed up to,
    a vector in which another rank's can be added, and `fold(modules, pending, finite)`, of the class, moves the running
    statistics of several.
    """

    over: int | None
    groups: SampleGroups


@runtime_checkable
class HoldsSamples(Protocol):
    """A loss over groups of samples that may end in a later batch of an evaluation. `sum` gives what has become whole;
    `take_rest()`, after the last batch, what the last and perhaps smaller group gives."""

    def take_rest(self) -> torch.Tensor: ...


def attach(model: nn.Module, groups: SampleGroups) -> None:
    """Give every module of the model that mixes samples the object to read."""
    for module in model.modules():
        if isinstance(module, MixesSamples):
            module.groups = groups


def rank_spans(model: nn.Module, microbatch_size: int) -> tuple[int, ...]:
    """The numbers of neighbouring ranks, above 1, that hold one group of some module; ascending."""
    sizes = {module.over for module in model.modules() if isinstance(module, MixesSamples)}
    return tuple(sorted(size // microbatch_size for size in sizes if size is not None and size > microbatch_size))


def make_process_groups(
    spans: Sequence[int], ranks: Sequence[int], make: Callable[[Sequence[int]], ProcessGroup]
) -> dict[int, ProcessGroup]:
    """Return this rank's group for each span. `ranks` are the global numbers of its data-parallel ranks, in order; they
    all must call this with the same spans. `make` makes the group of some ranks."""
    from torch import distributed

    made: dict[int, ProcessGroup] = {}
    position = list(ranks).index(distributed.get_rank())
    for span in spans:
        first = position // span * span
        made[span] = make(ranks[first : first + span])
    return made


def end_step(model: nn.Module, ranks: Collective, finite: torch.Tensor | None = None) -> None:
    """Fold the statistics of the step's groups into the running ones: one reduction for the whole model.

    Call it once per optimizer step on all data-parallel ranks. `finite` (a bool tensor): when it is false the step is
    dropped, and so are its statistics.
    """
    import torch

    modules: list[Any] = [
        module for module in model.modules() if isinstance(module, MixesSamples) and hasattr(module, "take_pending")
    ]
    modules = [module for module in modules if module.training]
    if not modules:
        return
    pending = [module.take_pending() for module in modules]
    total = ranks.sum(torch.cat(pending))
    modules[0].fold(modules, torch.split(total, [len(vector) for vector in pending]), finite)
