"""Command `dtrain status RUN`: show how far a run is, how fast, and whether it needs attention."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declarative_train.app.printing import print_text

if TYPE_CHECKING:
    from declarative_train.app.records.record import Record

MOST_WARNINGS = 5  # number of last warnings that are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="a run's folder, or its URL")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for monitors")


def run(args: argparse.Namespace) -> int:
    from declarative_train.app.records.record import read_record
    from declarative_train.app.records.remote import open_folder

    with open_folder(args.folder) as folder:
        record = read_record(folder)
        found = None if record is None else status(record, time.time())
    if found is None:
        print(f"dtrain: {args.folder} is not the folder of a run; help: `dtrain runs` lists them", file=sys.stderr)
        return 2
    found["run"] = args.folder.rstrip("/") or "/"
    if args.json:
        print(json.dumps(found))
    else:
        print_text(text(found))
    return 0


def status(record: Record, now_s: float) -> dict[str, Any]:
    """Return the status of a run as plain values. Ages and times are in seconds; an unknown value is None. `now_s`: the
    current time in Unix seconds."""
    from declarative_train.core.names import EVENTS

    started, step, saved, warnings = read_sessions(Path(record.folder) / EVENTS)
    step_s = step.get("step_s")
    is_running = record.state == "running"
    left = record.num_steps - record.step
    return {
        "run": record.folder,
        "state": record.state,
        "reason": record.reason or None,
        "step": record.step,
        "num_steps": record.num_steps,
        "step_s": step_s,
        "samples_per_s": step.get("samples_per_s"),
        "tokens_per_s": step.get("tokens_per_s"),
        "remaining_s": left * step_s if is_running and step_s is not None else None,
        "mode": record.mode,
        "num_ranks": started[-1].get("num_ranks") if started else None,
        "checkpoint_step": saved.get("step"),
        "checkpoint_path": saved.get("path"),
        "checkpoint_age_s": now_s - saved["time_unix_s"] if saved else None,
        "steps_since_checkpoint": record.step - saved["step"] if saved else None,
        "restarts": max(len(started) - 1, 0),
        "stragglers": read_stragglers(Path(record.folder)) if is_running else [],
        "age_s": now_s - record.updated_unix_s,
        "warnings": [warning.get("message") for warning in warnings[-MOST_WARNINGS:]],
    }


Entry = dict[str, Any]


def read_sessions(path: Path) -> tuple[list[Entry], Entry, Entry, list[Entry]]:
    """Read the file `path` with a run's events. Return the first event of each session (one start of the run), the
    event of the last logged step, the event of the last checkpoint, and a list of the warnings of the last session. An
    event that does not exist is {}."""
    kept: dict[str, list[bytes]] = {"RunStarted": [], "StepDone": [], "CheckpointSaved": [], "Notice": []}
    try:
        with open(path, "rb") as file:
            for line in file:
                kind = line[:40].partition(b'"event": "')[2].partition(b'"')[0].decode()
                if kind == "RunStarted":
                    kept["Notice"].clear()
                if kind in ("StepDone", "CheckpointSaved"):
                    kept[kind] = [line]
                elif kind in kept:
                    kept[kind].append(line)
    except OSError:
        pass
    found = {kind: [entry for line in lines if (entry := _parse(line))] for kind, lines in kept.items()}
    last_step, last_saved = (found[kind][-1] if found[kind] else {} for kind in ("StepDone", "CheckpointSaved"))
    return found["RunStarted"], last_step, last_saved, [each for each in found["Notice"] if each.get("is_warning")]


def read_stragglers(folder: Path) -> list[str]:
    """Return the sentences that a run wrote to its folder about ranks that are now slower than the others; [] if there
    are none."""
    from declarative_train.core.names import STRAGGLERS

    try:
        found = json.loads((folder / STRAGGLERS).read_text())
    except (OSError, ValueError):
        return []
    return [str(each) for each in found] if isinstance(found, list) else []


def _parse(line: bytes) -> Entry:
    try:
        found = json.loads(line)
    except ValueError:  # after a crash, the last line may be incomplete
        return {}
    return found if isinstance(found, dict) else {}


def text(found: dict[str, Any]) -> str:
    """Return the status of a run (`found`: as returned by `status`) as aligned lines of text."""
    from declarative_train.core.amounts import clock, format_number

    share = f" ({found['step'] / found['num_steps']:.0%})" if found["num_steps"] else ""
    rows = [("run", found["run"]), ("state", f"{found['state']}, last written {clock(found['age_s'])} ago")]
    if found["reason"]:
        rows.append(("reason", found["reason"]))
    rows.append(("step", f"{found['step']:,} of {found['num_steps']:,}{share}"))
    if found["step_s"] is not None:
        rate = f"{format_number(found['step_s'])} s per step, {format_number(found['samples_per_s'])} samples/s"
        left = "" if found["remaining_s"] is None else f", {clock(found['remaining_s'])} left"
        rows.append(("rate", f"{rate}{left}"))
    rows.append(("ranks", f"{found['num_ranks'] or '?'}, {found['mode']}"))
    if found["checkpoint_step"] is not None:
        since = f"{clock(found['checkpoint_age_s'])} ago, {found['steps_since_checkpoint']:,} steps since"
        rows.append(("checkpoint", f"step {found['checkpoint_step']:,}, {since}"))
    else:
        rows.append(("checkpoint", "none"))
    rows.append(("restarts", str(found["restarts"])))
    if found["stragglers"]:
        rows.append(("slower ranks", ", ".join(found["stragglers"])))
    rows += [("warning", each) for each in found["warnings"]]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
