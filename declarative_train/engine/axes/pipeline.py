"""Pipeline parallelism, the `pipeline` axis: the model is divided into stages on different ranks, and torch's schedules
run the stages.

Every rank of a pipeline reads the same rows. Fields of the data, and values computed from fields alone, are inputs of
each stage that uses them. They are never sent from stage to stage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from declarative_train.components.layers.modules.packed import hold
from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.data.length_buckets import buckets_of
from declarative_train.data.rank_batches import Batch
from declarative_train.engine.axes.cross_stage_ties import share_tensors
from declarative_train.engine.step.forward_path import Chunk
from declarative_train.engine.step.model_preparation import BuiltModel, storages_of
from declarative_train.engine.step.step_runner import StepRunner, Sums
from declarative_train.graph.build import build, tie
from declarative_train.graph.module_names import ByName, container, put
from declarative_train.graph.partition import Stage, open_blocks, stage_graphs

if TYPE_CHECKING:
    from declarative_train.engine.collectives import MeshPosition
    from declarative_train.plan.layout import PipelinePlan
    from declarative_train.plan.plan import Plan


def pipeline_of(plan: Plan) -> PipelinePlan:
    assert plan.layout.pipeline is not None
    return plan.layout.pipeline


def build_rank_model(plan: Plan, rank: int) -> BuiltModel:
    """Return the stages of rank number `rank` on the meta device, without values. `fill` later allocates memory and
    sets initial values."""
    pieces, names = build_stage_graphs(plan), pipeline_of(plan).stages
    stages = {index: build_stage(plan, pieces[index]) for index in plan.layout.ranks[rank].stages}
    share_tensors(list(stages.values()), [item.name for item in pipeline_of(plan).shared])
    own = {name: module for index, module in stages.items() for name in names[index]}
    nodes = [name for stage in names for name in stage]
    borrowed = {
        _find_node(item.name, nodes): stages[index]
        for item in pipeline_of(plan).shared
        for index in item.stages
        if index in stages
    }
    # borrowed modules first: a tied tensor keeps the name that it has in the whole model
    model = join_stages({name: module for name, module in borrowed.items() if name not in own} | own)
    hold([model, *stages.values()], storages_of(plan))
    return BuiltModel(model, stages, whole=build(plan.graph, plan.plugins, device="meta"))


def build_stage_graphs(plan: Plan) -> list[Stage]:
    """Return each pipeline stage as a Stage (graph, inputs and outputs), in order."""
    return list(stage_graphs(open_blocks(plan.graph, plan.layout.units), pipeline_of(plan).stages))


class PipelineDriver:
    """Driver that runs this rank's stages in the order that the plan's schedule prescribes. Create it after the model
    is sharded, because torch checks the modules when it creates a schedule."""

    def __init__(
        self,
        plan: Plan,
        runner: StepRunner,
        built: BuiltModel,
        position: MeshPosition,
        forwards: Sequence[StageForward],
    ) -> None:
        # otherwise a failing rank prints the whole schedule, over 50 lines
        logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
        self._runner = runner
        self._forwards = forwards
        self._entries = tuple(dict.fromkeys(name for each in forwards for name in each.piece.batch))
        self._num_chunks = pipeline_of(plan).num_microbatches
        self._rows_per_chunk = plan.batch.microbatch_size
        # torch splits this target into microbatches: row numbers, on the host, where reading them costs nothing
        self._row_numbers = torch.arange(self._num_chunks * self._rows_per_chunk)
        self._loss = ScheduleLoss(runner, self._rows_per_chunk)
        if not plan.layout.is_sharded:
            for module in built.stages.values():
                keep_parameters(module)
        self._plan, self._built, self._position = plan, built, position
        self._length_name, self._bucket_ids = find_length_buckets(plan)
        self._stages: dict[int, list[RunningStage]] = {}
        self._schedules: dict[int, Any] = {}
        self._bucket_id = -1

    @property
    def buffers(self) -> list[torch.Tensor]:
        """Tensors into which torch receives values and gradients from other stages. torch allocates them for every
        microbatch in the first step, and keeps them. Each length bucket has its own buffers; these are the ones of the
        bucket that was used last."""
        return [info.buffer for stage in self._stages.get(self._bucket_id, ()) for info in stage.received]

    def run(self, step: int, chunks: Sequence[Chunk], factors: Sequence[torch.Tensor]) -> Sums:
        """Run forward and backward of step number `step`. Return the sums of the loss terms for each microbatch; [] on
        a rank without the last stage. `chunks`: one for each microbatch of the schedule. `factors`: factor of each loss
        term."""
        self._loss.begin(chunks, factors)
        for forward in self._forwards:
            forward.begin(step, chunks)
        entries = {name: torch.cat([chunk.tensors[name] for chunk in chunks]) for name in self._entries}
        self._schedule_for(chunks[0]).step(target=self._row_numbers, return_outputs=False, **entries)
        return self._loss.take()

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, torch.Tensor] | None:
        """Run the forward of a batch for an evaluation. Return the model's outputs and the batch's tensors by name;
        None on a rank without the last stage. The microbatches have a fixed size, so the last one is filled up with
        copies of the last row."""
        chunk = self._runner.forward_path.chunk(batch)
        num_rows = len(next(iter(chunk.tensors.values())))
        at_once = len(self._row_numbers)
        self._loss.pause()
        for forward in self._forwards:
            forward.pause()
        parts, schedule = [], self._schedule_for(chunk)
        for start in range(0, num_rows, at_once):
            entries = {name: pad_rows(chunk.tensors[name][start : start + at_once], at_once) for name in self._entries}
            parts.append(schedule.eval(target=self._row_numbers, **entries))
        if parts[0] is None:
            return None
        outputs = tuple(torch.cat(pieces)[:num_rows] for pieces in zip(*parts, strict=True))
        return self._runner.forward_path.by_name(chunk, outputs)

    def _schedule_for(self, chunk: Chunk) -> Any:
        """Return torch's schedule for the length of the samples in `chunk`. Each length bucket has its own stages and
        schedule, because torch's stages have fixed shapes. If the bucket changes, free the receive buffers of the
        previous bucket's stages."""
        bucket = self._bucket_ids[chunk.tensors[self._length_name].shape[1]] if self._length_name else 0
        if bucket != self._bucket_id:
            for stage in self._stages.get(self._bucket_id, ()):
                stage.move_received(torch.device("meta"))
            self._bucket_id = bucket
            if bucket not in self._schedules:
                self._schedules[bucket] = self._make_schedule(bucket)
            for stage in self._stages[bucket]:
                stage.move_received(self._runner.device)
        return self._schedules[bucket]

    def _make_schedule(self, bucket: int) -> Any:
        pipeline, group = pipeline_of(self._plan), self._position.pipeline
        assert group is not None
        made = [
            RunningStage(
                self._built.stages[each.stage],
                each.stage,
                pipeline.num_stages,
                self._runner.device,
                input_args=self._make_examples(bucket, each.stage - 1, input_dtypes(self._plan, each.stage)),
                output_args=self._make_examples(bucket, each.stage, output_dtypes(self._plan, each.stage, each.piece)),
                group=group.group,
            )
            for each in self._forwards
        ]
        self._stages[bucket] = made
        torch_class = getattr(schedules, PIPELINE_SCHEDULES[pipeline.schedule].torch_class)
        is_single = issubclass(torch_class, schedules.PipelineScheduleSingle)
        # all scaling is done in the loss (engine/step/scale.py)
        return torch_class(
            made[0] if is_single else made, n_microbatches=self._num_chunks, loss_fn=self._loss, scale_grads=False
        )

    def _make_examples(self, bucket: int, stage: int, dtypes: Sequence[torch.dtype]) -> tuple[torch.Tensor, ...]:
        """Return what a stage gives for one microbatch on this rank, as tensors on the meta device; torch uses only
        their shapes and dtypes. `bucket`: index of the length bucket. `stage`: index of the stage; for -1 (before the
        first stage) the result is empty. `dtypes`: dtypes of the outputs."""
        shapes = pipeline_of(self._plan).output_shapes[bucket][stage] if stage >= 0 else ()
        return tuple(
            torch.empty(
                (self._rows_per_chunk, *shape), dtype=dtype, device="meta", requires_grad=dtype.is_floating_point
            )
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )


