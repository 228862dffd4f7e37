"""`python -m tests.counted_rank WORDS`: the command `dtrain WORDS` as one rank, which counts its messages, its requests
to storage and its open files.

The counts are written to `$COUNTS/<rank>.json`. Every `COUNTED_PER_NODE` ranks have the host name of one machine. gloo
opens its sockets when they are needed, as it does with many ranks.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from torch import distributed
from torch.distributed import distributed_c10d

from declarative_train.app.main import main
from declarative_train.run import checkpoint, processes, signals, torchrun

RANK = int(os.environ["RANK"])
REQUESTS = ("_open", "ls", "info", "rm", "rm_file", "mv", "makedirs", "cat_file", "pipe_file")
counts: Counter[str] = Counter()
largest: Counter[str] = Counter()
saves: list[Counter[str]] = []


class CountingStore(distributed_c10d.PrefixStore):
    def get(self, key: str) -> bytes:
        found: bytes = super().get(key)
        counts["received"] += len(found)
        return found

    def multi_get(self, keys: list[str]) -> list[bytes]:
        found: list[bytes] = super().multi_get(keys)
        counts["received"] += sum(map(len, found))
        return found


def count_request(name: str) -> Callable[..., Any]:
    real = getattr(LocalFileSystem, name)

    def counting(self: Any, path: Any, *given: Any, **named: Any) -> Any:
        if "checkpoints" in str(path):
            counts["requests"] += 1
            counts["stats"] += name == "info"
            counts["metadata"] += str(path).endswith(".metadata") and name == "cat_file"
        return real(self, path, *given, **named)

    return counting


def measure_object(name: str, position: int) -> None:
    """Replace a collective of objects by one that notes the size of its largest result on this rank. `position`:
    position of the argument that receives the result."""
    real = getattr(distributed_c10d, name)

    def measuring(*given: Any, **named: Any) -> Any:
        found = real(*given, **named)
        into = given[position] if len(given) > position else next(iter(named.values()))
        largest[name] = max(largest[name], len(pickle.dumps(into)))
        return found

    setattr(distributed, name, measuring)
    setattr(distributed_c10d, name, measuring)


def write_counts() -> None:
    end = counts.copy()
    made = [after - before for before, after in zip(saves, [*saves[1:], end], strict=True)]
    found = {
        "received": counts["received"],
        "metadata": counts["metadata"],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "largest": dict(largest),
        "saves": [{name: each[name] for name in ("requests", "stats")} for each in made],
    }
    Path(os.environ["COUNTS"], f"{RANK}.json").write_text(json.dumps(found))


def exit_counted(code: int) -> None:
    write_counts()
    signals.exit_process(code)


def run() -> int:
    host = f"node{RANK // int(os.environ['COUNTED_PER_NODE'])}"
    socket.gethostname = lambda: host
    processes.MOST_IN_MESH = 2
    distributed_c10d.PrefixStore = CountingStore  # type: ignore[misc]
    for name in REQUESTS:
        setattr(LocalFileSystem, name, count_request(name))
    for name, position in (("gather_object", 1), ("all_gather_object", 0), ("broadcast_object_list", 0)):
        measure_object(name, position)
    save = checkpoint.Checkpoints.save

    def counting_save(self: Any, *given: Any, **named: Any) -> Any:
        saves.append(counts.copy())
        return save(self, *given, **named)

    checkpoint.Checkpoints.save = counting_save  # type: ignore[method-assign]
    vars(torchrun)["exit_process"] = exit_counted
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
