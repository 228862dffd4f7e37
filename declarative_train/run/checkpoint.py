"""Saving of a run's state to a checkpoint, and loading of a checkpoint under any layout of ranks.

torch's distributed checkpoint (DCP) saves tensors under names that do not depend on the mode: `model/<parameter or
buffer>`, `ema/<parameter>` for moving averages, and `optimizer/<parameter>/<entry>`. The manifest, a JSON file, has the
RunState and the optimizer's plain numbers. `engine/checkpoints/format.py` writes the tensor files,
`engine/checkpoints/store.py` manages the folders."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from declarative_train.components.layers.modules.divided import find_cuts
from declarative_train.components.layers.modules.packed import as_written, find_packed, unpack_tensor
from declarative_train.core.cuts import RankCut
from declarative_train.core.packs import hooks
from declarative_train.data.order import samples_until
from declarative_train.engine.checkpoints.retry import LOOK_S, retry_on
from declarative_train.engine.checkpoints.store import CheckpointEntry, CheckpointStore
from declarative_train.engine.checkpoints.together import ALONE, check_together, collect, join_groups, read_once
from declarative_train.engine.collectives import Ranks, local_part
from declarative_train.engine.failures import CheckpointFailure, PeerFailure, first_line, limit_s
from declarative_train.engine.step import frozen_base
from declarative_train.engine.step.load_weights import write_packed
from declarative_train.files.open_files import format_path
from declarative_train.plan.checkpoint_files import EMA, FORMAT, PLAN
from declarative_train.plan.codec import to_masked_json
from declarative_train.run.run_state import RunState
from declarative_train.run.signals import SAVING

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

    from declarative_train.engine.engine import Engine
    from declarative_train.plan.plan import Plan


# up to this size a replicated model is written by one rank: faster than sharing the work out among all
BY_ONE_RANK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Data of one checkpoint that this rank writes. `best_step`: step of the best checkpoint, which is never deleted.
    `keep`: how many of the newest checkpoints are not deleted. `tensors`: copies of the tensors; if training waits for
    the save, the tensors themselves. `numbers`: plain numbers in the optimizer's state; {} if another rank writes them.
    `alone`: this is the only rank that writes."""

    step: int
    best_step: int | None
    keep: int
    tensors: dict[str, torch.Tensor]
    numbers: dict[str, float]
    manifest: dict[str, Any]
    alone: bool


