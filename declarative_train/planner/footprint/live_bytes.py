"""Count of the bytes of all live tensors while a step runs, by class.

A dispatch mode sees the storages of the results of each operation; a weak reference reports when a storage is freed.
The class is parameters, gradients or optimizer if the storage has such an owner, else the phase of the step in which it
was created. Memory that a kernel allocates and frees within one operation is not counted. The count was never compared
with torch's allocator on a GPU."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

CLASSES = ("parameters", "gradients", "optimizer", "gathered", "activations", "loss", "data")
PARAMETERS, GRADIENTS, OPTIMIZER, GATHERED, ACTIVATIONS, LOSS, DATA = range(len(CLASSES))
WHOLE = len(
    CLASSES
)  # gradients of a sharded model before the reduction, whose size does not depend on the number of ranks
KINDS = len(CLASSES) + 1
_COMMUNICATES = ("c10d", "_c10d_functional", "fsdp")
_DEVICE = torch.ops.prim.device.default
_TO_REDUCE = "fsdp::chunk_cat"  # its inputs are whole gradients
_REDUCE_SCATTER = "c10d::_reduce_scatter_base_"  # gloo reduces a copy of the whole input, then splits it
_SPLIT = "aten::split.Tensor"
_WIRES = ("c10d::send", "c10d::recv")  # between the stages of a pipeline: activations


class Storage:
    """Storage of a tensor, live or freed. `kind`: the class to which its bytes are counted, an index into `CLASSES`.
    The class may change during the life of the storage."""

    __slots__ = ("is_claimed", "is_piece", "kind", "num_bytes", "reference")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.num_bytes = 0
        self.is_claimed = self.is_piece = False
        self.reference: Any = None


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of live bytes, active within its `with` block. Storages are divided into classes such as parameters; a
    class is an index in CLASSES.

    phase            class of storages that are created from now on
    changes          pairs (storage, change in bytes), in order of time
    operations       for each operation that changed something: (name, length of `changes` after it, pass). A pass is a
                     part of the step, such as ("forward", index of the forward)
    between          pass of operations outside of autograd
    total, peak      live bytes now; the most so far
    copies_reduced   also count the copy that gloo makes of a tensor before it reduces it
    """

    def __init__(self, *, copies_reduced: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._copies_reduced = copies_reduced
        self.phase = ACTIVATIONS
        self.between = ("forward", 0)
        self.changes: list[tuple[Storage, int]] = []
        self.operations: list[tuple[str, int, tuple[str, int]]] = []
        self.total = self.peak = 0
        self._stored: dict[int, Storage] = {}  # by id: torch keeps the Python object of a storage as long as that lives
        self._lock = threading.RLock()

    def add(self, tensor: Any) -> Storage | None:
        """Count the storage of a tensor if it is new, and return its `Storage`. Return None for a tensor without
        storage, such as a meta tensor."""
        if hasattr(tensor, "to_local"):
            with torch.no_grad():  # otherwise it makes a view, which is an operation
                tensor = tensor.to_local()
        if tensor.device.type == "meta":
            return None
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # a sparse tensor has none
            return None
        key, num_bytes = id(storage), storage.nbytes()
        with self._lock:
            stored = self._stored.get(key)
            if stored is None:
                stored = self._stored[key] = Storage(self.phase)
                stored.reference = weakref.ref(storage, partial(self._free, key))
            if stored.num_bytes != num_bytes and not stored.is_piece:
                self._change(stored, num_bytes)
        return stored

    def claim(self, tensor: Any, kind: int) -> None:
        """Count the bytes of a tensor's storage in the class `kind`, such as PARAMETERS, until the storage is freed."""
        stored = self.add(tensor)
        if stored is not None:
            stored.kind, stored.is_claimed = kind, True

    def take_batch(self, tensor: Any) -> None:
        """Count a tensor of a batch as input data. Count the bytes of the tensor instead of those of its storage,
        because one storage may contain the batches of several steps."""
        storage = tensor.untyped_storage()
        stored = self._stored.get(id(storage))
        if stored is None:
            stored = self._stored[id(storage)] = Storage(DATA)
            stored.reference = weakref.ref(storage, partial(self._free, id(storage)))
        stored.is_claimed = stored.is_piece = True
        self._change(stored, stored.num_bytes + tensor.nbytes)

    def note_resize(self, storage: Any) -> None:
        with self._lock:
            stored = self._stored.get(id(storage))
            if stored is not None:
                self._change(stored, storage.nbytes())

    def _free(self, key: int, _: object) -> None:
        with self._lock:
            stored = self._stored.pop(key, None)
            if stored is not None:
                self._change(stored, 0)

    def _change(self, stored: Storage, num_bytes: int) -> None:
        more = num_bytes - stored.num_bytes
        stored.num_bytes = num_bytes
        self.changes.append((stored, more))
        self.total += more
        self.peak = max(self.peak, self.total)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:  # the most frequent call: torch asks a fake tensor for its device before each operation
            return args[0].fake_device
        name = func.name()
        if name == _SPLIT:
            self._count_copy(args[0])
        made = func(*args, **(kwargs or {}))
        copy = self._add_copy(args[1]) if self._copies_reduced and name == _REDUCE_SCATTER else None
        for item in tensors_in(made):
            self.add(item)
        if name.startswith(_TO_REDUCE):
            for gradient in tensors_in(args):
                self.claim(gradient, WHOLE)
        if func.namespace in _COMMUNICATES and not name.startswith(_WIRES):
            self._claim_buffers((made, args, kwargs))
        # queries of a tensor (`prim::device`) may be cached, and then are not dispatched again
        is_new = not self.operations or len(self.changes) > self.operations[-1][1]
        if is_new and func.namespace != "prim":
            backward = torch._C._current_graph_task_id()
            self.operations.append((name, len(self.changes), ("backward", backward) if backward >= 0 else self.between))
        del copy
        return made

    def _add_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = torch.empty_like(tensor)
        stored = self.add(copy)
        assert stored is not None
        stored.kind = GATHERED
        return copy

    def _count_copy(self, tensor: Any) -> None:
        """Count the copy of `tensor` that gloo makes for a collective, in the memory class GATHERED. No operation
        returns this copy, so it would not be counted otherwise."""
        is_new = id(tensor.untyped_storage()) not in self._stored
        stored = self.add(tensor)
        if is_new and stored is not None:
            stored.kind = GATHERED

    def _claim_buffers(self, tensors: Any) -> None:
        """Set `kind` to GATHERED for the storages of the tensors that a collective reads or writes, except those whose
        kind was set by `claim`."""
        for item in tensors_in(tensors):
            stored = self.add(item)
            if stored is not None and not stored.is_claimed:
                stored.kind = GATHERED


def tensors_in(found: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in `found`, the arguments or results of an operation: a tensor, or nested lists, tuples and
    dicts."""
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, list | tuple | dict):
        for each in found.values() if isinstance(found, dict) else found:
            yield from tensors_in(each)


@contextmanager
def count_resizes(live: LiveBytes) -> Iterator[None]:
    """Count in `live` each storage that is resized inside the `with` block. `fully_shard` frees gathered parameters by
    resizing their storages."""
    resize = torch.UntypedStorage.resize_

    def note_resize(storage: Any, size: Any) -> Any:
        found = resize(storage, size)
        live.note_resize(storage)
        return found

    torch.UntypedStorage.resize_ = note_resize  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
