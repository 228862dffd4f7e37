"""Work that ranks do together to check, read and record a checkpoint. The ranks of a node send their data to its first
rank, and the first ranks of all nodes send theirs to rank 0."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from declarative_train.engine.checkpoints.store import (
    METADATA,
    CheckpointEntry,
    CheckpointStore,
    damage,
    read_entry,
    read_metadata,
)
from declarative_train.engine.collectives import Ranks
from declarative_train.engine.failures import CheckpointFailure, PeerFailure, first_line, limit_s

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from declarative_train.engine.checkpoints.retry import Retry
    from declarative_train.plan.layout import LayoutPlan

Rows = dict[str, dict[str, Any]]  # size and checksum of files, by name


MOST_WRITERS = 1024  # of a checkpoint, because rank 0 plans the writing of all


@dataclass(frozen=True, slots=True)
class NodeGroups:
    """gloo groups with which ranks communicate in two steps: first within each node (machine), then between nodes.

    `node`    group of the ranks of this node; None: the group of all ranks
    `first`   number of the first rank of this node, which also communicates with other nodes
    `firsts`  group of the `first` ranks of all nodes; None on all other ranks, and if nodes exchange no messages
    """

    first: int = 0
    node: ProcessGroup | None = None
    firsts: ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        return distributed.get_rank() == self.first

    def gather(self, mine: object) -> list[Any] | None:
        """Collect the objects `mine` of all ranks of this node. Return the list on the node's first rank, None on the
        others."""
        return self._gather(mine, self.node, self.first)

    def gather_nodes(self, mine: object) -> list[Any] | None:
        """Collect `mine` from the first rank of each node; only these ranks may call this. Return the list on rank 0,
        None on the others."""
        return self._gather(mine, self.firsts, 0)

    def share(self, mine: object) -> Any:
        """Send the object `mine` of this node's first rank to all ranks of the node, and return it."""
        found = [mine]
        distributed.broadcast_object_list(found, self.first, group=self.node)
        return found[0]

    def _gather(self, mine: object, group: ProcessGroup | None, first: int) -> list[Any] | None:
        is_first = distributed.get_rank() == first
        found: list[Any] | None = [None] * distributed.get_world_size(group) if is_first else None
        distributed.gather_object(mine, found, first, group=group)
        return found


@dataclass(frozen=True, slots=True)
class SavingGroups:
    """Groups of ranks that save and load checkpoints together, as seen from one rank.

    `writes`   whether this rank writes a part of each checkpoint
    `writers`  process group of the ranks that write; None: torch's default group, or no group is needed
    `writing`  NodeGroups of the ranks that write; None if this rank writes alone or writes nothing
    `reading`  NodeGroups of all ranks; None in a single process
    """

    writes: bool = True
    writers: ProcessGroup | None = None
    writing: NodeGroups | None = None
    reading: NodeGroups | None = None


ALONE = SavingGroups()


def join_groups(layout: LayoutPlan, background: bool, *, by_rank_0: bool) -> SavingGroups:
    """Return this rank's process groups for saving. All ranks must call this. `background`: a thread saves while
    training continues. `by_rank_0`: rank 0 alone writes checkpoints that are saved in the background.

    If several ranks write, they get a group of their own when they save in the background, or when other ranks do not
    write.
    """
    limit = timedelta(seconds=max(limit_s("DTRAIN_SAVE_S"), limit_s("DTRAIN_TIMEOUT_S")))
    num_ranks, rank, writers = len(layout.ranks), distributed.get_rank(), choose_writers(layout)
    reading = make_node_groups(layout, range(num_ranks), None, limit, writes=False)
    if (background and by_rank_0) or rank not in writers:
        return SavingGroups(rank == 0 or rank in writers, reading=reading)
    is_own = background or len(writers) < num_ranks
    group = make_gloo_group(writers, limit) if is_own else None
    return SavingGroups(True, group, make_node_groups(layout, writers, group, limit, writes=True), reading)