class RunningStage(PipelineStage):
    """torch's pipeline stage with two changes, and with methods for its receive buffers. In an evaluation,
    `get_local_bwd_output` and `set_local_bwd_input` do nothing, because there is no backward. Gradients are made
    contiguous before they are sent, because gloo and NCCL require it."""

    @property
    def received(self) -> list[Any]:
        """Records of torch about the values and gradients that this stage receives from other stages. A record's
        attribute `buffer` is the tensor into which they are received."""
        kept = (each for table in (self.args_recv_info, self.grad_recv_info) for each in table.values())
        return [info for infos in kept for info in infos if isinstance(getattr(info, "buffer", None), torch.Tensor)]

    def move_received(self, device: torch.device) -> None:
        """Move the receive buffers to `device`, without their values. On the device `meta` they need no memory."""
        for info in self.received:
            if info.buffer.device != device:
                info.buffer = torch.empty_like(info.buffer, device=device).requires_grad_(info.buffer.requires_grad)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> Any:
        if bwd_chunk_id in self.bwd_cache:
            gradients = self.bwd_cache[bwd_chunk_id]
            self.bwd_cache[bwd_chunk_id] = tuple(None if item is None else item.contiguous() for item in gradients)
        return super().get_bwd_send_ops(bwd_chunk_id)

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


