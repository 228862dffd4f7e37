"""A GPU that is pretended where there is none: which code would fail on CUDA, and where it would make the host wait.

    with PretendGpu() as gpu:
        run_rank(RankJob(plan, "cuda", RunPlace(run_dir, None), None, no_sinks), FailureContext(0), lambda: False)
    assert gpu.waits_in_steps() == {}

All memory stays the CPU's. What would be on the GPU is known by its storage, and its tensors say `device == cuda:0`.
An operation that mixes both sides as CUDA refuses to raises MixedDevicesError with the line of the project that asked
for it; one that makes the host wait for the device is counted under its line. Values are those of the CPU.

`PretendGpu(MPS)` is the GPU of an Apple machine: it has no float64, and what would be one there raises NoFloat64Error.

What happens in C++ alone is not seen: tensors that first turn up in a backward pass belong to neither side until they
are found in the `grad` of a parameter, so schedules that split backward cannot be run, nor sharded models, nor the
replicas of `dp`, which torch copies and gathers in C++. Tensors without memory that say `cuda` would not do either: a
CPU build of torch has no autograd for them. Of streams there is one for copies next to the one that computes, and of it
only who may read what; kernels and memory limits are not pretended.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

import declarative_train
from declarative_train.data import prefetch

PACKAGE = str(Path(declarative_train.__file__).parent)
GPU = torch.device("cuda", 0)
MPS = torch.device("mps", 0)

# take tensors of both sides: they copy, or ask for nothing that lies in memory
CROSSES = frozenset(
    [
        "copy_",
        "_foreach_copy_",
        "to",
        "type_as",
        "view_as",
        "expand_as",
        "reshape_as",
        "is_same_size",
        "__getitem__",
        "register_hook",
        "data_ptr",
        "_has_compatible_shallow_copy_type",
        "is_set_to",
        "requires_grad_",
        "split_with_sizes_copy",
    ]
)
# others take a number of the CPU (a tensor without dimensions) next to tensors of the GPU; these do not
NO_NUMBERS = frozenset(
    [
        "stack",
        "cat",
        "concatenate",
        "index_select",
        "gather",
        "scatter_",
        "scatter_add_",
        "index_put_",
        "index_add_",
        "take_along_dim",
        "linear",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "embedding",
        "batch_norm",
        "layer_norm",
        "cross_entropy",
    ]
)
# the host waits for a value, or for a number of elements
READS = frozenset(
    [
        "item",
        "tolist",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__contains__",
        "numpy",
        "__array__",
        "nonzero",
        "argwhere",
        "unique",
        "unique_consecutive",
        "masked_select",
        "equal",
        "allclose",
        "is_nonzero",
        "bincount",
    ]
)
FROM_HOST = frozenset(["tensor", "as_tensor", "asarray"])  # what these put on a device is copied, and waited for
RECURRENT = frozenset(["lstm", "gru", "rnn_tanh", "rnn_relu"])
PRUNE_EVERY = 4096


class MixedDevicesError(RuntimeError):
    """What CUDA would refuse with "Expected all tensors to be on the same device"."""


class MixedStreamsError(RuntimeError):
    """What CUDA would not refuse: numbers read before they are there."""


class OtherGpuError(RuntimeError):
    """What CUDA would not refuse: a thread that begins on GPU 0, and so makes a context there, on every rank."""


class HalfRnnError(RuntimeError):
    """What CUDA would not refuse: under autocast, also of bfloat16, cuDNN's recurrent layers compute in float16."""


class NoFloat64Error(RuntimeError):
    """What MPS would refuse with "Cannot convert a MPS Tensor to float64 dtype"."""


