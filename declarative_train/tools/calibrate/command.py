"""Command `dtrain calibrate -o FILE`: write constants for the prediction of step times. They come from measurements of
this machine, or from given step times."""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

from declarative_train.app.printing import print_error, print_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="write the figures; recipes name it by layout.calibration"
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="ranks that run at a time (default: 1)")
    parser.add_argument(
        "--rows",
        metavar="FILE.csv",
        help="measure nothing: fit to measured steps, with the columns recipe and seconds; one row is enough",
    )


def run(args: argparse.Namespace) -> int:
    from declarative_train.core.amounts import amount
    from declarative_train.core.machine import num_cores
    from declarative_train.planner.calibration import write_calibration
    from declarative_train.tools.calibrate.measure import measure_machine

    if args.ranks < 1:
        print_error("--ranks is at least 1")
        return 2
    if args.rows is not None:
        return _to_rows(args)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > num_cores():
        print_text(f"this machine is busy (load {load:.1f}) and seems too slow: repeat this when it is quiet")
    try:
        machine = measure_machine(args.ranks)
    except LookupError as error:
        print_error(f"the figures of {error} are unknown (`dtrain list hardware`)")
        return 3
    write_calibration(Path(args.output), machine, f"measured with {args.ranks} at a time")
    hardware, constants = machine.hardware, machine.constants
    peaks = ", ".join(
        f"{amount(peak * hardware.reached, 'FLOP/s')} in {name}" for name, peak in hardware.peak_flops.items()
    )
    of_shards, of_stages = (f"{seconds * 1e3:.2g} ms" for seconds in (constants.shard_call_s, constants.stage_call_s))
    print_text(
        f"{hardware.name}: {peaks}, {amount(machine.memory_per_s, 'B/s')} of memory, {constants.call_s * 1e6:.3g} us "
        "for an operation"
        + (f", {amount(machine.link_per_s('node'), 'B/s')} between ranks" if args.ranks > 1 else "")
        + (
            f", {of_shards} for a collective of fsdp, {of_stages} for a forward or backward in a pipeline"
            if constants.shard_call_s
            else ""
        )
        + f"\nwrote {args.output}; name it by layout.calibration"
    )
    return 0


def _to_rows(args: argparse.Namespace) -> int:
    from declarative_train.app.api.compiling import compile_loaded
    from declarative_train.components.hardware import HARDWARE
    from declarative_train.planner.calibration import calibrate_to_rows, write_calibration
    from declarative_train.planner.estimate.constants import Machine
    from declarative_train.recipe import load

    rows, names = [], set()
    folder = Path(args.rows).parent
    try:
        with Path(args.rows).open(encoding="utf-8", newline="") as file:
            wanted = [(row["recipe"], float(row["seconds"])) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        print_error(f"{args.rows} has no columns `recipe` and `seconds`: {error}")
        return 2
    for name, seconds in wanted:
        plan = compile_loaded(load(str(folder / name))).plan
        if plan is None or plan.estimate is None or plan.estimate.step_s is None:
            print_error(f"{name}: no time is predicted; it needs layout.hardware (see `dtrain plan`)")
            return 1
        names.add(plan.estimate.hardware)
        rows.append((plan.estimate.step_s, seconds))
    if len(names) != 1:
        print_error(f"the rows must be of one kind of GPU; found: {', '.join(sorted(names)) or 'no row'}")
        return 2
    machine = calibrate_to_rows(Machine(HARDWARE[names.pop()]), rows)
    write_calibration(Path(args.output), machine, f"{len(rows)} measured steps")
    found = machine.constants
    print_text(
        f"measured steps take {found.scale:.3g} x the predicted time; 90 of 100 are within {found.error:.0%} of that\n"
        f"wrote {args.output}; name it by layout.calibration"
    )
    return 0
