"""`python -m tests.faults [NAME...]`: faults of a run on two nodes, and what it says; without names, docs/faults.md.

Each fault happens to a run that has saved a checkpoint, on machines that are network namespaces. A row has the message
of the head (of node 1 where the head is lost), the exit codes, and the steps between the newest checkpoint and the
last step that was logged.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from declarative_train.run.event import CheckpointSaved, StepDone
from declarative_train.run.sinks.jsonl import read_events
from tests.engine.made_recipes import DIGITS, merged, write_data, write_recipe
from tests.house import ROOT
from tests.machines import Machine, machines
from tests.started import Started, family, finish, ranks_below

PORT = 29545
INTERVAL = 20  # steps between checkpoints
PAGE = ROOT / "docs" / "faults.md"
TWO = {
    "parallelism": "ddp",
    "layout": {"gpus": None, "nodes": 2, "gpus_per_node": 1},
    "training": {"epochs": None, "steps": 1_000_000},
    "checkpoint": {"every": f"{INTERVAL} steps", "best": None, "background": False},
    "evaluation": None,
    "logging": {"every": "1 steps"},
}


@dataclass(frozen=True, slots=True)
class Running:
    """Run on two machines, with the agent of each."""

    folder: Path
    machines: list[Machine]
    agents: list[Started]

    def events(self) -> list[Any]:
        paths = (self.folder / "runs" / "made").glob("*/events.jsonl")
        return [event for path in sorted(paths) for event in read_events(path)]

    def wait_for_checkpoint(self, after: int = 0) -> int:
        """Wait until a checkpoint of a later step is saved; return its step."""
        deadline_s = time.monotonic() + 90
        while time.monotonic() < deadline_s:
            saved = [event.step for event in self.events() if isinstance(event, CheckpointSaved)]
            if saved and saved[-1] > after:
                return int(saved[-1])
            time.sleep(0.05)
        raise AssertionError([agent.errors() for agent in self.agents])


def start_two(folder: Path, made: list[Machine], changes: dict[str, Any] | None = None) -> Running:
    path = str(write_recipe(folder, merged(merged(DIGITS, TWO), changes or {})))
    return Running(folder, made, [start_agent(made[node], node, path, made[0]) for node in (0, 1)])


def start_agent(machine: Machine, node: int, path: str, head: Machine) -> Started:
    where = ("--node", str(node), "--head", f"{head.address}:{PORT}")
    return machine.start("declarative_train", "run", path, *where, "--quiet", "--resume")


def send(number: int, *pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # its round is over
            os.kill(pid, number)


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault: what happens, the node that it happens to, and a pattern of the message, which names the culprit."""

    name: str
    node: int
    happen: Callable[[Running], None]
    culprit: str
    codes: tuple[int | None, int | None]


def _rank(number: int, node: int) -> Callable[[Running], None]:
    return lambda run: send(number, *ranks_below(run.agents[node]).values())


