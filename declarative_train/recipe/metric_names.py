"""Names of metrics in evaluations (`validation/accuracy`), as TensorBoard, `best` and `early_stop` use them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from declarative_train.recipe.sections.evaluation import Evaluation
from declarative_train.recipe.sections.objective import ObjectiveSection

FINAL_SETS = ("test",)  # evaluated only at the end, unless `evaluation.sets` names them


def list_evaluated_sets(split: Iterable[str], evaluation: Evaluation | None) -> tuple[str, ...]:
    """Return the names of the sets that each evaluation during the run covers: those in `evaluation.sets`, else all
    sets in `split` except `test`.
    """
    if evaluation is not None and evaluation.sets is not None:
        return evaluation.sets
    return tuple(name for name in split if name not in FINAL_SETS)


def list_watched_names(sets: Sequence[str], objective: ObjectiveSection) -> dict[str, bool]:
    """Return {name: True if larger values are better} for the losses and metrics of each evaluated set. A name has the
    form `validation/accuracy`.
    """
    names: dict[str, bool] = {}
    for each in sets:
        names[f"{each}/loss"] = False
        if len(objective.losses) > 1:  # a single term is equal to the loss
            names |= {f"{each}/loss/{term}": False for term in objective.losses}
        names |= {f"{each}/{name}": term.component.higher_is_better for name, term in objective.metrics.items()}
    return names
