"""Meeting of ranks of a single machine on localhost, for torch's elastic launcher.

Of torch's own ways, `c10d` first waits up to 0.3 s at random, which only helps with many machines, and has threads that
a fork does not copy; `static` needs a port that is known to be free.
"""

from __future__ import annotations

import socket
import uuid
from pathlib import Path
from typing import Literal

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # documented there
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig

BACKEND = "dtrain_local"
LOCALHOST = "127.0.0.1"


def launch_config(num_ranks: int, scratch: Path, method: Literal["fork", "spawn"]) -> LaunchConfig:
    """Return the settings of torch's launcher. It does not handle signals that stop a run, since it would kill ranks
    that are still saving."""
    rendezvous_handler_registry.register(BACKEND, _make_rendezvous)
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend=BACKEND,
        rdzv_endpoint=LOCALHOST,
        local_addr=LOCALHOST,
        max_restarts=0,
        monitor_interval=0.02,
        start_method=method,
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch)),
        signals_to_handle="SIGQUIT",
    )


class LocalRendezvous(RendezvousHandler):
    """Meeting of a single launcher process, which is complete at once. The system chooses the port. `address` must be
    local: the store has no authentication, so no other machine may reach it."""

    def __init__(self, address: str, run_id: str) -> None:
        self._address, self._run_id = address, run_id
        self._store: TCPStore | None = None

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """True: the ranks also exchange their addresses in this store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            self._store = _store_at(self._address)
        where = RendezvousStoreInfo(self._address, self._store.port)
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, where)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: there is no other agent."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def _store_at(address: str) -> TCPStore:
    """Return a store that listens at this address only. torch's own socket would listen on all interfaces."""
    listening = socket.create_server((address, 0))
    port = listening.getsockname()[1]
    return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def _make_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    return LocalRendezvous(parameters.endpoint, parameters.run_id)
