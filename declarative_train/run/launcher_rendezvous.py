"""Connection of ranks that a launcher (torchrun, srun, mpirun) started. They exchange messages through torch's
key-value stores. A rank that waits long for others prints for which."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declarative_train.core.amounts import in_ranges
from declarative_train.engine.devices import VisibleDevices
from declarative_train.engine.failures import RunFailure, limit_s
from declarative_train.engine.launchers import find_launcher, local_rank

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

FIRST_REPORT_S = 10.0  # time until a wait is first reported
ARRIVALS_S = 0.02  # between two checks for new ranks
NEEDED = ("MASTER_ADDR", "MASTER_PORT")
_SHOWN: list[object] = []  # files that other ranks of this machine read


def open_stores(rank: int, world: int, visible: VisibleDevices) -> tuple[Store, Store]:
    """Return two key-value stores that all ranks share. The first is empty at each start of the ranks; the second keeps
    its entries when the launcher restarts them. Raises RunFailure if the launcher set no address, or if ranks do not
    start in time.

    `world`: number of ranks. `visible`: devices of this rank, which it writes to the first store."""
    from torch.distributed.distributed_c10d import PrefixStore

    # The first store is `lasting` with a prefix that is new at each start: the arrival number of rank 0. Rank 0 writes
    # this prefix for each other rank, under the rank's own arrival number.
    lasting = PrefixStore("dtrain", _reach(rank))
    number = lasting.add("arrivals", 1)
    if rank != 0:
        with report_wait(lambda: f"rank 0 of {world}"):
            store = PrefixStore(str(take(lasting, f"attempt/{number}")), lasting)
        put(store, f"devices/{rank}", visible)
        return store, lasting
    store = PrefixStore(str(number), lasting)
    put(store, "devices/0", visible)

    def missing() -> str:
        gone = [each for each in range(world) if not store.check([f"devices/{each}"])]
        return f"{'ranks' if len(gone) > 1 else 'rank'} {in_ranges(gone)} of {world}"

    answered, most_s = 0, limit_s("DTRAIN_START_S")
    deadline_s = time.monotonic() + most_s
    with report_wait(missing):
        while not store.check([f"devices/{each}" for each in range(world)]):
            while answered < lasting.add("arrivals", 0):
                answered += 1
                put(lasting, f"attempt/{answered}", number)
            if time.monotonic() > deadline_s:
                raise RunFailure(f"{missing()} did not start within {most_s:.0f} s")
            time.sleep(ARRIVALS_S * max(1, world // 64))  # each check reads an entry of every rank
    return store, lasting


def _reach(rank: int) -> Store:
    """Return a client of a store that all ranks can reach. It is torchrun's store, or one that rank 0 opens. Raises
    RunFailure if the launcher set no address and port, or if rank 0 does not answer."""
    from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]  # documented there

    launcher = find_launcher()
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        raise RunFailure(
            f"{launcher.rank} and {launcher.world} are set, so this is one rank of several, but "
            f"{' and '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} not; help: set the address and a free port of rank 0's machine, "
            f"or start with torchrun, or unset {launcher.rank} and {launcher.world}"
        )
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    if not port.isdigit():
        raise RunFailure(f"MASTER_PORT is `{port}`, not a number; help: set it to a free port of rank 0's machine")
    limit = timedelta(seconds=limit_s("DTRAIN_START_S"))
    if rank == 0 and not has_agent_store():
        from declarative_train.run.rendezvous import listen

        listening = listen(address, int(port), "MASTER_PORT")
        return TCPStore(
            address, int(port), None, True, limit, wait_for_workers=False, master_listen_fd=listening.detach()
        )
    try:
        with report_wait(lambda: f"rank 0 at {address}, port {port}"):
            return TCPStore(address, int(port), None, False, limit)
    except DistNetworkError:
        raise RunFailure(
            f"rank 0 at {address}, port {port}, did not answer within {limit.seconds} s; help: check that it "
            "runs, and that no firewall blocks it"
        ) from None


def has_agent_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


@contextmanager
def report_wait(awaited: Callable[[], str]) -> Iterator[None]:
    """Print at growing intervals, until the `with` block ends, that this process waits for `awaited()`. Of several
    ranks on one machine only the first prints."""
    done, begun_s = threading.Event(), time.monotonic()

    def report() -> None:
        pause_s = FIRST_REPORT_S
        while not done.wait(pause_s):
            waited_s = pause_s = time.monotonic() - begun_s
            print(f"dtrain: waiting for {awaited()} ({waited_s:.0f} s)", file=sys.stderr, flush=True)

    if local_rank() in (None, 0):
        threading.Thread(target=report, name="waiting", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def put(store: Any, key: str, value: object) -> None:
    """Store a pickled value under `key`. (`store` has type Any because torch's annotation of `set` does not allow
    bytes.)"""
    store.set(key, pickle.dumps(value))


def take(store: Store, key: str) -> Any:
    """Wait until the store has a value under `key`, and return it. Unpickling is safe, because only ranks of this run
    write to the store."""
    return pickle.loads(store.get(key))


def take_all(store: Any, keys: Sequence[str]) -> list[Any]:
    """Wait until the store has values under all `keys`, and return them in the order of `keys`. Only one request is
    sent."""
    return [pickle.loads(each) for each in store.multi_get(list(keys))] if keys else []


def take_once(store: Store, key: str, host: str) -> Any:
    """Return the value under `key`, which all ranks need. The store sends it only once to each machine: the first rank
    there gets it and makes a temporary file; the other ranks read the file. `host`: name of this machine."""
    if store.add(f"{key}/readers/{host}", 1) > 1:
        with suppress(OSError):  # not on Linux, or in another container of the same host name
            return pickle.loads(Path(take(store, f"{key}/copy/{host}")).read_bytes())
        return take(store, key)
    content = store.get(key)
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # it stays open
    file.write(content)
    _SHOWN.append(file)
    put(store, f"{key}/copy/{host}", f"/proc/{os.getpid()}/fd/{file.fileno()}")
    return pickle.loads(content)
