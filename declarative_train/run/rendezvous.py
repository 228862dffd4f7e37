"""Rendezvous of ranks: a TCPStore of torch in a process of its own, and the handler that connects torch's elastic
launcher to it.

Through this store the agents of all nodes agree which nodes take part in the next start of the ranks
(`run/coordinator.py`). torch's launcher on each node knows only its own node. If it knew the others, its barriers
would wait minutes for a lost node, and its rendezvous backends could not replace one."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Literal

from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # documented there
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig

from declarative_train.engine.failures import RunFailure, limit_s
from declarative_train.run.signals import STOP_SIGNALS

BACKEND = "dtrain"
LOCALHOST = "127.0.0.1"
MONITOR_S = 0.02
CLOSING_S = "5"  # after a rank has failed, until torch kills the others of its node
PARENT_S = 0.1


def listen(address: str, port: int, key: str) -> socket.socket:
    """Return a socket that listens for other ranks or nodes. With a loopback address it cannot be reached from other
    machines; with any other `address`, it listens on all interfaces. `key`: name of the setting that gave the port, for
    messages. Raises RunFailure."""
    try:
        if address == "localhost" or address.startswith("127."):
            return socket.create_server((address, port), backlog=4096)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
        return socket.create_server(("", port), backlog=4096)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise RunFailure(
            f"cannot listen on port {port} of {socket.gethostname()}: {reason}; help: set {key} to a free port, "
            "the same on every machine"
        ) from None


class StoreServer:
    """Server of a TCPStore. It ends at the end of the `with` block, or when this process exits.

    `forks`: whether this process forks the ranks. If False, the server is a thread. If True, it is a process: at a
    fork, a thread could hold a lock of glibc, and the forked child would wait for this lock forever.
    """

    def __init__(self, listening: socket.socket, *, forks: bool = True) -> None:
        self.port: int = listening.getsockname()[1]
        self._store: TCPStore | None = None
        self._pid = 0
        if not forks:
            self._store = _serve(listening)
            return
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _serve_for(listening, parent)
            finally:
                os._exit(1)
        listening.close()

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._store = None
        if self._pid:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = 0


def _serve(listening: socket.socket) -> TCPStore:
    address, port = listening.getsockname()[:2]
    address = LOCALHOST if address in ("::", "0.0.0.0") else address
    return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def _serve_for(listening: socket.socket, parent: int) -> None:
    """Serve the store until the process `parent` has exited. Ignore signals that ask the run to stop, which the parent
    handles."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    _store = _serve(listening)
    while os.getppid() == parent:
        time.sleep(PARENT_S)


def connect(address: str, port: int) -> TCPStore:
    """Return a client of the key-value store that a server offers at an address and port."""
    return TCPStore(address, port, None, False, timedelta(seconds=limit_s("DTRAIN_TIMEOUT_S")))


def connect_from_environment() -> TCPStore:
    """Return a client of the store whose address torch's launcher set in this rank's environment."""
    return connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def launch_config(
    num_ranks: int,
    scratch: Path,
    method: Literal["fork", "spawn"],
    where: tuple[str, int],
    look: Callable[[], None] = lambda: None,
) -> LaunchConfig:
    """Return the settings of torch's launcher. `scratch`: folder for its files. `method`: how ranks are started.
    `where`: address and port of the store. `look`: function that is called often while the ranks work. The launcher
    ignores signals that ask a run to stop; otherwise it would kill ranks that are still saving."""
    rendezvous_handler_registry.register(BACKEND, _make_handler)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", CLOSING_S)
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=BACKEND,
        rdzv_backend=BACKEND,
        rdzv_endpoint=LOCALHOST,
        rdzv_configs={"where": where, "look": look},
        local_addr=LOCALHOST,
        max_restarts=0,
        monitor_interval=MONITOR_S,
        start_method=method,
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch)),
        signals_to_handle="SIGQUIT",
    )


class NodeRendezvous(RendezvousHandler):
    """Rendezvous of a single agent. It waits for no other agent, because the coordinator has already chosen the
    nodes."""

    def __init__(self, where: tuple[str, int], look: Callable[[], None]) -> None:
        self._where, self._look = where, look

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """True: the ranks use the agents' key-value store to find each other's addresses, and open no second store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo(*self._where))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing. torch's launcher calls this for the agents of other nodes, and it knows of none."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no further node waits to join the run. torch's launcher calls this often, so it also calls `look`,
        which raises an exception to end the round."""
        self._look()
        return 0

    def get_run_id(self) -> str:
        return BACKEND

    def shutdown(self) -> bool:
        return True


def _make_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    return NodeRendezvous(parameters.config["where"], parameters.config["look"])
