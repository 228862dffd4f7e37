"""Result of a run, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from declarative_train.app.records.record import Record, checkpoints_of
from declarative_train.core.amounts import clock, format_number


def result_text(record: Record) -> str:
    """Return aligned lines: the run's folder, its state, the steps, the final values, and the checkpoint to continue
    from."""
    last, best = checkpoints_of(record.folder)
    steps = f"{record.step:,}"
    if record.step != record.num_steps and record.state in ("stopped", "failed"):
        steps += f" of {record.num_steps:,}"
    rows = [("run", record.folder), ("state", record.state), ("steps", steps)]
    if record.reason:
        rows.append(("reason", record.reason))
    if record.seconds:
        rows.append(("time", clock(record.seconds)))
    for name, value in record.values.items():
        step = record.value_steps.get(name, record.step)
        at = f"  at step {step:,}" if step != record.step else ""
        at = "  in the last steps logged" if name.startswith("training/") and not at else at
        rows.append((name, f"{format_number(value)}{at}"))
    if last is not None:
        rows.append(("checkpoint", last))
    if best is not None and best != last:
        rows.append(("best", best))
    if record.state == "stopped" and last is not None:
        rows.append(("go on", "the same command with --resume"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def result_json(record: Record) -> dict[str, Any]:
    """Return the result of a run in the types of JSON: its folder, state, steps and final values, with nan and inf as
    strings."""
    last, best = checkpoints_of(record.folder)
    return {
        "run": record.folder,
        "name": record.name,
        "mode": record.mode,
        "state": record.state,
        "reason": record.reason or None,
        "step": record.step,
        "num_steps": record.num_steps,
        "seconds": record.seconds,
        "metrics": jsonable(record.values),
        "metric_steps": dict(record.value_steps),
        "checkpoint": last,
        "best_checkpoint": best,
    }


def jsonable(values: Mapping[str, float]) -> dict[str, float | str]:
    """Return the values with nan and inf as strings, because JSON does not have them."""
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
