"""Faults of a run on two nodes, and the messages that it prints.

python -m tests.faults [--times N] [NAME...]     # every fault, or those that are named
python -m tests.faults --culprits N [--jobs 4]   # N cases of each kind of culprit

Without names, the first form writes the table in docs/faults.md, the second one the numbers below it. The machines are
network namespaces. A row of the table has the message, which must name the culprit, and the exit codes of the agents.
Steps are lost if they come after the newest checkpoint; their number is limited. A fault happens some time after a
checkpoint, which differs from case to case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from declarative_train.run.event import CheckpointSaved, Notice, RunStarted, StepDone
from declarative_train.run.sinks.jsonl import read_events
from tests.engine.made_recipes import DIGITS, merged, write_data, write_recipe
from tests.house import ROOT
from tests.machines import Machine, ip, machines, slow_cable
from tests.started import Started, family, finish, ranks_below

PORT = 29545
LIMIT_S = 300
INTERVAL = 20  # steps between checkpoints
LONGEST_PAUSE_S = 2.0
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
    """Run of `made.yaml` in a folder, on two of the machines, each with one agent. `ends`: functions that undo what a
    fault did to this machine."""

    folder: Path
    machines: list[Machine]
    agents: list[Started]
    ends: ExitStack = field(default_factory=ExitStack)
    pause_s: float = 0.0  # time from a checkpoint to the fault

    def start(self) -> None:
        for node in (0, 1):
            self.start_agent(node)

    def start_agent(self, node: int, place: int | None = None) -> None:
        """Start the agent of node `node` on the machine `place` (None: its own machine). The agent may have been
        started before."""
        where = ("--node", str(node), "--head", f"{self.machines[0].address}:{PORT}", "--quiet", "--resume")
        place = node if place is None else place
        started = self.machines[place].start("declarative_train", "run", str(self.folder / "made.yaml"), *where)
        self.agents[place : place + 1] = [started]

    def events(self) -> list[Any]:
        paths = (self.folder / "runs" / "made").glob("*/events.jsonl")
        return [event for path in sorted(paths) for event in read_events(path)]

    def last(self, kind: type[Any]) -> int:
        """Return the step of the last event of a kind; 0 if there is none."""
        return max((event.step for event in self.events() if isinstance(event, kind)), default=0)

    def wait_for_checkpoint(self, after: int = 0) -> int:
        """Wait until a checkpoint after step `after` is saved, and return its step."""
        self.wait_until(lambda: self.last(CheckpointSaved) > after)
        return self.last(CheckpointSaved)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < deadline_s, [agent.errors() for agent in self.agents]
            time.sleep(0.1)

    def wait_for_notice(self, text: str) -> None:
        self.wait_until(lambda: any(text in event.message for event in self.events() if isinstance(event, Notice)))

    def wait_until_served(self, machine: int, port: int) -> None:
        line = f"netns exec {self.machines[machine].namespace} ss -Htln sport = {port}"
        self.wait_until(lambda: bool(ip(line)))

    def break_store(self, fault: str) -> None:
        (self.folder / "fault").write_text(fault)


def send(number: int, *pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # the process has ended already
            os.kill(pid, number)


KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
HEAD_LOST = r"node 0 at [\d.]+:\d+ is lost"
ABSENT, NUMBER = "absent or late node", "wrong number"
NODE_LOST = r"node 1 \(box1\) did not answer"


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of a run.

    play       function that starts the run and makes the fault happen
    said       pattern of the message, which must name the culprit
    codes      exit codes of the agents; None: the agent is stopped or not started
    changes    changes of the recipe
    limits     environment variables
    most_lost  maximum number of lost steps
    culprit    kind of the culprit, for `--culprits`
    """

    name: str
    play: Callable[[Running], None]
    said: str
    codes: tuple[int | None, ...] = (3, 3)
    changes: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    most_lost: float = INTERVAL
    culprit: str = ""


