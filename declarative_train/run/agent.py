"""Agent of a node. It starts the ranks of its node with torch's elastic launcher, each time the coordinator orders a
round (a start of all ranks).

The coordinator runs in the agent of node 0, which is called the head (`lead`). The agents of other nodes communicate
with it through a key-value store (`follow`)."""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.core.secrets import record_variable
from declarative_train.engine.devices import num_gpus
from declarative_train.engine.failures import RunFailure, describe_failure, limit_s, read_failures
from declarative_train.run.coordinator import LOST_S, Coordinator
from declarative_train.run.heartbeat import read_beats, read_waiting
from declarative_train.run.launcher_rendezvous import put, report_wait, take
from declarative_train.run.messages import LOOK_S, Assignment, NodeResult, NodeStatus, Order
from declarative_train.run.network import allow_connections, choose_interface, is_own_address
from declarative_train.run.processes import (
    LATE,
    NodeRanks,
    RoundEnded,
    exit_unsaved,
    kill_ranks,
    launch_ranks,
    print_stopping,
    say,
    start_method,
    stop_ranks,
    unsaved_message,
)
from declarative_train.run.rank_job import check_disk
from declarative_train.run.signals import EXIT_FAILED, EXIT_STOPPED, STOP_SIGNALS, StopRequest, code_without_save

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from declarative_train.engine.launchers import Seat
    from declarative_train.run.session import Session

WAITING = "while it waited for other nodes"
PARTING_S = 5.0  # for the other agents to read that there is no plan
CONNECT_S = 2.0  # for one attempt to reach the head
PAUSE_S = 0.2


class HeadLost(Exception):  # noqa: N818 (no failure of this process)
    """Error: the agent of node 0 (the head) no longer answers. The message says how this was noticed."""


class Refused(Exception):  # noqa: N818 (as above)
    """Error: the coordinator does not accept this agent."""


