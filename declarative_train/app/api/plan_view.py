"""Plan in the Python API: display it, save it, run it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.app.api.compiling import UnusablePlanError, read_saved_plan
from declarative_train.app.api.diagnostics import Diagnostics
from declarative_train.app.api.display import text_html
from declarative_train.app.api.errors import RUN_FAILED, DtrainError, in_words
from declarative_train.plan.codec import PlanError, from_json, save, to_json
from declarative_train.planner.text.describe import describe

if TYPE_CHECKING:
    from torch import nn

    from declarative_train.app.api.run import Run
    from declarative_train.plan.plan import Plan


def load_plan(path: str | os.PathLike[str]) -> PlanView:
    """Return the plan in a file. The file was written by `PlanView.save` or `dtrain plan -o`, or is the `plan.json` of
    a run or an export. Raises DtrainError."""
    try:
        plan = from_json(Path(path).read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise DtrainError(f"cannot read {os.fspath(path)}: {error.strerror}", exit_code=RUN_FAILED) from None
    except PlanError as error:
        raise DtrainError(f"{os.fspath(path)} cannot be used: {error}", exit_code=RUN_FAILED) from None
    return PlanView(plan, Diagnostics((), {}), os.fspath(path))


class PlanView:
    """Plan, displayed in the form of `dtrain plan`.

    plan         the plan as frozen dataclasses (`plan.batch.global_batch_size`)
    diagnostics  warnings about the recipe of the plan
    """

    def __init__(self, plan: Plan, diagnostics: Diagnostics, saved: str | None = None) -> None:
        self.plan = plan
        self.diagnostics = diagnostics
        self._saved = saved

    @property
    def text(self) -> str:
        return describe(self.plan)

    def to_json(self) -> str:
        return to_json(self.plan)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file for `dtrain run PLAN.json` and `load_plan`. Raises OSError."""
        save(self.plan, Path(path))

    def module(self) -> nn.Module:
        """Return the model with its initial values on the CPU, with the parameter names of the recipe, for inspection
        or `load_state_dict`. (`Run.module` returns a trained model.) Raises DtrainError if the file of `model.weights`
        cannot be read."""
        from declarative_train.engine.failures import RunFailure
        from declarative_train.engine.step.model_preparation import build_with_start_values

        try:
            return build_with_start_values(self.plan)
        except (RunFailure, OSError) as error:
            raise DtrainError(str(error), exit_code=RUN_FAILED) from None

    def run(
        self, *, resume: str | os.PathLike[str] | None = None, max_steps: int | None = None, quiet: bool = False
    ) -> Run:
        """Run the plan, with the arguments of `Recipe.run`. A plan runs only if the files that it was compiled from
        have not changed. Raises DtrainError, and ValueError if `max_steps` is below 1."""
        from declarative_train.app.api.run import Run
        from declarative_train.run.launch import launch
        from declarative_train.run.signals import EXIT_FAILED

        plan = self.plan
        if self._saved is not None:
            try:
                plan = read_saved_plan(self._saved)
            except UnusablePlanError as error:
                raise DtrainError(str(error), exit_code=RUN_FAILED) from None
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}, but a run makes at least one step")
        origin = None if resume is None else os.fspath(resume)
        outcome = launch(plan, resume=origin, max_steps=max_steps, quiet=quiet, hosted=True)
        if outcome.code == EXIT_FAILED or outcome.run_dir is None:
            raise DtrainError(in_words(outcome.why), exit_code=RUN_FAILED)
        return Run(outcome.run_dir)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Plan {self.text.splitlines()[0]}>"

    def _repr_html_(self) -> str:
        return text_html(self.text, headings=True)