def strike(happen: Callable[[Running], object]) -> Callable[[Running], None]:
    """Return a `play` for a fault that ends a run: it starts the run, waits for a checkpoint, and calls `happen`."""

    def play(run: Running) -> None:
        run.start()
        run.wait_for_checkpoint()
        time.sleep(run.pause_s)
        happen(run)

    return play


def pass_by(happen: Callable[[Running], object]) -> Callable[[Running], None]:
    """Return a `play` for a fault that a run survives: after `happen`, the run saves two checkpoints, and is stopped by
    a signal."""

    def play(run: Running) -> None:
        strike(happen)(run)
        for _ in range(2):
            run.wait_for_checkpoint(run.last(CheckpointSaved))
        send(TERM, *(agent.pid for agent in run.agents))

    return play


def ranks(number: int, node: int) -> Callable[[Running], None]:
    return lambda run: send(number, *ranks_below(run.agents[node]).values())


def agent(number: int, node: int) -> Callable[[Running], None]:
    return lambda run: send(number, run.agents[node].pid)


def node(number: int) -> Callable[[Running], None]:
    return lambda run: send(KILL, *reversed(family(run.agents[number].pid)))


def kill_store(run: Running) -> None:
    """Kill the process that serves the store of the ranks: the only child of the head's agent that is not a rank."""
    agent = run.agents[0]
    send(KILL, *set(family(agent.pid)) - {agent.pid, *ranks_below(agent).values()})


def start_only(number: int, place: int | None = None) -> Callable[[Running], None]:
    return lambda run: run.start_agent(number, place)


def set_clock_back(run: Running) -> None:
    run.machines[0].set_clock_back(3600)


def start_late(run: Running) -> None:
    run.start_agent(0)
    run.wait_until(lambda: "waiting for node 1 of 2 (10 s)" in run.agents[0].errors())
    run.start_agent(1)
    run.wait_for_checkpoint()
    send(TERM, *(agent.pid for agent in run.agents))


def start_two_heads(run: Running) -> None:
    run.start_agent(0)
    run.start_agent(0, place=1)


def start_again_elsewhere(run: Running) -> None:
    run.start_agent(1, place=2)


def take_port(run: Running) -> None:
    run.machines[0].start("http.server", str(PORT), cwd=run.folder)
    run.wait_until_served(0, PORT)
    run.start_agent(0)


def slow_link(run: Running) -> None:
    run.ends.enter_context(slow_cable(run.machines[1], run.machines, 0.05, 0.01))
    run.start()
    for _ in range(2):
        run.wait_for_checkpoint(run.last(CheckpointSaved))
    send(TERM, *(agent.pid for agent in run.agents))


def fill_disk(run: Running) -> None:
    with suppress(OSError), open(run.folder / "runs" / "full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def on_small_disk(run: Running) -> None:
    runs = run.folder / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(runs)], check=True, timeout=20)
    run.ends.callback(subprocess.run, ["umount", "-l", str(runs)], check=True, timeout=20)
    strike(fill_disk)(run)


def with_store(play: Callable[[Running], None]) -> Callable[[Running], None]:
    """Return a `play` that first starts an object store on a third machine."""

    def play_with_store(run: Running) -> None:
        pytest.importorskip("s3fs")
        pytest.importorskip("moto")
        run.break_store("")
        run.machines[2].start("tests.faulty_store", str(STORE_PORT), str(run.folder / "fault"), cwd=ROOT)
        run.wait_until_served(2, STORE_PORT)
        play(run)

    return play_with_store


def for_a_while(
    begin: Callable[[Running], object], end: Callable[[Running], object], seconds: float
) -> Callable[[Running], None]:
    def happen(run: Running) -> None:
        begin(run)
        run.wait_for_notice("is tried again")
        before = run.last(StepDone)
        time.sleep(seconds)
        end(run)
        assert run.last(StepDone) > before  # training continued

    return happen


def cut_store(run: Running) -> None:
    run.machines[2].cut_cable()


def plug_store_in(run: Running) -> None:
    run.machines[2].plug_cable_in()


