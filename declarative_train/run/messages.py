"""Messages between the agents of nodes and the coordinator, through the store. Each is a whole state, so that one that
is lost or read twice does no harm.

    status/<agent>    NodeStatus of an agent, written at every look
    order             Order to all agents
    round/<number>    Assignment of a round
    hello             number of agents that have begun; agent k writes its name to hello/<k>
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from declarative_train.engine.failures import Failure
from declarative_train.run.heartbeat import Beat
from declarative_train.run.rank_job import RankJob

LOOK_S = 0.2  # between two exchanges of an agent and the coordinator


@dataclass(frozen=True, slots=True)
class NodeResult:
    """End of a round on one node: the exit code of its ranks, or None and why there is none. `deaths` are the exit
    codes of ranks that failed; `late` is why ranks that were asked to stop did not save."""

    code: int | None
    deaths: dict[int, int]
    failures: tuple[Failure, ...] = ()
    late: str | None = None
    nodes: dict[int, str] = field(default_factory=dict)  # of ranks, in a result of several nodes


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """State of an agent. `beat` grows with every look; `run` is the folder of the run in whose last round it took part;
    `round` is the number of that round, and `result` its end on this node, None while its ranks work. `asked_by`:
    the signal that asked it to stop. `beats`: the newest ones of its ranks. `has_left`: it exits."""

    agent: str
    node: int
    host: str
    num_gpus: int
    beat: int = 0
    run: str | None = None
    round: int = 0
    result: NodeResult | None = None
    asked_by: int | None = None
    beats: tuple[Beat, ...] = ()
    has_left: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """Decision for all agents. `wait` for `awaited`; `run` the round `number`, if this agent is among `agents`; `save`:
    stop its ranks with a checkpoint; `end`: kill them; `exit` with `code`. `refused` are reasons for single agents."""

    do: Literal["wait", "run", "save", "end", "exit"]
    number: int = 0
    agents: tuple[str, ...] = ()
    awaited: str = ""
    code: int = 0
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Node that takes part in a round: its agent, number and host."""

    agent: str
    node: int
    host: str

    def __str__(self) -> str:
        return f"node {self.node} ({self.host})"


@dataclass(frozen=True, slots=True)
class Assignment:
    """Job of a round and its nodes, in the order of their ranks. `taken` are environment variables that recipes used,
    with their values."""

    number: int
    job: RankJob
    places: tuple[Place, ...]
    taken: tuple[tuple[str, str], ...] = ()