class PretendGpu(TorchFunctionMode):
    """`waits`: (what the host waited for, the line of the project), with the number of times."""

    def __init__(self, device: torch.device = GPU) -> None:
        super().__init__()
        self.device = device
        self.waits: Counter[tuple[str, str]] = Counter()
        self._in_steps: Counter[tuple[str, str]] = Counter()
        self._held: dict[int, StorageWeakRef] = {}  # storages of the GPU
        self._stream = 0  # 1: the side stream
        self._copied: dict[int, StorageWeakRef] = {}  # storages that the side stream has filled
        self.num_taken_over = 0
        self._is_placed = True  # whether the thread at work has chosen its GPU
        self.free_bytes = 80 << 30
        self.peak_bytes = 1 << 30  # of the start; that of steps is half of it
        self._patches = ExitStack()

    def waits_in_steps(self) -> dict[tuple[str, str], int]:
        """Those below an engine's `step`, which must not wait: the device would run dry."""
        return dict(self._in_steps)

    def __enter__(self) -> PretendGpu:
        self._patches.enter_context(cuda_patched(self))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies on the GPU."""
        key = _key(tensor)
        if key is None:
            return False
        held = self._held.get(key)
        return held is not None and not held.expired()

    def put(self, tensor: torch.Tensor) -> None:
        key = _key(tensor)
        if self.device == MPS and tensor.dtype in (torch.float64, torch.complex128):
            raise NoFloat64Error(f"float64 on mps, at {_asking()[0]}")
        if key is not None and not self.has(tensor):
            if len(self._held) % PRUNE_EVERY == PRUNE_EVERY - 1:
                self._held = {key: held for key, held in self._held.items() if not held.expired()}
            # the reference keeps the number of the storage from being given to another one
            self._held[key] = StorageWeakRef(_local(tensor).untyped_storage())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.__name__
        if func is torch.device or name == "_parse_to":
            return func(*args, **kwargs)
        if name in ("__get__", "__set__", "__delete__"):
            return self._attribute(func, name, args)
        if name == "pin_memory":
            return args[0]
        if name == "backward" and not kwargs.get("inputs"):
            return self._backward(*args, **kwargs)
        tensors = list(_tensors((args, kwargs)))
        if self._copied and not self._stream and name != "untyped_storage":
            self._refuse_untaken(name, tensors)
        on_gpu = [tensor for tensor in tensors if self.has(tensor)]
        if name == "cuda":
            name, args, kwargs = (
                "to",
                args[:1],
                {"device": self.device, "non_blocking": kwargs.get("non_blocking", False)},
            )
            func = torch.Tensor.to
        elif name == "cpu":
            name, args, func = "to", (*args, torch.device("cpu")), torch.Tensor.to
        target = _target(name, args, kwargs)
        result_on_gpu = bool(on_gpu) if target is None else target.type == self.device.type
        if name == "to" and any(other is not args[0] and self.has(other) for other in tensors[1:]):
            result_on_gpu = True
        self._count_waits(name, args, kwargs, on_gpu, result_on_gpu)
        if on_gpu and len(on_gpu) < len(tensors) and target is None and not _in_backward():
            self._refuse_mixed(name, args, [tensor for tensor in tensors if not self.has(tensor)])
        if name in RECURRENT and on_gpu and torch.is_autocast_enabled("cpu"):  # which autocast of CUDA is here
            raise HalfRnnError(f"{name} under autocast, at {_asking()[0]}")
        before = {_key(tensor) for tensor in tensors}
        # oneDNN has no lstm in bf16 for every CPU
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None) if name == "lstm" else nullcontext():
            result = func(*(_on_cpu(item) for item in args), **{key: _on_cpu(item) for key, item in kwargs.items()})
        return self._settled(result, before, name, args, result_on_gpu)

    def _backward(
        self, ends: Any, begins: Any = None, retain_graph: bool | None = None, create_graph: bool = False, **more: Any
    ) -> None:
        """torch asks for no call below one that is handled; here recomputations and hooks are to be looked at, too."""
        ends = (ends,) if isinstance(ends, torch.Tensor) else tuple(ends)
        begins = more.get("gradient", more.get("grad_tensors", begins))
        begins = (begins,) * len(ends) if begins is None or isinstance(begins, torch.Tensor) else tuple(begins)
        pairs = [(end, begin) for end, begin in zip(ends, begins, strict=True) if end.requires_grad]
        begun = tuple(torch.ones_like(end) if begin is None else begin for end, begin in pairs)
        keeps = create_graph if retain_graph is None else retain_graph
        engine: Any = torch.autograd.Variable._execution_engine
        super().__enter__()
        try:
            engine.run_backward(
                tuple(end for end, _ in pairs),
                begun,
                keeps,
                create_graph,
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )
        finally:
            super().__exit__(None, None, None)

    def _attribute(self, func: Any, name: str, args: Any) -> Any:
        word = getattr(func.__self__, "__name__", "")
        if name == "__get__" and word in ("device", "is_cuda", "is_cpu"):
            on_gpu = self.has(args[0])
            if word == "device":
                return self.device if on_gpu else func(*args)
            return on_gpu and self.device == GPU if word == "is_cuda" else not on_gpu
        found = func(*args)
        if name == "__get__" and word in ("grad", "_grad") and isinstance(found, torch.Tensor) and self.has(args[0]):
            self.put(found)
        return found

    def _count_waits(self, name: str, args: Any, kwargs: Any, on_gpu: list[torch.Tensor], result_on_gpu: bool) -> None:
        what = None
        if name in READS and on_gpu:
            what = name
        elif (name == "to" and on_gpu and not result_on_gpu) or (name == "copy_" and on_gpu and not self.has(args[0])):
            what = "copy to the host"
        elif name == "to" and not on_gpu and result_on_gpu:
            what = None if kwargs.get("non_blocking") or True in args[1:] else "copy from the host"
        elif name in FROM_HOST and not on_gpu and result_on_gpu:
            what = "copy from the host"
        elif name in ("__getitem__", "__setitem__") and on_gpu and _has_mask(args[1]):
            what = "mask as an index"
        elif name == "where" and len(args) == 1 and on_gpu:
            what = "where"
        elif name == "repeat_interleave" and on_gpu and any(isinstance(item, torch.Tensor) for item in args[1:]):
            what = None if "output_size" in kwargs else "repeat_interleave"
        if what is not None:
            line, in_step = _asking()
            self.waits[what, line] += 1
            if in_step:
                self._in_steps[what, line] += 1

    def _refuse_mixed(self, name: str, args: Any, off: list[torch.Tensor]) -> None:
        if name in CROSSES and not (name == "__getitem__" and not self.has(args[0])):
            return
        into_host = name.endswith("_") and not name.endswith("__") and args and args[0] is off[0]
        refused = off if name in NO_NUMBERS or into_host else [tensor for tensor in off if tensor.dim()]
        if name == "__setitem__" and self.has(args[0]):
            refused = []  # a copy
        if refused:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in refused[:3])
            raise MixedDevicesError(f"{name}: cuda with cpu {shapes}, at {_asking()[0]}")

    def _refuse_untaken(self, name: str, tensors: list[torch.Tensor]) -> None:
        """A kernel that reads what another stream copies, and does not wait for it."""
        if any(not held.expired() for tensor in tensors if (held := self._copied.get(_key(tensor))) is not None):
            raise MixedStreamsError(f"{name}: of a tensor that the side stream copies, at {_asking()[0]}")

    def forget_peak(self, device: Any = None) -> None:
        self.peak_bytes = 1 << 29

    def take_over(self, tensor: torch.Tensor, stream: Any) -> None:
        self.num_taken_over += self._copied.pop(_key(tensor), None) is not None

    @contextmanager
    def side(self, stream: Any) -> Iterator[None]:
        if not self._is_placed:
            raise OtherGpuError(f"a stream in a thread that has not chosen its GPU, at {_asking()[0]}")
        self._stream = 1
        try:
            yield
        finally:
            self._stream = 0

    def place(self, device: Any) -> None:
        self._is_placed = True

    def in_turn(self, make: Callable[[int], Any], first: int, count: int, depth: int = 1) -> Iterator[Any]:
        """Call `make` in place of a thread, in which no GPU is pretended."""
        for number in range(first, first + count):
            self._is_placed = False
            made = make(number)
            self._is_placed = True
            yield made

    def _settled(self, result: Any, before: set[int | None], name: str, args: Any, on_gpu: bool) -> Any:
        """New storages are where the result is; one that was there before stays, and what crosses is a copy."""
        if name in ("to", *FROM_HOST) and isinstance(result, torch.Tensor):
            crosses = _key(result) in before and self.has(result) != on_gpu
            result, before = (result.clone(), set()) if crosses else (result, before)
        if on_gpu:
            for tensor in _tensors(result):
                if _key(tensor) not in before:
                    self.put(tensor)
                    if self._stream:
                        self._copied[_key(tensor)] = StorageWeakRef(_local(tensor).untyped_storage())
        return result


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Of a DTensor, this rank's part."""
    return getattr(tensor, "_local_tensor", tensor)


