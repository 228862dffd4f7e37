"""Fit the constants of the time model to one half of the measured rows, and report the errors on the other half.

python -m tests.planner.fit     prints the constants, and the errors by group
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from declarative_train.planner.estimate.constants import MEGATRON, Constants
from tests.planner.vtrain import SEED, Row, divide, errors, ordered, read_rows

FITTED = ("product_ramp_s", "call_s", "network_efficiency", "link_latency_s", "step_s")
SOFT = 0.1  # errors of ln(time) above it count less


def fit(rows: Sequence[Row], start: Constants = MEGATRON, num_rounds: int = 30) -> Constants:
    """Return the constants with the least soft-l1 of ln(predicted / measured): Levenberg-Marquardt in the logarithms of
    the constants. Rows of several nodes, which are few, count three times."""
    weights = np.array([3.0 if row.num_gpus > 8 else 1.0 for row in rows])

    def made(logs: np.ndarray) -> Constants:
        values = {name: float(np.exp(log)) for name, log in zip(FITTED, logs, strict=True)}
        return replace(start, **values)

    def residuals(logs: np.ndarray) -> np.ndarray:
        found = np.log1p(errors(rows, made(logs)))
        soft = np.sqrt(2 * (np.sqrt(1 + (found / SOFT) ** 2) - 1))
        return np.sqrt(weights) * np.sign(found) * soft

    logs = np.log([getattr(start, name) for name in FITTED])
    now, damping = residuals(logs), 1e-2
    for _ in range(num_rounds):
        slopes = np.stack([(residuals(logs + 0.01 * unit) - now) / 0.01 for unit in np.eye(len(logs))], axis=1)
        while damping < 1e6:
            square = slopes.T @ slopes
            step = -np.linalg.solve(square + damping * np.eye(len(logs)), slopes.T @ now)
            tried = logs + np.clip(step, -1, 1)
            after = residuals(tried)
            if after @ after < now @ now:
                break
            damping *= 4
        else:
            break
        gain = 1 - (after @ after) / (now @ now)
        logs, now, damping = tried, after, damping / 4
        if gain < 1e-5:
            break
    return made(logs)


def report(rows: Sequence[Row], constants: Constants) -> str:
    """Return the errors, all and in each group, the pairs in order, and the rows in the interval."""
    found = errors(rows, constants)
    lines = [_line("all", found)]
    for group in sorted({name for row in rows for name in groups_of(row)}):
        lines.append(_line(group, found[[group in groups_of(row) for row in rows]]))
    off = np.abs(np.log1p(found))
    lines.append(f"pairs in order: {ordered(rows, constants):.1%}")
    lines.append(f"90% of |ln(predicted / measured)| are below {np.quantile(off, 0.9):.3f}")
    return "\n".join([*lines, f"in the interval: {(off <= constants.error).mean():.1%}"])


def groups_of(row: Row) -> tuple[str, ...]:
    return row.group, f"tensor {row.tensor}", f"pipeline {row.pipeline}"


def _line(name: str, found: np.ndarray) -> str:
    return f"{name:24} {len(found):4} rows, mean {np.abs(found).mean():6.1%}, bias {found.mean():+6.1%}"


def main() -> int:
    fitted, others = divide(read_rows(), SEED)
    constants = fit(fitted)
    for name in FITTED:
        print(f"{name:20} {getattr(constants, name):.4g}")
    print(f"\nfitted\n{report(fitted, constants)}\n\nnot fitted\n{report(others, constants)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