class Agent:
    """Agent of one node. `exchange`: function that sends the agent's status to the coordinator and returns its order.
    `fetch`: function that returns the assignment of a round (a start of all ranks), given its number. `where`: address
    and port of the key-value store, as the ranks of this node reach it."""

    def __init__(
        self,
        status: NodeStatus,
        exchange: Callable[[NodeStatus], Order],
        fetch: Callable[[int], Assignment],
        where: tuple[str, int],
    ) -> None:
        self.status = status
        self._exchange, self._fetch, self._where = exchange, fetch, where
        self._order = Order("wait")
        self._looked_s = 0.0
        self._ranks: NodeRanks | None = None
        self._saves = False
        self.max_restarts = 0
        self.watch = StopRequest(on_first=self._stop, on_second=self._kill)

    def run(self) -> int:
        """Start the ranks in each round (a start of all ranks) until the run is over, and return the run's exit code.
        Raises HeadLost."""
        while True:
            order = self._look()
            if order.do == "exit":
                return order.code
            takes_part = order.do != "wait" and self.status.agent in order.agents
            if order.do == "run" and order.number > self.status.round and takes_part:
                self._run_round(self._fetch(order.number))
            elif self.status.asked_by is not None and self.status.node > 0 and not takes_part:
                say([unsaved_message(WAITING, loses=False)])
                return self.code_if_stopped()
            else:
                self._wait()

    def code_if_stopped(self) -> int:
        """Return the exit code after a signal stopped the run while no ranks were running. If this node had started
        ranks before, the code says that the run can be resumed. Otherwise it is 128 plus the signal's number."""
        return code_without_save(False, self.watch.number) if self.status.run is None else EXIT_STOPPED

    def _wait(self) -> None:
        """Wait until the coordinator gives another order or a stop is requested. Meanwhile print what this agent waits
        for."""
        number, do = self._order.number, self._order.do
        has_place = self.status.agent in self._order.agents
        reason = "the ranks of other nodes" if has_place else "a place of another node: this node is a spare one"
        with report_wait(lambda: self._order.awaited if self._order.do == "wait" else reason):
            while True:
                time.sleep(LOOK_S)
                order = self._look()
                if (order.number, order.do) != (number, do) or self.status.asked_by is not None:
                    return

    def _look(self) -> Order:
        """Send this agent's status to the coordinator, receive its order, and return this order. If this was done less
        than `LOOK_S` seconds ago, only return the last order. Raises Refused if the coordinator does not accept this
        agent."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            beats = () if self._ranks is None else read_beats(self._ranks.scratch)
            self.status = replace(self.status, beat=self.status.beat + 1, asked_by=self.watch.number, beats=beats)
            self._order = self._exchange(self.status)
            for agent, reason in self._order.refused:
                if agent == self.status.agent:
                    raise Refused(reason)
        return self._order

    def begin(self) -> None:
        """Prepare to register with a coordinator that does not know this agent, for example because the coordinator was
        restarted. The agent gets a new name, and its status no longer has a round (a start of all ranks) and a result.
        """
        self.status = replace(self.status, agent=f"{self.status.node}-{secrets.token_hex(4)}", round=0, result=None)
        self._order, self._looked_s = Order("wait"), 0.0

    def _run_round(self, assignment: Assignment) -> None:
        """Run this node's ranks in one round (a start of all ranks) until they end, and put the result into the
        status."""
        job = assignment.job
        self._saves, self.max_restarts = False, job.plan.layout.max_restarts
        for name, value in assignment.taken:
            record_variable(name, value)
        index = [place.agent for place in assignment.places].index(self.status.agent)
        mine = [rank.rank for rank in job.plan.layout.ranks if rank.node == index]
        scratch = Path(tempfile.mkdtemp(prefix="dtrain-"))
        self._ranks = NodeRanks(job, assignment.number, mine[0], len(mine), self._where, scratch)
        self.status = replace(self.status, round=assignment.number, run=str(job.run_dir), result=None)
        try:
            if index > 0:
                check_disk(job, self.status.host, (assignment.places[0].host,))
            code, deaths = launch_ranks(self._ranks, self._look_at_round)
            late = (scratch / LATE).read_text() if (scratch / LATE).exists() else None
            result = NodeResult(code, deaths, tuple(read_failures(scratch)), late, read_waiting(scratch))
        except RunFailure as failure:
            result = NodeResult(None, {}, (describe_failure(failure, mine[0], None, None),))
        finally:
            self._ranks = None
            shutil.rmtree(scratch, ignore_errors=True)
        self.status = replace(self.status, result=result)
        self._looked_s = 0.0

    def _look_at_round(self) -> None:
        """Get the coordinator's order while the ranks work, and carry it out: ask the ranks to save a checkpoint and
        exit, or kill them. Raises RoundEnded if the round is over, HeadLost and Refused."""
        ranks = self._ranks
        assert ranks is not None
        try:
            order = self._look()
        except (HeadLost, Refused):
            kill_ranks(ranks.scratch)
            raise
        if order.do in ("end", "exit") or order.number > ranks.round:
            kill_ranks(ranks.scratch)
            raise RoundEnded
        if order.do == "save" and not self._saves:
            self._saves = True
            stop_ranks(ranks)

    def _stop(self) -> None:
        """Handle the first request to stop: ask the ranks to save a checkpoint and exit."""
        if self._ranks is not None:
            print_stopping(self._ranks.job)
            stop_ranks(self._ranks)

    def _kill(self) -> None:
        """Handle the second request to stop: kill the ranks, and exit unless this process must not be ended (a
        notebook)."""
        if self._ranks is not None:
            kill_ranks(self._ranks.scratch)
            if not self._ranks.job.is_hosted:
                exit_unsaved(self._ranks.job, "at once")


class Head:
    """Key-value store of a run on several nodes, with its server. Node 0 (the head) opens it before it compiles the
    recipe."""

    def __init__(self, listening: socket.socket) -> None:
        from declarative_train.run.rendezvous import LOCALHOST, StoreServer, connect

        address, port = listening.getsockname()[:2]
        self.where = (LOCALHOST if address in ("::", "0.0.0.0") else address, port)
        self.server = StoreServer(listening, forks=start_method("cuda" if num_gpus() else "cpu") == "fork")
        self.store = connect(*self.where)
        put(self.store, "beat", 0)
        put(self.store, "order", Order("wait", awaited="node 0 to compile the recipe"))

    def __enter__(self) -> Head:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def dismiss(self, code: int) -> None:
        """Order the agents of the other nodes to exit with `code`, because the recipe cannot be compiled to a plan.
        Wait a moment until they have left."""
        put(self.store, "order", Order("exit", code=code))
        deadline_s = time.monotonic() + PARTING_S
        while time.monotonic() < deadline_s:
            names = [take(self.store, f"hello/{number + 1}") for number in range(self.store.add("hello", 0))]
            if names and all(take(self.store, f"status/{name}").has_left for name in names):
                return
            time.sleep(LOOK_S)


def open_head(seat: Seat) -> Head:
    """Open the key-value store on node 0. Raises RunFailure, for example if the port is in use."""
    from declarative_train.run.rendezvous import listen

    if not is_own_address(seat.head):
        where = f"{seat.head} is not an address of {socket.gethostname()}, which is node 0"
        say([f"dtrain: warning: {where}; help: number the nodes from 0, which runs at the address of {seat.key}"])
    return Head(listen(seat.head, seat.port, f"the port of {seat.key}"))


def lead(session: Session, seat: Seat | None = None, head: Head | None = None) -> tuple[int, list[str]]:
    """Run a plan as the agent of node 0, or of the only node. `seat`, `head`: with several nodes, index and address of
    node 0, and its key-value store. Return the exit code and the lines to print. Raises RunFailure."""
    from torch.distributed import DistNetworkError

    from declarative_train.run.rendezvous import LOCALHOST, listen

    allow_connections()
    choose_interface(None if seat is None else seat.head)
    handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGQUIT)}
    is_alone = head is None
    head = head or Head(listen(LOCALHOST, 0, ""))
    coordinator = Coordinator(session, None if is_alone else head.store)
    status = NodeStatus("0", 0, socket.gethostname(), 0 if session.needs_no_gpu else num_gpus())

    def fetch(_: int) -> Assignment:
        assert coordinator.assignment is not None
        return coordinator.assignment

    agent = Agent(status, coordinator.exchange, fetch, head.where)
    agent.watch.install()
    try:
        code = agent.run()
        coordinator.wait_for_agents()
        return code, coordinator.lines
    except DistNetworkError as error:
        raise RunFailure(
            "the process that serves the store of this run on node 0 has ended, and the store with it; help: start the "
            "command again, with --resume: the run continues from its last checkpoint"
        ) from error
    except BaseException:
        coordinator.finish(EXIT_FAILED)
        raise
    finally:
        agent.watch.restore()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        head.server.close()


class Link:
    """Connection of another node's agent to node 0. A thread of its own sends the status and receives orders, because a
    call to the store may block forever if the network fails."""

    def __init__(self, store: Store, status: NodeStatus) -> None:
        self._store, self._status = store, status
        self._order = Order("wait")
        self._beat, self._changed_s = 0, time.monotonic()
        self._answered_s = time.monotonic()
        self._error, self._leaves = "", False
        put(store, f"status/{status.agent}", status)
        put(store, f"hello/{store.add('hello', 1)}", status.agent)
        threading.Thread(target=self._work, name="link", daemon=True).start()

    def exchange(self, status: NodeStatus) -> Order:
        """Set the status that the link's own thread sends next, and return the newest order that this thread has
        received. Raises HeadLost if the store or, while ranks work, the coordinator no longer answers."""
        self._status = status
        now_s = time.monotonic()
        if self._error or now_s - self._answered_s > LOST_S:
            raise HeadLost(self._error or "no answer")
        if status.round and status.result is None and now_s - self._changed_s > LOST_S:
            raise HeadLost("its process does not answer")
        return self._order

    def fetch(self, number: int) -> Assignment:
        try:
            found: Assignment = take(self._store, f"round/{number}")
        except RuntimeError as error:
            raise HeadLost(str(error)) from error
        return found

    def leave(self, status: NodeStatus) -> None:
        """Report to the coordinator that this agent exits, unless the coordinator does not answer."""
        self._leaves = True
        if not self._error and time.monotonic() - self._answered_s < LOST_S:
            with suppress(RuntimeError):
                put(self._store, f"status/{status.agent}", replace(status, has_left=True))

    def _work(self) -> None:
        try:
            while not self._leaves:
                put(self._store, f"status/{self._status.agent}", self._status)
                self._order, beat = take(self._store, "order"), take(self._store, "beat")
                self._answered_s = time.monotonic()
                if beat != self._beat:
                    self._beat, self._changed_s = beat, self._answered_s
                time.sleep(LOOK_S)
        except Exception:  # from torch's store, or from unpickling an incomplete answer
            self._error = "the connection ended"


def follow(seat: Seat) -> int:
    """Run the ranks of this node, which is not node 0, and return the exit code. If node 0 (the head) no longer answers
    and the run may be restarted, wait until node 0 is back."""
    allow_connections()
    link: Link | None = None

    def exchange(status: NodeStatus) -> Order:
        assert link is not None
        return link.exchange(status)

    def fetch(number: int) -> Assignment:
        assert link is not None
        return link.fetch(number)

    agent = Agent(NodeStatus("", seat.node, socket.gethostname(), num_gpus()), exchange, fetch, (seat.head, seat.port))
    agent.watch.install()
    try:
        choose_interface(seat.head)
        while True:
            store = _reach(seat, agent.watch)
            if store is None:
                say([unsaved_message(WAITING, loses=False)])
                return agent.code_if_stopped()
            agent.begin()
            link = Link(store, agent.status)
            try:
                return agent.run()
            except HeadLost as loss:
                if agent.status.run is not None and not agent.max_restarts:
                    raise RunFailure(f"node 0 at {seat.address} is lost: {loss}") from None
                say([f"dtrain: node 0 at {seat.address} is lost: {loss}"])
    except (Refused, RunFailure) as error:
        say([f"dtrain: node {seat.node}: {error}"])
        return EXIT_FAILED
    finally:
        if link is not None:
            link.leave(agent.status)
        agent.watch.restore()


def _reach(seat: Seat, watch: StopRequest) -> Store | None:
    """Return a client of the key-value store on node 0, or None if a signal to stop arrives first. Raises RunFailure if
    node 0 does not answer in time."""
    from declarative_train.run.rendezvous import connect

    most_s, why = limit_s("DTRAIN_START_S"), ""
    deadline_s = time.monotonic() + most_s
    with report_wait(lambda: f"node 0 at {seat.address}{f': {why}' if why else ''}"):
        while not watch.is_asked:
            try:
                socket.create_connection((seat.head, seat.port), CONNECT_S).close()
                return connect(seat.head, seat.port)
            except (OSError, RuntimeError) as error:
                why = (getattr(error, "strerror", None) or str(error)).lower()
            if time.monotonic() > deadline_s:
                raise RunFailure(
                    f"node 0 at {seat.address} did not answer within {most_s:.0f} s ({why}); help: check "
                    "that it runs, and that no firewall blocks it"
                )
            time.sleep(PAUSE_S)
    return None