def _key(tensor: torch.Tensor) -> int | None:
    """The storage's number; None where there is none (meta tensors have one each)."""
    try:
        key: int = _local(tensor).untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return key


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for item in found:
            yield from _tensors(item)
    elif isinstance(found, dict):
        yield from _tensors(list(found.values()))


def _target(name: str, args: Any, kwargs: Any) -> torch.device | None:
    """The device that a call names, if it names one."""
    found = kwargs.get("device")
    if found is None and name == "to":
        found = next((item for item in args[1:] if isinstance(item, str | torch.device)), None)
    return torch.device(found) if isinstance(found, str) else found


def _on_cpu(argument: Any) -> Any:
    is_gpu = isinstance(argument, str | torch.device) and str(argument).startswith(("cuda", "mps"))
    return torch.device("cpu") if is_gpu else argument


def _has_mask(index: Any) -> bool:
    parts: Iterable[Any] = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in parts)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _asking() -> tuple[str, bool]:
    """(the innermost line of the project, whether an engine's `step` is at work)."""
    line, in_step, frame = "", False, sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            place = code.co_filename.removeprefix(PACKAGE).lstrip("/")
            line = line or f"{place}:{frame.f_lineno} {code.co_name}"
            in_step = in_step or (code.co_name == "step" and place.startswith("engine/engine.py"))
        frame = frame.f_back  # type: ignore[assignment]
    return line or "no line of the project", in_step


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu", *args, **kwargs)


