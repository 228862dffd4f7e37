"""Check of the targets of new rows: a loss that accepts only some values would give a number without meaning for
others. The rows of the training run were checked when it was planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from declarative_train.components.losses import LOSSES
from declarative_train.inference.input import InputError

if TYPE_CHECKING:
    from declarative_train.data.batch import Batch
    from declarative_train.plan.plan import TermPlan


def check_target_values(
    terms: Sequence[TermPlan], batch: Batch, origin_of: Callable[[int], Callable[[], tuple[str, dict[str, object]]]]
) -> None:
    """Raise InputError if a target in the batch is outside the range that its loss accepts. Losses with a mask are not
    checked, because the mask may exclude such rows. `origin_of(row)`: returns a function that reads the origin (file
    and row) of a row of the batch."""
    for term in terms:
        loss, values = LOSSES.get(str(term.component["type"])), batch.tensors.get(term.target or "")
        accepted = getattr(loss, "target_range", None)
        if accepted is None or values is None or term.mask is not None:
            continue
        rows = values[: batch.num_rows].reshape(batch.num_rows, -1)
        wrong = ((rows < accepted[0]) | (rows > accepted[1])).nonzero().tolist()
        if wrong:
            row, element = wrong[0]
            wanted = "0 to 1" if accepted[1] == 1 else "0 or more"
            place = origin_of(row)()[0]
            raise InputError(
                f"{place}: `{term.target}` is {rows[row, element].item():g}, but `{term.component['type']}` expects "
                f"{wanted}; help: correct the answer in the file"
            )
