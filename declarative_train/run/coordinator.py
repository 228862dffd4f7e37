"""Coordinator of a run: it decides which nodes take part, when a round (a start of all ranks) begins, why it ended, and
whether another one follows. A round that ends on one node is ended on all.

It has no process of its own: the agent of node 0 calls `exchange` while it waits and while its ranks work. On a single
machine the same code runs, without other agents."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from declarative_train.core.amounts import in_ranges
from declarative_train.core.names import STRAGGLERS
from declarative_train.core.secrets import list_variables
from declarative_train.engine.failures import Failure, RunFailure, limit_s, write_failure
from declarative_train.run.heartbeat import SILENT_S, Pace, describe_stuck, time_stuck
from declarative_train.run.launcher_rendezvous import put, take
from declarative_train.run.messages import LOOK_S, Assignment, NodeResult, NodeStatus, Order, Place
from declarative_train.run.processes import explain_failure, resume_hint, say, unsaved_message
from declarative_train.run.signals import EXIT_FAILED, EXIT_STOPPED, code_without_save
from declarative_train.run.stragglers import Stragglers, name_rank

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from declarative_train.run.rank_job import RankJob
    from declarative_train.run.session import Session

LOST_S = 20.0  # an agent that has not answered for this time is lost
SUSPECT_S = 5.0  # the same, if ranks have lost a connection; also the time to wait for a report of the cause
SETTLE_S = 3.0  # wait for more nodes after a new one, if the number of nodes is a range
CLOSING_S = 10.0  # for the agents to end their ranks
PARTING_S = 5.0  # for the agents to read that the run is over


@dataclass(slots=True)
class Seen:
    """Newest status that the coordinator has received from one agent. `since_s`: time at which the agent registered.
    `changed_s`: time at which its status last changed."""

    status: NodeStatus
    changed_s: float
    since_s: float

    @property
    def place(self) -> Place:
        return Place(self.status.agent, self.status.node, self.status.host)


class Coordinator:
    """Coordinator of a run, on node 0. `store`: key-value store from which the agents of other nodes read their orders;
    None on a single node. `lines`: text that is printed at the end of the run."""

    def __init__(self, session: Session, store: Store | None = None) -> None:
        self._session, self._store = session, store
        self._seen: dict[int, Seen] = {}  # the newest agent of each node
        self._names: list[str] = []  # the other agents, in the order in which they began
        self._refused: dict[str, str] = {}
        self._state: Literal["waiting", "running", "closing", "over"] = "waiting"
        self._begun_s = self._since_s = time.monotonic()
        self._number = 0
        self._places: tuple[Place, ...] = ()
        self._job: RankJob | None = None
        self._reason = ""  # why the coordinator ended the round
        self._echo_s: float | None = None
        self._paces: dict[int, Pace] = {}
        self._stragglers = Stragglers()
        self._has_warned = False
        self._order = Order("wait", awaited="node 0 to compile the recipe")
        self.assignment: Assignment | None = None
        self.lines: list[str] = []

    def exchange(self, status: NodeStatus) -> Order:
        """Process the newest status of every node's agent: `status` of node 0, and those that the other nodes have
        sent. Return the order that all agents must carry out."""
        now_s = time.monotonic()
        self._seen[status.node] = Seen(status, now_s, self._begun_s)
        if self._store is not None:
            put(self._store, "beat", status.beat)
            self._read_others(now_s)
        match self._state:
            case "waiting":
                self._gather(now_s)
            case "running":
                self._watch(now_s)
            case "closing":
                self._close(now_s)
            case "over":
                pass
        return self._order

    def wait_for_agents(self) -> None:
        """Wait until all other agents have read that the run is over. Agents that no longer answer are not waited
        for."""
        deadline_s = time.monotonic() + PARTING_S
        while self._store is not None and (now_s := time.monotonic()) < deadline_s:
            self._read_others(now_s)
            if not any(seen.status.agent in self._names for seen in self._present(now_s)):
                return
            time.sleep(LOOK_S)

    def finish(self, code: int, lines: Sequence[str] = ()) -> None:
        """Order all agents to exit with the exit code `code`. `lines`: text to print at the end."""
        self._state, self.lines = "over", list(lines)
        self._send(Order("exit", self._number, code=code))

    def _send(self, order: Order) -> None:
        self._order = replace(order, refused=tuple(self._refused.items()))
        if self._store is not None:
            put(self._store, "order", self._order)

    def _others(self) -> list[Seen]:
        return [seen for seen in self._seen.values() if seen.status.agent in self._names]

    def _read_others(self, now_s: float) -> None:
        """Register the agents that are new in the key-value store, and read the newest status of each agent."""
        store = self._store
        assert store is not None
        for number in range(len(self._names) + 1, store.add("hello", 0) + 1):
            name = str(take(store, f"hello/{number}"))
            self._names.append(name)
            self._admit(take(store, f"status/{name}"), now_s)
        for name in self._names:
            if name in self._refused:
                continue
            status: NodeStatus = take(store, f"status/{name}")
            if self._seen[status.node].status != status:
                self._seen[status.node] = replace(self._seen[status.node], status=status, changed_s=now_s)

    def _admit(self, status: NodeStatus, now_s: float) -> None:
        """Register a new agent. If an agent with the same node index is registered and has not left, one of the two is
        refused. For node 0 this is the new agent. For any other node it is the old agent, which the new one
        replaces."""
        before = self._seen.get(status.node)
        if before is not None and not before.status.has_left:
            loser, winner = (status, before.status) if status.node == 0 else (before.status, status)
            self._refused[loser.agent] = (
                f"another process is node {status.node}, on {winner.host}; help: number the nodes from 0, and start "
                "each once"
            )
            self._send(self._order)
            if loser is status:
                return
        self._seen[status.node] = Seen(status, now_s, now_s)

    def _present(self, now_s: float) -> list[Seen]:
        """Return the agents that answer, sorted by the index of their node. `now_s`: the current time of
        `time.monotonic`."""
        return [
            seen
            for _, seen in sorted(self._seen.items())
            if not seen.status.has_left and now_s - seen.changed_s < SUSPECT_S
        ]

    def _gather(self, now_s: float) -> None:
        """Begin a round (a start of all ranks) if enough nodes are present. If the recipe gives a range of nodes and
        not all are present, first wait a moment for more. End the run if a stop was requested. End it with an error if
        the recipe has no plan for any number of nodes up to the number present."""
        present = self._present(now_s)
        if present[0].status.asked_by is not None:
            self._stop_waiting()
            return
        most, least = self._session.num_nodes, self._session.min_nodes
        settled_s = max(self._since_s, *(seen.since_s for seen in present)) + SETTLE_S
        if len(present) < least or (len(present) < most and now_s < settled_s):
            self._wait_for_nodes(present, least if len(present) < least else most, now_s)
            return
        if (run := next((seen.status.run for seen in self._others() if seen.status.run is not None), None)) is not None:
            self._session.adopt(run)  # the head was restarted during the run
        number = self._session.fit(len(present))
        if number is None:
            why = f"the recipe fits no number of nodes from {least} to {len(present)}"
            self.finish(EXIT_FAILED, [f"dtrain: {why}; `dtrain plan --set layout.nodes={least}` says why"])
            return
        chosen = present[:number]
        try:
            self._job = self._session.make_job([seen.status for seen in chosen])
        except (RunFailure, OSError) as error:
            self.finish(EXIT_FAILED, [f"dtrain: {self._session.explain(error)}"])
            return
        self._number += 1
        self._places = tuple(seen.place for seen in chosen)
        self.assignment = Assignment(self._number, self._job, self._places, list_variables())
        if self._store is not None:
            put(self._store, f"round/{self._number}", self.assignment)
        self._state, self._since_s, self._reason, self._echo_s = "running", now_s, "", None
        self._paces, self._has_warned, self._stragglers = {}, False, Stragglers()
        self._write_stragglers()
        self._send(Order("run", self._number, tuple(place.agent for place in self._places)))

    def _wait_for_nodes(self, present: list[Seen], wanted: int, now_s: float) -> None:
        numbers = {seen.status.node for seen in present}
        missing = [node for node in range(wanted) if node not in numbers][: wanted - len(present)]
        awaited = f"{'nodes' if len(missing) > 1 else 'node'} {in_ranges(missing)} of {wanted}"
        if now_s - self._since_s > (most_s := limit_s("DTRAIN_START_S")):
            self.finish(EXIT_FAILED, [f"dtrain: {awaited} did not start within {most_s:.0f} s (DTRAIN_START_S)"])
        elif awaited != self._order.awaited or self._order.do != "wait":
            self._send(Order("wait", self._number, awaited=awaited))

    def _stop_waiting(self) -> None:
        hint = [] if self._job is None else resume_hint(self._job)
        code = code_without_save(False, self._asked_by) if self._job is None else EXIT_STOPPED
        self.finish(code, [unsaved_message("while it waited for other nodes", loses=False), *hint])

    def _results(self) -> dict[Place, NodeResult]:
        """Return a dict from node to the result of this round (a start of all ranks) on it. Nodes that have not
        reported a result yet are left out."""
        found = {}
        for place in self._places:
            seen = self._seen.get(place.node)
            if seen is None or (seen.status.agent, seen.status.round) != (place.agent, self._number):
                continue
            if seen.status.result is not None:
                found[place] = seen.status.result
        return found

    def _watch(self, now_s: float) -> None:
        """Watch a round (a start of all ranks). If it has ended on all nodes, call `_decide`. End it on all nodes if
        ranks failed on one node, if a node is lost, or if the ranks make no progress. If the next round could use more
        nodes, first order a checkpoint."""
        results = self._results()
        if len(results) == len(self._places):
            self._decide(results)
            return
        failed = [result for result in results.values() if result.code is None]
        if failed and self._echo_s is None:
            self._echo_s = now_s
        for place in self._places:
            if place not in results and (reason := self._find_loss(place, now_s)) is not None:
                self._end(now_s, reason)
                return
        if not results and self._may_grow(now_s):
            self._order_save()
        if not results:
            self._check_progress(now_s)
        is_late = self._echo_s is not None and now_s - self._echo_s > SUSPECT_S
        if is_late or any(map(names_culprit, failed)):
            self._end(now_s, "")

    def _check_progress(self, now_s: float) -> None:
        """Warn, or end the round (a start of all ranks), if the ranks have made no progress for too long: warn after
        `warn_s` seconds and end after `end_s`, shortly before collectives reach their time limit.

        If a rank writes no heartbeats and the run may be restarted, the round already ends after `warn_s`. If all ranks
        write heartbeats and none waits in a collective, the round does not end."""
        assert self._job is not None
        for place in self._places:
            for beat in self._seen[place.node].status.beats:
                self._paces.setdefault(beat.rank, Pace()).add(beat, now_s)
        if len(self._paces) < len(self._job.plan.layout.ranks):
            return
        idle_s = time_stuck(self._paces)
        warn_s, end_s = (max(getattr(pace, name) for pace in self._paces.values()) for name in ("warn_s", "end_s"))
        if idle_s < warn_s:
            self._has_warned = False
            self._report_stragglers()
            return
        nodes = self._nodes_of_ranks()
        is_silent = any(pace.silent_s > SILENT_S for pace in self._paces.values())
        waits = is_silent or any(pace.beat and pace.beat.collective for pace in self._paces.values())
        if waits and (idle_s >= end_s or (is_silent and self._job.plan.layout.max_restarts)):
            self._end(now_s, describe_stuck(self._paces, nodes))
        elif not self._has_warned:
            self._has_warned = True
            say([f"dtrain: warning: {describe_stuck(self._paces, nodes)}"])

    def _report_stragglers(self) -> None:
        """Print which ranks have become slow and which are no longer slow. Write the slow ranks to a file, which
        `dtrain status` reads."""
        if changes := self._stragglers.find_changes(self._paces, self._nodes_of_ranks()):
            say(f"dtrain: warning: {change}" for change in changes)
            self._write_stragglers()

    def _write_stragglers(self) -> None:
        assert self._job is not None
        path, nodes = self._job.run_dir / STRAGGLERS, self._nodes_of_ranks()
        slow = [name_rank(rank, nodes) for rank in sorted(self._stragglers.slow)]
        with suppress(OSError):
            if slow:
                path.write_text(json.dumps(slow))
            else:
                path.unlink(missing_ok=True)

    def _nodes_of_ranks(self) -> dict[int, str]:
        """Return a dict from each rank to a text that names its node, for messages; {} if there is only one node."""
        assert self._job is not None
        if len(self._places) == 1:
            return {}
        return {rank.rank: str(self._places[rank.node]) for rank in self._job.plan.layout.ranks}

    def _may_grow(self, now_s: float) -> bool:
        """Return whether the next round (a start of all ranks) should use more nodes: more nodes are present, and none
        has arrived in the last `SETTLE_S` seconds. Return False if the recipe is known to have no plan for any larger
        number of nodes."""
        present = self._present(now_s)
        most = min(len(present), self._session.num_nodes)
        is_settled = now_s > max(seen.since_s for seen in present) + SETTLE_S
        return is_settled and any(
            not self._session.is_misfit(number) for number in range(len(self._places) + 1, most + 1)
        )

    def _order_save(self) -> None:
        """Order the ranks to save a checkpoint and exit, so that they can be started again with the node that has
        joined."""
        if self._order.do == "run":
            say(["dtrain: another node has joined: the run continues with it after a checkpoint"])
            self._send(replace(self._order, do="save"))

    @property
    def _asked_by(self) -> int | None:
        """Number of the signal (15: SIGTERM) that asked a node of the run to stop; None if there was none."""
        return next((seen.status.asked_by for seen in self._seen.values() if seen.status.asked_by is not None), None)

    def _find_loss(self, place: Place, now_s: float) -> str | None:
        """Return why the node `place` is lost for the round (a start of all ranks), as a sentence: it was restarted,
        has left, or no longer answers. Return None if it is not lost."""
        seen = self._seen[place.node]
        if seen.status.agent != place.agent:
            return f"{place} was lost and has come back"
        if seen.status.has_left:
            return f"{place} left the run"
        silent_s = now_s - seen.changed_s
        if silent_s > (LOST_S if self._echo_s is None else SUSPECT_S):
            return f"{place} did not answer for {silent_s:.0f} s"
        return None

    def _end(self, now_s: float, reason: str) -> None:
        self._state, self._since_s, self._reason = "closing", now_s, reason
        self._send(Order("end", self._number, self._order.agents))

    def _close(self, now_s: float) -> None:
        """Call `_decide` when all nodes that still answer have ended the round (a start of all ranks). Do not wait for
        them longer than `CLOSING_S` seconds after the order to end it."""
        results = self._results()
        going = [
            place
            for place in self._places
            if place not in results
            and self._seen[place.node].status.agent == place.agent
            and now_s - self._seen[place.node].changed_s < SUSPECT_S
        ]
        if not going or now_s - self._since_s > CLOSING_S:
            self._decide(results)

    def _decide(self, results: dict[Place, NodeResult]) -> None:
        """Decide whether the run ends or all ranks are started again, after a round (one start of all ranks) has ended.
        `results`: how the round ended on each node."""
        assert self._job is not None
        self._keep_reports(results)
        of_rank_0 = results.get(self._places[0])
        codes = [result.code for result in results.values()]
        was_asked = self._asked_by is not None
        if of_rank_0 is not None and of_rank_0.code is not None:  # rank 0 has finished, so later failures do not count
            code = max(code for code in codes if code is not None)
            if code == EXIT_STOPPED and self._order.do == "save" and not was_asked:
                self._state, self._since_s = "waiting", time.monotonic()
            else:
                self.finish(code)
            return
        code, lines = explain_failure(self._job, self._merge(results), self._reason, asked_by=self._asked_by)
        if was_asked or not self._session.restarts(self._job, results.values()):
            self.finish(code, [*lines, *resume_hint(self._job)])
            return
        say([*lines, "dtrain: the run starts again"])
        self._state, self._since_s = "waiting", time.monotonic()

    def _merge(self, results: dict[Place, NodeResult]) -> NodeResult:
        """Merge the results of all nodes into one. With several nodes, each failure gets the name of its node."""
        assert self._job is not None
        failures: list[Failure] = []
        for place, result in results.items():
            node = str(place) if len(self._places) > 1 else None
            failures += (replace(failure, node=node) for failure in result.failures)
        failures.sort(key=lambda failure: failure.is_peer_loss)
        deaths = {rank: code for result in results.values() for rank, code in result.deaths.items()}
        late = next((result.late for result in results.values() if result.late), None)
        return NodeResult(None, deaths, tuple(failures), late, nodes=self._nodes_of_ranks())

    def _keep_reports(self, results: dict[Place, NodeResult]) -> None:
        """Write the failure reports of other nodes to the run's folder on this node, because the nodes may not share a
        disk. `results`: how the round ended on each node."""
        assert self._job is not None
        folder = self._job.failures_dir
        for result in (result for place, result in results.items() if place != self._places[0]):
            for failure in result.failures:
                if not (folder / f"rank_{failure.rank}.json").exists():
                    write_failure(folder, failure)
            for name, text in result.waiting.items():
                if not (folder / name).exists():
                    with suppress(OSError):
                        folder.mkdir(exist_ok=True)
                        (folder / name).write_text(text)


def names_culprit(result: NodeResult) -> bool:
    """Return whether the result of a node contains the cause of a failure. A cause is a rank with an error of its own,
    or a rank that was killed. An error of a rank that only lost its connection to another rank is not a cause."""
    return any(not failure.is_peer_loss for failure in result.failures) or any(
        code < 0 for code in result.deaths.values()
    )
