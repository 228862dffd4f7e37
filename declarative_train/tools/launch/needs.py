"""Resources of a job, computed from its plan: nodes, tasks, devices, cores, time limit, and time to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from declarative_train.engine.failures import limit_s
from declarative_train.plan.plan import Plan
from declarative_train.planner.text.estimate import memory

SAVE_BYTES_PER_S = 100e6  # speed at which one rank hashes and writes to a disk that many ranks share
TIME_MARGIN, SETUP_S = 1.5, 600.0  # a job that is a little slower than predicted should not be cut off
SHORTEST_LEAD_S, LEAD_ROUND_S = 120, 10


@dataclass(frozen=True, slots=True)
class Needs:
    """Resources of a job. A task is a process that the cluster starts: a rank, or the single process of mode `dp`.

    cores         CPU cores of each task
    minutes       time limit of the job, None if unknown
    time_reason   text that says where the time limit comes from
    lead_s        seconds that a run needs to save and end after a signal
    max_restarts  how often the job may be started again
    """

    num_nodes: int
    tasks_per_node: int
    gpus_per_task: int
    cores: int
    minutes: int | None
    time_reason: str
    lead_s: int
    max_restarts: int

    @property
    def gpus_per_node(self) -> int:
        return self.tasks_per_node * self.gpus_per_task

    @property
    def cores_per_node(self) -> int:
        return self.tasks_per_node * self.cores


def needs_of(plan: Plan, *, minutes: int | None = None, cores: int | None = None) -> Needs:
    """Return the resources that a job needs for a plan. `minutes`, `cores`: time limit, and cores per task, that the
    user gave; None: they are computed."""
    layout = plan.layout
    reason = "--time"
    if minutes is None:
        minutes, reason = predict_minutes(plan)
    gpus = 0 if layout.device == "cpu" else layout.num_copies
    return Needs(
        num_nodes=layout.num_nodes,
        tasks_per_node=len(layout.ranks) // layout.num_nodes,
        gpus_per_task=gpus,
        cores=cores or plan.data.workers + 1,
        minutes=minutes,
        time_reason=reason,
        lead_s=lead_s(plan),
        max_restarts=layout.max_restarts,
    )


def predict_minutes(plan: Plan) -> tuple[int | None, str]:
    """Return the time limit of a job in minutes, and a text on where it comes from: `training.max_time`, or else the
    predicted time with a margin. Return (None, "") if the plan has neither."""
    step_s = None if plan.estimate is None else plan.estimate.step_s
    if plan.training.max_time_s is not None:
        return math.ceil((plan.training.max_time_s + SETUP_S + lead_s(plan)) / 60), "training.max_time, and the start"
    if step_s is None:
        return None, ""
    predicted_s = step_s * plan.training.num_steps
    reason = f"{TIME_MARGIN:g} x the predicted {predicted_s / 3600:.2g} hours of steps, and the start"
    return math.ceil((TIME_MARGIN * predicted_s + SETUP_S) / 60), reason


def lead_s(plan: Plan) -> int:
    """Return the seconds between the signal to stop a job and its end. In this time, the run finishes a step and saves
    a checkpoint."""
    num_bytes = max(each.parameters + each.optimizer for each in memory(plan))
    seconds = limit_s("DTRAIN_GRACE_S") + 2 * num_bytes / SAVE_BYTES_PER_S
    return max(SHORTEST_LEAD_S, LEAD_ROUND_S * math.ceil(seconds / LEAD_ROUND_S))