def choose_writers(layout: LayoutPlan) -> list[int]:
    """Return the ranks that write a checkpoint: all ranks of the first copies of the model (axis `replicate`). As many
    copies write as have at most `MOST_WRITERS` ranks together, but at least one."""
    replicas = layout.size("replicate")
    kept = max(1, MOST_WRITERS * replicas // len(layout.ranks))
    return [row.rank for row in layout.ranks if row.coordinates.get("replicate", 0) < kept]


def make_node_groups(
    layout: LayoutPlan, members: Sequence[int], everyone: ProcessGroup | None, limit: timedelta, *, writes: bool
) -> NodeGroups:
    """Return the NodeGroups of the ranks `members`, all of which must call this.

    `everyone`  existing group of exactly these ranks (None: torch's default group), used if all are on one node
    `limit`     time limit of messages
    `writes`    also make `firsts`, the group of the first rank of each node"""
    nodes: dict[int, list[int]] = {}
    for rank in members:
        nodes.setdefault(rank // layout.gpus_per_node, []).append(rank)
    own = nodes[distributed.get_rank() // layout.gpus_per_node]
    if len(nodes) == 1:
        return NodeGroups(own[0], everyone)
    node, firsts = make_gloo_group(own, limit), [ranks[0] for ranks in nodes.values()]
    is_first = writes and own[0] == distributed.get_rank()
    # made last: torch numbers the groups of each rank, and later ones would have other numbers on the first ranks
    return NodeGroups(own[0], node, make_gloo_group(firsts, limit) if is_first else None)


def make_gloo_group(ranks: Sequence[int], limit: timedelta) -> ProcessGroup:
    """Return a gloo group of the given ranks. All of these ranks, and no others, must call this. `limit`: time limit of
    messages."""
    made: ProcessGroup = distributed.new_group(
        list(ranks), timeout=limit, backend="gloo", use_local_synchronization=True
    )
    return made


def collect(
    store: CheckpointStore, step: int, nodes: NodeGroups, retry: Retry, files: Rows, numbers: dict[str, float]
) -> tuple[Rows, Rows, dict[str, float]]:
    """Collect on rank 0 what the manifest contains. Return three dicts (files, lists, numbers); on other ranks they are
    empty.

    files    {file: its size and checksum}; with several nodes only DCP's metadata file, the others are in lists
    lists    {list of files: its size and checksum}: with several nodes, the first rank of each writes a list into the
             checkpoint
    numbers  numbers in the optimizer's state that are not tensors, by name

    `files`: sizes and checksums of this rank's files. `numbers`: this rank's numbers. Raises PeerFailure if another
    node cannot write its list, and the errors of `store.write`."""
    gathered = nodes.gather((files, numbers))
    if gathered is None:
        return {}, {}, {}
    files, numbers = merge(row[0] for row in gathered), merge(row[1] for row in gathered)
    if nodes.firsts is None:
        return files, {}, numbers
    own = {METADATA: files.pop(METADATA)} if METADATA in files else {}
    name, failure = f"files_{nodes.first:05d}.json", None
    row: dict[str, Any] = {}
    try:
        row = retry(lambda: store.write(step, name, json.dumps(files).encode()))
    except Exception as error:  # first report it to rank 0, which waits for this node
        failure = error
    found = nodes.gather_nodes(({name: row}, numbers, failure and first_line(failure))) or []
    if failure is not None:
        raise failure
    for why in (each[2] for each in found if each[2] is not None):
        raise PeerFailure(f"the list of a node's files cannot be written: {why}")
    return own, merge(each[0] for each in found), merge(each[1] for each in found)


def merge(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: entry for part in parts for name, entry in part.items()}


def check_together(path: str, nodes: NodeGroups | None) -> CheckpointEntry:
    """Check every byte of the checkpoint at `path`, and return its CheckpointEntry. Raises CheckpointFailure on all
    ranks if any rank finds damage. `nodes`: None in a single process. With several ranks, each rank reads a share of
    the files, and the returned entry lacks the table of files."""
    if nodes is None:
        entry = read_entry(path)
        if (why := damage(entry)) is not None:
            raise CheckpointFailure(why)
        return entry
    rank, num_ranks = distributed.get_rank(), distributed.get_world_size()
    found: list[CheckpointEntry | CheckpointFailure | None] = [None]
    shares: list[CheckpointEntry] | None = None
    if rank == 0:
        try:
            entry = read_entry(path)
            shares = [entry.share(each, num_ranks) for each in range(num_ranks)]
            found = [entry.without_files()]
        except CheckpointFailure as failure:
            found = [failure]
    distributed.broadcast_object_list(found)
    (whole,) = found
    if not isinstance(whole, CheckpointEntry):
        assert whole is not None
        raise whole
    mine: list[CheckpointEntry] = [whole]
    distributed.scatter_object_list(mine, shares)
    reason = [damage(mine[0])]
    place = num_ranks - rank if reason[0] else 0
    first = num_ranks - int(Ranks().max(torch.tensor([place])))  # the lowest rank that found damage
    if first < num_ranks:
        distributed.broadcast_object_list(reason, first)
        raise CheckpointFailure(str(reason[0]))
    return whole


def read_once(path: str, nodes: NodeGroups | None) -> bytes:
    """Return the content of the file with DCP's metadata in the checkpoint at `path`. The first rank of each node reads
    it and sends it to the others of the node. `nodes`: None in a single process. Raises CheckpointFailure."""
    if nodes is None:
        return read_metadata(path)
    found: bytes | CheckpointFailure = b""
    if nodes.is_first:
        try:
            found = read_metadata(path)
        except CheckpointFailure as failure:
            found = failure
    found = nodes.share(found)
    if isinstance(found, CheckpointFailure):
        raise found
    return found