def _agent(number: int, node: int) -> Callable[[Running], None]:
    return lambda run: send(number, run.agents[node].pid)


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
HEAD_LOST = r"node 0 at [\d.]+:\d+ is lost"
FAULTS = (
    Fault("SIGKILL of a rank", 1, _rank(KILL, 1), r"rank 1 \(node 1 \(box1\)\).*SIGKILL", (3, 3)),
    Fault("SIGKILL of a rank of the head", 0, _rank(KILL, 0), r"rank 0 \(node 0 \(box0\)\).*SIGKILL", (3, 3)),
    Fault("SIGKILL of an agent", 1, _agent(KILL, 1), r"node 1 \(box1\) did not answer", (3, -9)),
    Fault("SIGKILL of the head's agent", 0, _agent(KILL, 0), HEAD_LOST, (-9, 3)),
    Fault(
        "SIGKILL of a node",
        1,
        lambda run: send(KILL, *reversed(family(run.agents[1].pid))),
        r"node 1 \(box1\) did not answer",
        (3, -9),
    ),
    Fault("SIGKILL of the head", 0, lambda run: send(KILL, *reversed(family(run.agents[0].pid))), HEAD_LOST, (-9, 3)),
    Fault("SIGSTOP of a rank", 1, _rank(STOP, 1), r"rank 1 \(node 1 \(box1\)\) did not answer", (3, 3)),
    Fault("SIGSTOP of a rank of the head", 0, _rank(STOP, 0), r"rank 0 \(node 0 \(box0\)\) did not answer", (3, 3)),
    Fault("SIGSTOP of an agent", 1, _agent(STOP, 1), r"node 1 \(box1\) did not answer", (3, None)),
    Fault("SIGSTOP of the head's agent", 0, _agent(STOP, 0), HEAD_LOST, (None, 3)),
    Fault("cable cut", 1, lambda run: run.machines[1].cut_cable(), r"node 1 \(box1\) did not answer", (3, 3)),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    message: str
    codes: tuple[int | None, int | None]
    lost: int

    def problems(self, fault: Fault) -> list[str]:
        """Return what is not as it should be."""
        found = [] if re.search(fault.culprit, self.message) else [f"the culprit is not named: {self.message}"]
        if self.codes != fault.codes:
            found.append(f"exit codes {self.codes}, not {fault.codes}")
        return found if self.lost <= INTERVAL else [*found, f"{self.lost} steps are lost"]


def try_fault(fault: Fault) -> Outcome:
    """Let a fault happen, and return what came of it. An agent that was stopped is ended, without a code."""
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    os.environ["DTRAIN_TIMEOUT_S"] = "30"
    with tempfile.TemporaryDirectory() as name, machines(2) as made:
        folder = Path(name)
        write_data(folder)
        run = start_two(folder, made)
        run.wait_for_checkpoint()
        fault.happen(run)
        codes: list[int | None] = []
        said: list[str] = []
        for agent, wanted in sorted(zip(run.agents, fault.codes, strict=True), key=lambda each: each[1] is None):
            if wanted is None:
                agent.kill()
            code, _, errors = finish(agent, timeout=100)
            codes.append(None if wanted is None else code)
            said += [line for line in errors.splitlines() if line.startswith("dtrain: ")]
        if fault.codes[0] is None:
            codes.reverse()
        events = run.events()
        saved = max(event.step for event in events if isinstance(event, CheckpointSaved))
        last = max(event.step for event in events if isinstance(event, StepDone))
        message = next((line for line in said if re.search(fault.culprit, line)), "; ".join(said))
        return Outcome(message, (codes[0], codes[1]), max(0, last - saved))


def row(fault: Fault, outcome: Outcome) -> str:
    message = outcome.message.removeprefix("dtrain: ").partition("; the sys")[0]
    message = re.sub(r"(step|for|number|of) \d+", r"\1 N", message)
    codes = " and ".join("stopped" if code is None else str(code) for code in outcome.codes)
    return f"| {fault.name} | {message} | {codes} |"


HEAD = f"""# Faults

What a run on two nodes says when a part of it fails, without `layout.max_restarts`, and the exit codes of the agents
of node 0 and node 1. With `max_restarts` the same message is followed by "the run starts again". In each row, at most
the steps since the newest checkpoint were lost ({INTERVAL} here, the interval of checkpoints). `make faults` lets every
fault happen, on network namespaces, and writes this table. DTRAIN_TIMEOUT_S was 30.

| fault | message | exit codes |
|---|---|---|
"""


def main(names: list[str]) -> int:
    rows, wrong = [], 0
    for fault in FAULTS:
        if names and fault.name not in names:
            continue
        begun_s = time.monotonic()
        outcome = try_fault(fault)
        problems = outcome.problems(fault)
        wrong += bool(problems)
        rows.append(row(fault, outcome))
        print(rows[-1], f"{outcome.lost} steps lost, {time.monotonic() - begun_s:.0f} s", *problems, flush=True)
    if not names and not wrong:
        PAGE.write_text(HEAD + "\n".join(rows) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