STORE_PORT = 9000
STORE = {"checkpoint": {"dir": "s3://made/kept", "background": True}, "logging": {"every": "10 steps"}}
CLIENT = '{"config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 5, "read_timeout": 5}}'
AWS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": f"http://10.77.0.3:{STORE_PORT}",
    "AWS_MAX_ATTEMPTS": "1",
    "FSSPEC_S3": CLIENT,
}
BRIEF = {"DTRAIN_STORE_S": "15"}
SOON = {"DTRAIN_START_S": "12"}
AWAY = r"the checkpoint of step \d+ cannot be written to s3://"
AGAIN = r"the checkpoint of step \d+ cannot be written yet and is tried again"
FAULTS = (
    Fault("SIGKILL of a rank", strike(ranks(KILL, 1)), r"rank 1 \(node 1 \(box1\)\).*SIGKILL", culprit="rank"),
    Fault(
        "SIGKILL of a rank of the head",
        strike(ranks(KILL, 0)),
        r"rank 0 \(node 0 \(box0\)\).*SIGKILL",
        culprit="rank",
    ),
    Fault("SIGKILL of an agent", strike(agent(KILL, 1)), NODE_LOST, (3, -9), culprit="agent"),
    Fault("SIGKILL of the head's agent", strike(agent(KILL, 0)), HEAD_LOST, (-9, 3), culprit="agent"),
    Fault("SIGKILL of a node", strike(node(1)), NODE_LOST, (3, -9), culprit="node"),
    Fault("SIGKILL of the head", strike(node(0)), HEAD_LOST, (-9, 3), culprit="node"),
    Fault("SIGKILL of the process that serves the store", strike(kill_store), "the process that serves the store"),
    Fault("SIGSTOP of a rank", strike(ranks(STOP, 1)), r"rank 1 \(node 1 \(box1\)\) did not answer", culprit="rank"),
    Fault(
        "SIGSTOP of a rank of the head",
        strike(ranks(STOP, 0)),
        r"rank 0 \(node 0 \(box0\)\) did not answer",
        culprit="rank",
    ),
    Fault("SIGSTOP of an agent", strike(agent(STOP, 1)), NODE_LOST, (3, None), culprit="agent"),
    Fault("SIGSTOP of the head's agent", strike(agent(STOP, 0)), HEAD_LOST, (None, 3), culprit="agent"),
    Fault(
        "missing node", start_only(0), r"node 1 of 2 did not start within 12 s", (3, None), limits=SOON, culprit=ABSENT
    ),
    Fault("late node", start_late, r"waiting for node 1 of 2 \(10 s\)", (75, 75), culprit=ABSENT),
    Fault(
        "second node with number 0",
        start_two_heads,
        "is not an address of box1, which is node 0",
        (3, 3),
        limits=SOON,
        culprit=NUMBER,
    ),
    Fault(
        "number that is given twice",
        strike(start_again_elsewhere),
        "another process is node 1, on box2",
        (3, 3, 3),
        culprit=NUMBER,
    ),
    Fault("port in use", take_port, r"cannot listen on port \d+ of box0: address already in use", (3, None)),
    Fault("cable cut", strike(lambda run: run.machines[1].cut_cable()), NODE_LOST, culprit="cable"),
    Fault("100 ms latency and 1% loss", slow_link, "", (75, 75)),
    Fault("clock of the head set back an hour", pass_by(set_clock_back), "", (75, 75)),
    Fault(
        "store unreachable for a minute",
        with_store(pass_by(for_a_while(cut_store, plug_store_in, 60))),
        AGAIN,
        (75, 75),
        STORE,
        AWS,
    ),
    Fault("store unreachable for good", with_store(strike(cut_store)), AWAY, (3, 3), STORE, AWS | BRIEF, inf),
    Fault(
        "store that answers 503 for a while",
        with_store(pass_by(for_a_while(lambda run: run.break_store("503"), lambda run: run.break_store(""), 5))),
        AGAIN,
        (75, 75),
        STORE,
        AWS,
    ),
    Fault(
        "slow store, 0.2 s a request", with_store(pass_by(lambda run: run.break_store("0.2"))), "", (75, 75), STORE, AWS
    ),
    Fault("disk full", on_small_disk, r"rank 0.*no space left on the device"),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


@dataclass(frozen=True, slots=True)
class Outcome:
    message: str
    codes: tuple[int | None, ...]
    lost: int

    def problems(self, fault: Fault) -> list[str]:
        """Return the differences from what the fault should give, as sentences."""
        found = [] if re.search(fault.said, self.message) else [f"the culprit is not named: {self.message}"]
        if self.codes != fault.codes:
            found.append(f"exit codes {self.codes}, not {fault.codes}")
        return found if self.lost <= fault.most_lost else [*found, f"{self.lost} steps are lost"]


def try_fault(fault: Fault, seed: int = 0) -> Outcome:
    """Make a fault happen, and return its outcome. An agent that was stopped is killed at the end, and has no exit
    code. `seed`: decides the time of the fault."""
    before = dict(os.environ)
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    os.environ.update({"DTRAIN_TIMEOUT_S": "30"} | fault.limits)
    try:
        with tempfile.TemporaryDirectory() as name, machines(3) as made, ExitStack() as ends:
            write_data(Path(name))
            write_recipe(Path(name), merged(merged(DIGITS, TWO), fault.changes))
            run = Running(Path(name), made, [], ends, LONGEST_PAUSE_S * random.Random(seed).random())
            fault.play(run)
            return conclude(run, fault)
    finally:
        os.environ.clear()
        os.environ.update(before)


def conclude(run: Running, fault: Fault) -> Outcome:
    """Wait until the agents have exited. Return their message and exit codes, and the number of lost steps."""
    codes: list[int | None] = [None] * len(fault.codes)
    said: list[str] = []
    order = sorted(range(len(run.agents)), key=lambda place: fault.codes[place] is None)
    for place in order:
        if fault.codes[place] is None:
            run.agents[place].kill()
        code, _, errors = finish(run.agents[place], timeout=LIMIT_S)
        codes[place] = None if fault.codes[place] is None else code
        said += [line for line in errors.splitlines() if line.startswith("dtrain: ")]
    said += [event.message for event in run.events() if isinstance(event, Notice) and event.is_warning]
    message = next((line for line in said if re.search(fault.said, line)), "; ".join(said)) if fault.said else ""
    return Outcome(message, tuple(codes), max(0, run.last(StepDone) - run.last(CheckpointSaved)))


def measure_return(number: int) -> float:
    """Kill node `number` of a run, and start its command again. Return the seconds from this start until the run
    continues."""
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    with tempfile.TemporaryDirectory() as name, machines(2) as made:
        write_data(Path(name))
        write_recipe(Path(name), merged(merged(DIGITS, TWO), {"layout": {"max_restarts": 3}}))
        run = Running(Path(name), made, [])
        strike(node(number))(run)
        finish(run.agents[number])
        begun_s = time.monotonic()
        run.start_agent(number)
        run.wait_until(lambda: sum(isinstance(event, RunStarted) for event in run.events()) == 2)
        taken_s = time.monotonic() - begun_s
        run.wait_for_checkpoint(run.last(CheckpointSaved))
        send(TERM, *(agent.pid for agent in run.agents))
        assert [finish(agent)[0] for agent in run.agents] == [75, 75]
    return taken_s


def row(fault: Fault, outcome: Outcome) -> str:
    message = outcome.message.removeprefix("dtrain: ").partition("; the sys")[0] or "none: training continues"
    message = re.sub(r"s3://\S+?/checkpoints", "s3://...", message.partition(": Connect timeout")[0])
    message = re.sub(r"(step|for|number|all_reduce of) \d+", r"\1 N", message).replace(" in step N for N s", " for N s")
    codes = " and ".join("none" if code is None else str(code) for code in outcome.codes)
    return f"| {fault.name} | {message} | {codes} |"


HEAD = f"""# Faults

What a run on two nodes prints when a part of it fails, without `layout.max_restarts`, and the exit codes of the agents
of node 0 and node 1 (none: stopped, or not started). With `max_restarts` a failure is followed by "the run starts
again". In each row at most {INTERVAL} steps were lost, those since the newest checkpoint; only while a store is
unreachable training continues without new checkpoints, for DTRAIN_STORE_S at most. A run that continued was stopped by
a signal after two more checkpoints, with exit code 75. `make faults` lets every fault happen, on network namespaces,
and writes this table; latency and loss are those of a program that forwards frames (`tests/slow_cable.py`).
DTRAIN_TIMEOUT_S was 30.

| fault | message | exit codes |
|---|---|---|
"""


RETURN = """A node of two was killed and its command started again: training continued {:.1f} s later (node 1), and
{:.1f} s later (node 0), without the time to import torch.
"""


CASES = """
Each kind of culprit in many cases, some at a time: the message must name it, the exit codes and the lost steps must be
those above. `python -m tests.faults --culprits N` counts again.

"""
BEGIN, END = "<!-- begin: culprits -->", "<!-- end: culprits -->"


def try_aloud(name: str, seed: int) -> Outcome:
    """Make a fault happen, print its outcome, and return it."""
    fault, begun_s = BY_NAME[name], time.monotonic()
    try:
        outcome = try_fault(fault, seed)
    except AssertionError as error:  # an agent did not end
        outcome = Outcome(str(error), (), 0)
    taken = f"{outcome.lost} lost, {time.monotonic() - begun_s:.0f} s"
    print(row(fault, outcome), taken, *outcome.problems(fault), flush=True)
    return outcome


def count_right(num_cases: int, num_jobs: int) -> int:
    """Try `num_cases` cases of each kind of culprit, `num_jobs` at a time, and write the numbers to the page. Return 1
    if any outcome was wrong, else 0."""
    kinds = dict.fromkeys(fault.culprit for fault in FAULTS if fault.culprit)
    cases: list[tuple[str, int]] = []
    for kind in kinds:
        faults = [fault for fault in FAULTS if fault.culprit == kind]
        cases += [(faults[seed % len(faults)].name, seed) for seed in range(num_cases)]
    random.Random(0).shuffle(cases)
    tried, right = Counter[str](), Counter[str]()
    with ProcessPoolExecutor(num_jobs, multiprocessing.get_context("spawn")) as pool:
        for (name, _), outcome in zip(cases, pool.map(try_aloud, *zip(*cases, strict=True)), strict=True):
            fault = BY_NAME[name]
            tried[fault.culprit] += 1
            right[fault.culprit] += not outcome.problems(fault)
            rows = [f"| {kind} | {tried[kind]} | {right[kind]} |" for kind in kinds]
            text = "\n".join(["", "| culprit | cases | right |", "|---|---|---|", *rows, END, ""])
            # written after each case, so that an interruption leaves the cases so far
            PAGE.write_text(PAGE.read_text().partition(BEGIN)[0] + BEGIN + text)
    return 1 if right.total() < len(cases) else 0


def main(words: list[str]) -> int:
    """Try each fault, or those that are named, as often as `--times` says. Return 1 if any outcome was wrong, else
    0."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first time")
    parser.add_argument("--culprits", type=int, metavar="N", help="cases of each kind of culprit")
    parser.add_argument("--jobs", type=int, default=4, help="cases at a time")
    args = parser.parse_args(words)
    if args.culprits is not None:
        return count_right(args.culprits, args.jobs)
    rows, wrong = [], 0
    for fault in FAULTS:
        if args.names and fault.name not in args.names:
            continue
        num_right = 0
        for seed in range(args.seed, args.seed + args.times):
            outcome = try_aloud(fault.name, seed)
            num_right += not outcome.problems(fault)
        print(f"{fault.name}: right in {num_right} of {args.times}", flush=True)
        wrong += num_right < args.times
        rows.append(row(fault, outcome))
    if not args.names:
        seconds = [median(measure_return(number) for _ in range(3)) for number in (1, 0)]
        print(*seconds)
        if not wrong:
            _, begin, counts = PAGE.read_text().partition(BEGIN)
            PAGE.write_text(HEAD + "\n".join(rows) + "\n\n" + RETURN.format(*seconds) + CASES + begin + counts)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