class Checkpoints:
    """Writer and reader of a run's checkpoints. Every rank must call the same methods in the same order.

    With `checkpoint.background`, `save` copies the tensors to host memory, and a thread writes them while training
    continues (docs/decisions.md, 25). The threads of all ranks have a process group of their own, because two threads
    must not use one group at a time."""

    def __init__(
        self, plan: Plan, engine: Engine, store: CheckpointStore, before_publishing: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare the saving. `before_publishing`: function that rank 0 calls before a checkpoint becomes visible."""
        self.store = store
        self._before_publishing = before_publishing
        self._plan = plan
        self._plan_text = to_masked_json(plan).encode()  # secrets are masked: no run executes this plan
        self._engine = engine
        self._alone = not (distributed.is_available() and distributed.is_initialized())
        self._rank = 0 if self._alone else distributed.get_rank()
        self._num_ranks = 1 if self._alone else distributed.get_world_size()
        self._background = plan.checkpoint is not None and plan.checkpoint.background
        self._thread = ThreadPoolExecutor(1, "checkpoint") if self._background else None
        self._under_way: Future[None] | None = None
        self._buffers: dict[str, torch.Tensor] = {}
        self._retry = retry_on(store.is_local)
        self._reported: str | None = None
        self._groups = ALONE
        if not self._alone:
            self._groups = join_groups(plan.layout, self._background, by_rank_0=self._by_one_rank(0))
        self._read: tuple[str, Metadata] | None = None  # metadata of the checkpoint that is being loaded
        if plan.checkpoint is not None:
            from declarative_train.engine.checkpoints import format as _  # noqa: F401  # not during the first save
        components = [plan.data.source, *(field.component for field in plan.data.fields)]
        self._files_of_packs: dict[str, bytes] = {}
        for checkpoint_files in hooks("checkpoint_files") if self._rank == 0 else ():
            self._files_of_packs |= checkpoint_files(components)  # the files may be gone at the first save
        self._cuts = find_cuts(engine.model)
        self._part_shapes = {name: engine.model.get_parameter(name).shape for name in self._cuts}
        self._in_base = {name for _, names in frozen_base.find_base_files(plan) for name in names}
        self._base: list[frozen_base.Record] | None = None

    def record_base(self) -> None:
        """Record sizes and checksums of the pretrained files with the frozen weights, if the model has adapters.
        Checkpoints refer to these files instead of copying the weights. Raises RunFailure."""
        if self._base is None and self._rank == 0:
            self._base = frozen_base.record_base(self._plan)

    def save(self, state: RunState, *, is_best: bool, keep: int) -> str:
        """Begin to save model, optimizer and `state` as a new checkpoint, and return its path. The checkpoint is
        complete when `wait` has returned. An error of the save is raised by `wait` or by the next `save`. `is_best`:
        mark the checkpoint as the run's best. `keep`: number of the newest checkpoints that are not deleted."""
        self.wait()
        self._retry, self._reported = retry_on(self.store.is_local), None
        with SAVING.going_on():  # a stop request does not end the process meanwhile
            snapshot = self._take_snapshot(state, is_best=is_best, keep=keep)
            if snapshot is not None and self._thread is None:
                self._under_way = Future()
                try:
                    self._write(snapshot)
                    self._under_way.set_result(None)
                except Exception as error:
                    self._under_way.set_exception(error)
        if snapshot is not None and self._thread is not None:
            self._buffers = copy_to_host(snapshot.tensors, self._buffers)
            # drop the original tensors first: freeing them releases the GIL to the thread
            snapshot = replace(snapshot, tensors=self._buffers)
            self._under_way = self._thread.submit(self._write_in_background, snapshot)
        return self.store.path(state.step)

    def is_stuck(self) -> bool:
        """Return True if the current save is stuck: the remote store of some rank does not answer. Otherwise wait until
        the save is complete, and return False. For a local folder, return False without waiting. All ranks must call
        this together, and all get the same result."""
        if self.store.is_local:
            return False
        while True:  # this rank's thread may wait for another rank, whose store does not answer
            is_writing = self.is_writing
            votes = torch.tensor([float(is_writing and self._retry.is_stuck), float(is_writing)])
            if isinstance(self._engine.ranks, Ranks):
                votes = self._engine.ranks.sum(votes)
            num_stuck, num_writing = votes.tolist()
            if num_stuck or not num_writing:
                return bool(num_stuck)
            time.sleep(LOOK_S)

    def take_stuck_reason(self) -> str | None:
        """Return why this rank's save is stuck; None if it is not stuck, or if this reason was returned before."""
        reason = self._retry.reason
        if reason is None or reason == self._reported:
            return None
        self._reported = reason
        return reason

    @property
    def is_writing(self) -> bool:
        return self._under_way is not None and not self._under_way.done()

    def wait(self) -> None:
        """Wait until the current save is complete. Raises the error of the writing thread."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def settle(self) -> None:
        """Wait until the current save ends, at most `DTRAIN_SAVE_S` seconds. Called before an exit after a failure."""
        if self._under_way is not None:
            wait([self._under_way], limit_s("DTRAIN_SAVE_S"))

    def _take_snapshot(self, state: RunState, *, is_best: bool, keep: int) -> Snapshot | None:
        """Return the data that this rank writes to a checkpoint, or None if it writes nothing. The arguments are those
        of `save`."""
        self._engine.synchronize_buffers()
        if self._engine.loss_scale is not None:
            state.loss_scale = self._engine.loss_scale.state()
        moments, numbers = optimizer_entries(self._engine)
        self.record_base()
        own = {name: item for name, item in model_tensors(self._engine.model).items() if not self._is_in_base(name)}
        packed = {f"model/{name}": each for name, each in find_packed(self._engine.model).items()}
        own |= {name: unpack_tensor(item, packed[name]) for name, item in own.items() if name in packed}
        tensors = own | average_tensors(self._engine) | moments
        alone = self._alone or self._by_one_rank(sum(tensor.nbytes for tensor in tensors.values()))
        if (alone and self._rank != 0) or not self._groups.writes:
            return None
        if self._rank == 0:
            self._before_publishing()
        if self._rank != 0 and self._engine.dp_rank != 0:
            numbers = {}  # another rank with the same part of the model writes them
        manifest = self._manifest(state, is_best)
        return Snapshot(state.step, state.best_step, keep, tensors, numbers, manifest, alone)

    def _write_in_background(self, snapshot: Snapshot) -> None:
        with SAVING.going_on():
            self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        """Write a checkpoint. Raises OSError if a disk fails, CheckpointFailure if a remote store fails, and
        PeerFailure if another rank cannot write."""
        try:
            self._write_all(snapshot)
        except RuntimeError:  # another rank was lost
            raise
        except Exception as error:  # the client of a remote store has its own exceptions
            if self._rank == 0:
                with suppress(OSError):
                    self.store.discard(snapshot.step)
            if self.store.is_local or isinstance(error, PeerFailure):
                raise
            place, reason = format_path(self.store.root), first_line(error)
            raise CheckpointFailure(
                f"the checkpoint of step {snapshot.step} cannot be written to {place}: {reason}"
            ) from error

    def _write_all(self, snapshot: Snapshot) -> None:
        from declarative_train.engine.checkpoints.format import save_tensors

        retry, step = self._retry, snapshot.step
        files, shapes = save_tensors(
            self.store.partial_path(step),
            snapshot.tensors,
            alone=snapshot.alone,
            group=self._groups.writers,
            cuts=self._find_cut(snapshot.tensors),
            retry=retry,
            prepare=lambda: self.store.prepare(step),
        )
        numbers = snapshot.numbers
        lists: dict[str, Any] = {}
        if not snapshot.alone:
            assert self._groups.writing is not None
            files, lists, numbers = collect(self.store, step, self._groups.writing, retry, files, numbers)
        if self._rank == 0:
            texts = {PLAN: self._plan_text, **self._files_of_packs}
            for name, text in texts.items():
                files = {**files, name: retry(partial(self.store.write, step, name, text))}
            shapes |= {
                f"model/{each.name}": list(each.shape) for each in self._plan.parameters if self._is_in_base(each.name)
            }
            written = manifest_of(files, numbers, shapes) | ({"lists": lists} if lists else {})
            retry(lambda: self.store.publish(step, snapshot.manifest | written))
            retry(lambda: self.store.retain(snapshot.keep, snapshot.best_step))

    def _by_one_rank(self, num_bytes: int) -> bool:
        """Return whether rank 0 alone writes the checkpoint of `num_bytes` bytes. It does so if every rank has the
        whole model, and the checkpoint is small or is written in the background."""
        return self._engine.is_replicated and (self._background or num_bytes <= BY_ONE_RANK_BYTES)

    def at(self, step: int) -> CheckpointEntry:
        """Check all bytes of the checkpoint of a step, and return it. Rank 0 checks the manifest and the sizes; each
        rank reads some of the files. Raises CheckpointFailure on all ranks if any rank finds damage."""
        return check_together(self.store.path(step), self._groups.reading)

    def _read_metadata(self, entry: CheckpointEntry) -> Metadata:
        from declarative_train.engine.checkpoints.format import parse_metadata

        if self._read is None or self._read[0] != entry.path:
            self._read = entry.path, parse_metadata(read_once(entry.path, self._groups.reading))
        return self._read[1]

    def load(self, entry: CheckpointEntry) -> RunState:
        """Load model and optimizer from a checkpoint, and return its RunState. The content must already be checked, by
        `at` or `CheckpointStore.newest`. Raises CheckpointFailure."""
        self.load_model(entry, with_base=True)
        if self._in_base:  # the base of the checkpoint, even if the recipe now names other files
            self._base = [frozen_base.locate_files(record, entry.path) for record in entry.manifest.get("base", [])]
            self._in_base = frozen_base.names_in(self._base)
        self._load_optimizer(entry)
        self._read = None
        state = RunState.from_json(entry.manifest["state"])
        if self._engine.loss_scale is not None and state.loss_scale is not None:
            self._engine.loss_scale.load(state.loss_scale)
        return state

    def load_model(self, entry: CheckpointEntry, *, with_base: bool = False) -> None:
        """Load parameters, buffers and moving averages, but no optimizer. `with_base`: also load the frozen weights
        from the pretrained files to which the checkpoint refers."""
        from declarative_train.engine.checkpoints.format import list_tensors, load_tensors

        self._engine.switch_weights(trains=False)  # as saved
        records = entry.manifest.get("base", [])
        wanted, packed = model_tensors(self._engine.model), find_packed(self._engine.model)
        in_base = {f"model/{name}" for name in frozen_base.names_in(records)}
        for record in records if with_base else ():
            source = frozen_base.open_base(record, entry.path)
            with torch.no_grad():
                into = {name: wanted[f"model/{name}"] for name in source.shapes if f"model/{name}" in wanted}
                write_packed(source, into, packed, {name: cut for name, cut in self._cuts.items() if name in into})
        wanted = {name: item for name, item in wanted.items() if name not in in_base}
        metadata = self._read_metadata(entry)
        held = list_tensors(metadata)
        missing = sorted(set(wanted) - set(held))
        if missing:
            raise CheckpointFailure(f"the checkpoint {entry.path} lacks {missing[0]} and {len(missing) - 1} more")
        averages = average_tensors(self._engine)
        has_averages = averages.keys() <= held.keys()
        with ExitStack() as written:
            wanted |= {
                name: written.enter_context(as_written(item, packed[name.removeprefix("model/")], on_host=True))
                for name, item in wanted.items()
                if name.removeprefix("model/") in packed
            }
            wanted |= averages if has_averages else {}
            load_tensors(entry.path, wanted, alone=self._alone, cuts=self._find_cut(wanted), metadata=metadata)
        if has_averages:
            return
        if self._engine.average is not None:  # the checkpoint has no moving averages
            self._engine.average.begin_again()

    def _load_optimizer(self, entry: CheckpointEntry) -> None:
        from declarative_train.engine.checkpoints.format import list_tensors, load_tensors

        metadata, parameters = self._read_metadata(entry), self._engine.optimizer.parameters
        targets: dict[str, torch.Tensor] = {}
        state: dict[str, dict[str, Any]] = {}
        for key, (size, dtype) in list_tensors(metadata).items():
            kind, _, rest = key.partition("/")
            name, _, word = rest.rpartition("/")
            if kind != "optimizer" or name not in parameters:
                continue
            target = empty_like(parameters[name], size, dtype, self._cuts.get(name))
            targets[key] = state.setdefault(name, {})[word] = target
        if targets or not self._alone:  # all ranks load together, also those of a stage without optimizer state
            load_tensors(
                entry.path,
                targets,
                alone=self._alone,
                cuts=self._find_cut(targets),
                metadata=metadata,
            )
        for key, value in entry.manifest["optimizer_numbers"].items():
            name, _, word = key.rpartition("/")
            if name in parameters:
                state.setdefault(name, {})[word] = value
        self._engine.optimizer.load(state)

    def _find_cut(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, RankCut]:
        """Return {key: part of the whole tensor that this rank has} for each of `tensors` that is divided over the axis
        `tensor` or `expert`. These are parameters, their moving averages, and optimizer state of the same shape."""
        found = {}
        for key, tensor in tensors.items():
            name = key.partition("/")[2]
            for each in (name, name.rpartition("/")[0]):
                if each in self._cuts and tensor.shape == self._part_shapes[each]:
                    found[key] = self._cuts[each]
        return found

    def _manifest(self, state: RunState, is_best: bool) -> dict[str, Any]:
        plan = self._plan
        return {
            "format": FORMAT,
            "dtrain_version": plan.dtrain_version,
            "name": plan.name,
            "step": state.step,
            "epoch": -(-state.step // plan.batch.steps_per_epoch),
            "samples": samples_until(state.step, plan.batch, plan.data.set("training").num_samples),
            "is_best": is_best,
            "fingerprint": plan.fingerprint,
            "mode": plan.layout.mode,
            "num_ranks": self._num_ranks,
            "time_unix_s": time.time(),
            "state": state.as_json(),
            **({"base": self._base_from(state.step)} if self._base else {}),
        }

    def _base_from(self, step: int) -> list[frozen_base.Record]:
        return [frozen_base.add_relative_path(record, self.store.path(step)) for record in self._base or ()]

    def _is_in_base(self, key: str) -> bool:
        return key.removeprefix("model/") in self._in_base


def copy_to_host(tensors: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of `tensors` in host memory; of a sharded tensor, only this rank's shard. `buffers`: the copies of
    the last save. If shape and dtype fit, they are overwritten, which is faster than allocating memory."""
    copies: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        source, kept = tensor.detach(), buffers.get(name)
        if kept is None or (kept.shape, kept.dtype, type(kept)) != (source.shape, source.dtype, type(source)):
            copies[name] = source.to("cpu", non_blocking=True, copy=True)
        else:
            copies[name] = kept
            local_part(kept).copy_(local_part(source), non_blocking=True)
    for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
    return copies


def manifest_of(
    files: Mapping[str, Any], numbers: Mapping[str, float], shapes: Mapping[str, list[int]]
) -> dict[str, Any]:
    """Return the entries `files`, `optimizer_numbers` and `shapes` of a manifest. Only shapes under keys `model/...`
    are kept, and the prefix is removed. `dtrain lint` compares these shapes with a recipe, without importing torch."""
    return {
        "optimizer_numbers": dict(numbers),
        "shapes": {name.removeprefix("model/"): each for name, each in shapes.items() if name.startswith("model/")},
        "files": dict(sorted(files.items())),
    }


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's parameters (a tied one once) and persistent buffers, under the keys `model/<name>`."""
    persistent = model.state_dict(keep_vars=True)
    found = {name: item.detach() for name, item in model.named_parameters()}
    found |= {name: item for name, item in model.named_buffers() if name in persistent}
    return {f"model/{name}": tensor for name, tensor in found.items()}


def average_tensors(engine: Engine) -> dict[str, torch.Tensor]:
    """Return the moving averages of the parameters under the keys `ema/<parameter>`; {} if the run has none."""
    return {} if engine.average is None else {f"{EMA}{name}": item for name, item in engine.average.tensors.items()}


def optimizer_entries(engine: Engine) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Return the optimizer's state in two dicts: tensors `optimizer/<parameter>/<entry>` and numbers
    `<parameter>/<entry>`."""
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, float] = {}
    for name, word, value in engine.optimizer.state():
        if isinstance(value, torch.Tensor) and not (word == "step" and value.device.type == "cpu"):
            tensors[f"optimizer/{name}/{word}"] = value
        elif isinstance(value, torch.Tensor):
            numbers[f"{name}/{word}"] = value.item()  # a separate file would cost 500 bytes and half a millisecond
        elif isinstance(value, int | float):
            numbers[f"{name}/{word}"] = value
    return tensors, numbers


def empty_like(
    parameter: torch.Tensor, size: torch.Size, dtype: torch.dtype, cut: RankCut | None = None
) -> torch.Tensor:
    """Return a tensor of zeros, into which optimizer state of a parameter is loaded. `size`: shape of the state in the
    checkpoint. If the whole parameter has this shape, the result is divided and sharded like `parameter`. Otherwise the
    result has the shape `size`. `cut`: how ranks divide the whole parameter; None if they do not."""
    if tuple(size) == (tuple(parameter.shape) if cut is None else cut.whole_shape(parameter.shape)):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    return torch.zeros(size, dtype=dtype, device=parameter.device)
