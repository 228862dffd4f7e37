"""Messages between the agents of nodes and the coordinator, under keys of the key-value store. Each is a complete
state, so that a lost or repeated message does no harm.

    status/<agent>    NodeStatus of an agent, written in every exchange
    order             Order to all agents
    round/<number>    Assignment of a round (a start of all ranks)
    hello             number of agents that have registered
    hello/<k>         name of the k-th agent
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
    """Result of a round (a start of all ranks) on one node.

    code      exit code of the ranks; None if they failed or were stopped before rank 0 ended
    deaths    dict from each failed rank to its exit code
    failures  reports of the failures
    late      why ranks that were asked to stop did not save, or None
    waiting   dict from file name to content: written by ranks that waited too long for others
    nodes     dict from each rank to a text that names its node"""

    code: int | None
    deaths: dict[int, int]
    failures: tuple[Failure, ...] = ()
    late: str | None = None
    waiting: dict[str, str] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)  # in a result for several nodes


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """State of one agent, which it sends to the coordinator. A round is one start of all ranks.

    beat         how many times it has sent its state
    round, run   number and run folder of its last round
    result       how that round ended on this node; None while its ranks work
    asked_by     signal that asked the agent to stop, or None"""

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
    """Order of the coordinator to all agents. `refused`: (agent, reason) for each agent that is not accepted. `do` is
    one of:

    `wait`  wait for what `awaited` says
    `run`   start the ranks of round `number`, if the agent is one of `agents`
    `save`  ask the ranks to save a checkpoint and exit
    `end`   kill the ranks
    `exit`  exit with the exit code `code`
    """

    do: Literal["wait", "run", "save", "end", "exit"]
    number: int = 0
    agents: tuple[str, ...] = ()
    awaited: str = ""
    code: int = 0
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Node that takes part in a round (a start of all ranks): its agent, node index and host."""

    agent: str
    node: int
    host: str

    def __str__(self) -> str:
        return f"node {self.node} ({self.host})"


@dataclass(frozen=True, slots=True)
class Assignment:
    """Facts that the agents need for a round (a start of all ranks). `number`: number of the round. `places`: the nodes
    that take part, in the order of their ranks. `taken`: (name, value) of the environment variables that the recipe
    uses; all nodes use the values of node 0."""

    number: int
    job: RankJob
    places: tuple[Place, ...]
    taken: tuple[tuple[str, str], ...] = ()