class StageForward:
    """Forward of one pipeline stage. It seeds the random generators, runs the stage's module, and converts the outputs
    to the dtypes that torch expects. Its n-th call in a step must be for microbatch n; torch's schedules ensure this.
    """

    def __init__(self, runner: StepRunner, stage: int, piece: Stage, plan: Plan) -> None:
        self.stage = stage
        self.piece = piece
        self._runner = runner
        self._dtypes = output_dtypes(plan, stage, piece)
        self._step = 0
        self._position = 0
        self._chunks: Sequence[Chunk] | None = None

    def begin(self, step: int, chunks: Sequence[Chunk]) -> None:
        self._step, self._position, self._chunks = step, 0, chunks

    def pause(self) -> None:
        """Prepare for an evaluation. Until the next `begin`, forwards neither seed random generators nor update
        statistics."""
        self._chunks = None

    def bind(self, module: nn.Module) -> None:
        """Replace the `forward` of the stage's module by a function for torch's schedule. It takes the values of the
        previous stage as positional arguments, and all tensors of the batch as keyword arguments."""
        forward: Callable[..., tuple[torch.Tensor, ...]] = module.forward
        batch, runner, dtypes = self.piece.batch, self._runner, self._dtypes

        def run_stage(*wires: torch.Tensor, **entries: torch.Tensor) -> tuple[torch.Tensor, ...]:
            inputs = (*wires, *(entries[name] for name in batch))
            if self._chunks is None:
                with runner.forward_path.autocast():
                    outputs = forward(*inputs)
            else:
                runner.observer.enter("stage")
                chunk = self._chunks[self._position]
                runner.randomness.begin(self._step, self._position, self.stage)
                runner.groups.begin(chunk.num_rows if chunk.row_weight is not None else None)
                with runner.forward_path.autocast():
                    outputs = forward(*inputs)
                runner.observer.enter("stage_end")
                runner.groups.end()
                self._position += 1
            return tuple(output.to(dtype) for output, dtype in zip(outputs, dtypes, strict=True))

        module.forward = run_stage


def bind_stages(plan: Plan, built: BuiltModel, runner: StepRunner) -> list[StageForward]:
    """Replace the `forward` of each pipeline stage on this rank by a StageForward, and return these. `built`: has the
    stages' modules. `runner`: has the state that a forward needs, such as random generators."""
    pieces = build_stage_graphs(plan)
    forwards = [StageForward(runner, index, pieces[index], plan) for index in built.stages]
    for forward in forwards:
        forward.bind(built.stages[forward.stage])
    return forwards


def keep_parameters(module: nn.Module) -> None:
    """Make `module.parameters()` always return the parameters that the module has now. Pipeline schedules that split
    the backward call it during the step, while half-precision copies replace the parameters in the module
    (`step/precision.py`)."""
    found = list(module.parameters())
    module.parameters = lambda recurse=True: iter(found)  # type: ignore[method-assign]


