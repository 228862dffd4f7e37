"""Training loop that people write by hand: DataLoader, model, optimizer, SummaryWriter, torch.save. It runs one job,
and prints its times as one line of JSON.

    python -m benchmarks.by_hand CASE MODE EPOCHS DATA OUT     MODE: single
    torchrun --nproc-per-node 2 -m benchmarks.by_hand ...      MODE: ddp | fsdp | pipeline

It does the same as `dtrain run` for the same case: the same batches, the loss on TensorBoard and the progress printed
every 10 steps, and as many checkpoints of model and optimizer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cases import CASES, Case

if TYPE_CHECKING:
    from torch import nn


def main(name: str, mode: str, epochs: str, data: str, out: str) -> None:
    import torch
    from torch import distributed
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    from torch.utils.tensorboard import SummaryWriter

    case, num_epochs = CASES[name], int(epochs)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        distributed.init_process_group("gloo")
    loaded = np.load(data)
    dataset = TensorDataset(torch.from_numpy(loaded["x"]), torch.from_numpy(loaded["y"]))
    if mode == "pipeline":
        return pipeline(case, num_epochs, dataset, out)
    sampler = DistributedSampler(dataset, world, rank) if world > 1 else None
    loader = DataLoader(dataset, case.batch_size // world, shuffle=sampler is None, sampler=sampler)
    model = wrapped(case.make_model(), mode)
    loss_of = case.make_loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    writer = SummaryWriter(out) if rank == 0 else None
    step, first_s, num_steps = 0, 0.0, num_epochs * len(loader)
    for epoch in range(num_epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step == 1:
                first_s = time.time()
            if writer is not None and step % 10 == 0:
                report(writer, step, loss.item())
            if step % case.save_every == 0 or step == num_steps:
                save(model, optimizer, mode, rank, Path(out) / f"step_{step}")
    finish(rank, step, first_s)


def wrapped(model: nn.Module, mode: str) -> nn.Module:
    if mode == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)
    if mode == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in getattr(model, "layers", ()):
            fully_shard(layer)
        fully_shard(model)
    if mode == "tensor":
        from torch.distributed import init_device_mesh
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan = {
            "embed": RowwiseParallel(input_layouts=Replicate()),
            "layers.*.attn.qkv": ColwiseParallel(),
            "layers.*.attn.out": RowwiseParallel(),
            "layers.*.mlp.0": ColwiseParallel(),
            "layers.*.mlp.2": RowwiseParallel(),
            "logits": ColwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    return model


def pipeline(case: Case, num_epochs: int, dataset: Any, out: str) -> None:
    """Train in a pipeline of two ranks with 4 microbatches. Rank 0 has the first half of the decoder layers, rank 1 the
    rest."""
    import torch
    from torch import distributed, nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.utils.data import DataLoader
    from torch.utils.tensorboard import SummaryWriter

    rank, world = distributed.get_rank(), distributed.get_world_size()
    whole: Any = case.make_model()
    half = len(whole.layers) // 2

    class Front(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.positions = whole.embed, whole.positions
            self.layers = nn.ModuleList(list(whole.layers)[:half])

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens) + self.positions
            for layer in self.layers:
                x = layer(x)
            return x

    class Back(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.norm, self.logits = nn.ModuleList(list(whole.layers)[half:]), whole.norm, whole.logits

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            logits: torch.Tensor = self.logits(self.norm(x))
            return logits

    model: nn.Module = Front() if rank == 0 else Back()
    rows = case.batch_size // 4
    hidden = torch.zeros(rows, 128, 128, requires_grad=True)
    tokens = torch.zeros(rows, 128, dtype=torch.int64)
    logits = torch.zeros(rows, 128, 256, requires_grad=True)
    args, outs = ((tokens,), (hidden,)) if rank == 0 else ((hidden,), (logits,))
    stage = PipelineStage(model, rank, world, torch.device("cpu"), input_args=args, output_args=outs)
    schedule = Schedule1F1B(stage, 4, loss_fn=case.make_loss())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    writer = SummaryWriter(out) if rank == world - 1 else None
    loader = DataLoader(dataset, case.batch_size, shuffle=True)
    step, first_s, num_steps = 0, 0.0, num_epochs * len(loader)
    for _ in range(num_epochs):
        for x, y in loader:
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            if rank == 0:
                schedule.step(x, return_outputs=False)
            else:
                schedule.step(target=y, losses=losses, return_outputs=False)
            optimizer.step()
            step += 1
            if step == 1:
                first_s = time.time()
            if writer is not None and step % 10 == 0:
                report(writer, step, torch.stack(losses).mean().item())
            if step % case.save_every == 0 or step == num_steps:
                torch.save([model.state_dict(), optimizer.state_dict()], Path(out) / f"step_{step}_{rank}")
    finish(rank, step, first_s)


def report(writer: Any, step: int, loss: float) -> None:
    writer.add_scalar("loss", loss, step)
    print(f"step {step} loss {loss:.4f}", file=sys.stderr)


def save(model: nn.Module, optimizer: Any, mode: str, rank: int, path: Path) -> None:
    import torch

    if mode == "fsdp":
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict

        states = get_state_dict(model, optimizer)
        checkpoint.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=path)
    elif rank == 0:
        torch.save([model.state_dict(), optimizer.state_dict()], path)


def finish(rank: int, num_steps: int, first_s: float) -> None:
    last_s = time.time()
    if rank == 0:
        print(json.dumps({"num_steps": num_steps, "first_s": first_s, "last_s": last_s}), flush=True)
    sys.stderr.flush()
    os._exit(0)  # gloo may abort at a normal exit, see docs/architecture.md


if __name__ == "__main__":
    main(*sys.argv[1:])