class _Generator:
    """What is drawn on the CPU in truth is seeded with the CPU's generator."""

    def manual_seed(self, seed: int) -> None: ...


def _without_device(tensor: torch.Tensor) -> dict[str, Any]:
    return {"shape": tensor.shape, "dtype": tensor.dtype}


@contextmanager
def cuda_patched(gpu: PretendGpu) -> Iterator[None]:
    """What torch asks the driver for, and the places where its own Python and its C++ would see two devices."""
    by_device = optimizer._group_tensors_by_device_and_dtype

    def by_pretended_device(lists: Any, with_indices: bool = False) -> Any:
        found = by_device(lists, with_indices)
        return {
            (gpu.device if gpu.has(groups[0][0]) else device, dtype): (groups, indices)
            for (device, dtype), (groups, indices) in found.items()
        }

    checks = checkpoint._allowed_determinism_checks_to_fns
    with ExitStack() as stack:
        for name, value in {
            "current_device": lambda: 0,
            "default_generators": (_Generator(),) * 8,
            # a CUDA build asks this whether there is CUDA: next to Apple's GPU there is none, and DCP copies otherwise
            "device_count": lambda: 8 if gpu.device == GPU else 0,
            "get_device_name": lambda device=None: "NVIDIA H100 80GB HBM3",
            "is_current_stream_capturing": lambda: False,  # a CUDA build asks the driver
            "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
            "max_memory_allocated": lambda device=None: gpu.peak_bytes,
            "reset_peak_memory_stats": gpu.forget_peak,
            "mem_get_info": lambda device=None: (gpu.free_bytes, 80 << 30),
            "set_device": gpu.place,
            "Stream": mock.MagicMock(),
            "current_stream": mock.MagicMock(),
            "stream": gpu.side,
            "synchronize": lambda device=None: None,
            "set_rng_state": lambda state, device="cuda": None,
        }.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        taken = mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: gpu.take_over(tensor, stream))
        stack.enter_context(taken)
        stack.enter_context(mock.patch.object(torch.mps, "manual_seed", return_value=None))
        stack.enter_context(mock.patch.object(optimizer, "_group_tensors_by_device_and_dtype", by_pretended_device))
        stack.enter_context(mock.patch.dict(checks, dict.fromkeys(checks, _without_device)))
        stack.enter_context(mock.patch.object(torch, "autocast", _Autocast))
        stack.enter_context(mock.patch.object(prefetch, "ahead", gpu.in_turn))
        stack.enter_context(mock.patch.object(torch.backends.cudnn, "is_acceptable", return_value=False))
        yield