class ScheduleLoss:
    """Loss function that torch's pipeline schedule calls for each microbatch, with the outputs of the last stage and
    the indices of the microbatch's rows. It returns the sum of the loss terms, each multiplied by its factor; in an
    evaluation, 0."""

    def __init__(self, runner: StepRunner, rows_per_chunk: int) -> None:
        self._runner = runner
        self._rows_per_chunk = rows_per_chunk
        self._chunks: Sequence[Chunk] | None = None
        self._factors: Sequence[torch.Tensor] = ()
        self._sums: list[tuple[torch.Tensor, ...]] = []

    def begin(self, chunks: Sequence[Chunk], factors: Sequence[torch.Tensor]) -> None:
        self._chunks, self._factors, self._sums = chunks, factors, []

    def pause(self) -> None:
        self._chunks = None

    def take(self) -> list[tuple[torch.Tensor, ...]]:
        """Return the sums of the loss terms in this step, one tuple per microbatch; [] on a rank without the last
        stage."""
        return self._sums

    def __call__(self, outputs: tuple[torch.Tensor, ...], rows: torch.Tensor) -> torch.Tensor:
        if self._chunks is None:
            return torch.zeros(())
        runner = self._runner
        chunk = self._chunks[int(rows[0]) // self._rows_per_chunk]
        values = runner.forward_path.by_name(chunk, outputs)
        runner.groups.begin(chunk.num_rows if chunk.row_weight is not None else None)
        sums = runner.sums(values, chunk.row_weight)
        runner.groups.end()
        if runner.metrics:
            runner.metrics.update({name: value.detach() for name, value in values.items()}, chunk.row_weight)
        self._sums.append(tuple(value.detach() for value in sums))
        return torch.stack([value * factor for value, factor in zip(sums, self._factors, strict=True)]).sum()


def build_stage(plan: Plan, stage: Stage) -> nn.Module:
    """Return the module of one pipeline stage on the meta device. If one of its parameters is tied to a parameter of
    another stage, it is registered under the names of both."""
    module = build(
        stage.graph,
        plan.plugins,
        seed=plan.seed,
        device="meta",
        own_outputs=True,
        borrowed=stage.borrowed,
        added=[item.tie for item in plan.parameters if item.tie is not None],
        is_sharded=plan.layout.is_sharded,
    )
    for item in plan.parameters:
        held = dict(module.named_parameters(remove_duplicate=False))
        if item.tie is None or item.name not in held:
            continue
        if item.tie in held:
            tie(module, {item.name: item.tie})
        else:
            path, _, last = item.tie.rpartition(".")
            container(module, path).register_parameter(last, held[item.name])
    return module


def _find_node(parameter: str, nodes: Sequence[str]) -> str:
    """Return the node of the model to which a parameter belongs. `parameter`: its name, which begins with the name of
    the node and a dot. `nodes`: names of all nodes; if several fit, the longest is returned."""
    return max((name for name in nodes if parameter.startswith(f"{name}.")), key=len)


def join_stages(parts: dict[str, nn.Module]) -> nn.Module:
    """Return a module that contains nodes of several stages under their names in the whole model. `parts`: a dict from
    the name of each node to the module of the stage that contains it. The nodes' modules are shared with the stages,
    not copied."""
    whole = ByName()
    for name, stage in parts.items():
        try:
            module = stage.get_submodule(name)
        except AttributeError:
            continue  # an expression is not a module
        put(whole, name, module)
    return whole


def find_length_buckets(plan: Plan) -> tuple[str, dict[int, int]]:
    """Return the name of a field with length buckets, and a dict from length to index of the length bucket. The length
    is that of the field on one rank: the axis `context` divides it. Without length buckets, return "" and {}."""
    name, buckets = next(iter(buckets_of(plan.data).items()), ("", ()))
    context = plan.layout.context
    size = plan.layout.size("context") if context is not None and name in context.names else 1
    return name, {length // size: bucket for bucket, length in enumerate(buckets)}


def input_dtypes(plan: Plan, stage: int) -> list[torch.dtype]:
    """Return the dtypes of the values that the stage with index `stage` receives from the previous one; [] for the
    first stage."""
    return [getattr(torch, word) for word in pipeline_of(plan).wire_dtypes[stage - 1]] if stage else []


def output_dtypes(plan: Plan, stage: int, piece: Stage) -> list[torch.dtype]:
    """Return the dtypes of the outputs of the stage with index `stage`. `piece`: the stage's graph.

    Floating-point outputs of the last stage have the dtype of the parameters, also in half-precision runs, because a
    loss would convert them to it anyway.
    """
    if stage + 1 < pipeline_of(plan).num_stages:
        return input_dtypes(plan, stage + 1)
    wide = torch.float64 if plan.training.precision == "fp64" else torch.float32
    specs = map(piece.graph.spec, piece.graph.outputs.values())
    return [wide if spec.is_floating else getattr(torch, spec.dtype) for spec in specs]


def pad_rows(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Return a tensor of `size` rows: `rows`, followed by copies of their last row."""
    missing = size - len(rows)
    return rows if missing == 0 else torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
