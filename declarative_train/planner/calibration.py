"""Calibration of the planner for one machine: a file with figures that were measured on the machine or fitted to
measured steps. The recipe's key `layout.calibration` names the file. Its figures replace those of data sheets and of
`estimate/constants.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import exp, log
from pathlib import Path
from statistics import median

from declarative_train.components.hardware import HARDWARE
from declarative_train.components.hardware.hardware import Hardware
from declarative_train.planner.estimate.constants import Constants, Machine

FIGURES = ("peak_flops", "memory_per_s", "link_per_s", "network_per_s", "reached")
FEW = 5
"""Rows from which on the error is fitted. With fewer it is that of the constants, or half of it with one row of the
same machine."""
ROW_ERROR = 0.145
"""Spread of ln(measured / predicted) of single rows around the factor of their machine (docs/planner-times.md)."""


def write_calibration(path: Path, machine: Machine, how: str) -> None:
    """Write a calibration file for a machine. `how`: a text that says where the figures come from."""
    hardware = machine.hardware
    figures = {name: getattr(hardware, name) for name in FIGURES}
    figures["peak_flops"] = dict(hardware.peak_flops)
    text = {"hardware": hardware.name, "how": how, "figures": figures, "constants": asdict(machine.constants)}
    path.write_text(json.dumps(text, indent=2) + "\n")


def read_calibration(path: Path) -> Machine:
    """Read a calibration file. Raises ValueError if it is malformed, and OSError if it cannot be read."""
    try:
        found = json.loads(path.read_text("utf-8"))
        hardware: Hardware = replace(HARDWARE[found["hardware"]], **{name: found["figures"][name] for name in FIGURES})
        return Machine(hardware, Constants(**found["constants"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("it was not written by `dtrain calibrate`") from error


def calibrate_to_rows(machine: Machine, rows: Sequence[tuple[float, float]]) -> Machine:
    """Return `machine` with its constants `scale` and `error` fitted to measured steps. `rows`: (predicted, measured)
    seconds of each step, predicted with `scale` 1.

    scale  median of measured / predicted; the fewer steps, the closer to 1
    error  90% quantile of |ln(measured / (predicted * scale))|, at least 0.05; with fewer than `FEW` steps: half of the
           previous error"""
    known = machine.constants.error
    ratios = [log(measured / predicted) for predicted, measured in rows]
    middle = median(ratios) * known**2 / (known**2 + ROW_ERROR**2 / len(rows))
    off = sorted(abs(each - middle) for each in ratios)
    error = off[min(len(off) - 1, int(0.9 * len(off)))] if len(rows) >= FEW else known / 2
    return Machine(machine.hardware, replace(machine.constants, scale=exp(middle), error=max(error, 0.05)))
