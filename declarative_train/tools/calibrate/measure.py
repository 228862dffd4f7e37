"""Measure this machine for the time model: products, memory, calls of the host, links between ranks, and a step."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import distributed, multiprocessing, nn

from declarative_train.components.hardware import HARDWARE, hardware_of_device
from declarative_train.components.hardware.hardware import Hardware, Precision
from declarative_train.core.machine import num_cores
from declarative_train.planner.estimate.constants import DEFAULT, Machine

SIZES = (256, 512, 1024)  # of products on a CPU; 8 times as large on a GPU
TRIES, MOST_S = 7, 1.0  # of a measurement
LAYERS, OPERATIONS = 20, 6  # a linear layer and a relu have 2 operations forward and 4 backward
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
MESSAGE = 1 << 24  # bytes
WAIT_S = 60


def measure_machine(num_ranks: int) -> Machine:
    """Return the figures of the machine as one of `num_ranks` ranks measures them while all run at the same time."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(max(1, num_cores() // num_ranks))
    scale = 8 if device.type == "cuda" else 1
    peaks: dict[Precision, float] = {
        name: max(_product_rate(size * scale, dtype, device) for size in SIZES) for name, dtype in DTYPES.items()
    }
    memory_per_s, call_s = _memory_rate(device), _call_s(device)
    latency_s, link_per_s = _link(num_ranks, device) if num_ranks > 1 else (0.0, 1e12)
    base = HARDWARE["cpu"] if device.type == "cpu" else hardware_of_device(torch.cuda.get_device_name(device))
    if base is None:
        raise LookupError(torch.cuda.get_device_name(device))
    reached = replace(DEFAULT, call_s=call_s, memory_efficiency=1.0, link_efficiency=1.0, link_latency_s=latency_s)
    hardware: Hardware = replace(base, memory_per_s=memory_per_s, link_per_s=link_per_s, source="dtrain calibrate")
    if device.type == "cuda":  # the peak stays that of the data sheet, by which utilisation is counted
        peak = base.peak_of("bf16") or 0.0
        hardware = replace(hardware, reached=peaks["bf16"] / peak if peak else base.reached)
        return Machine(hardware, reached)
    hardware = replace(hardware, peak_flops={**peaks, "fp16": peaks["bf16"]}, network_per_s=link_per_s, reached=1.0)
    constants = replace(
        reached,
        product_ramp_s=0.0,
        attention_efficiency=0.5,
        network_efficiency=1.0,
        network_latency_s=latency_s,
        step_s=50 * call_s,
        runs_ahead=False,
        error=0.4,
    )
    return Machine(hardware, constants)


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Return the median time of calls of `run` in seconds, without the first call."""
    found: list[float] = []
    begun_s = time.monotonic()
    for _ in range(TRIES + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start_s = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start_s)
        if len(found) > 2 and time.monotonic() - begun_s > MOST_S:
            break
    return median(found[1:])


def _product_rate(size: int, dtype: torch.dtype, device: torch.device) -> float:
    one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _seconds(lambda: one @ other, device)


def _memory_rate(device: torch.device) -> float:
    one, other = (torch.randn(1 << (27 if device.type == "cuda" else 23), device=device) for _ in range(2))
    into = torch.empty_like(one)
    return 3 * one.nbytes / _seconds(lambda: torch.add(one, other, out=into), device)


def _call_s(device: torch.device) -> float:
    """Return the time in seconds of one operation on very small tensors, forward and backward; only the call itself
    takes time."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(LAYERS))).to(device)
    rows = torch.randn(4, 8, device=device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(rows).sum().backward()

    return _seconds(step, device) / (LAYERS * OPERATIONS)


def _link(num_ranks: int, device: torch.device) -> tuple[float, float]:
    """Return (latency of an all-reduce in seconds per rank of the ring, bytes per second of the ring)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(_all_reduce, (num_ranks, port, device.type, results), num_ranks)  # type: ignore[attr-defined, no-untyped-call]
    small_s, large_s = results.get()
    sent = 2 * (num_ranks - 1) / num_ranks * MESSAGE
    return small_s / max(1, num_ranks - 1), sent / max(large_s - small_s, 1e-9)


def _all_reduce(rank: int, num_ranks: int, port: int, kind: str, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    backend = "nccl" if kind == "cuda" else "gloo"
    from datetime import timedelta

    distributed.init_process_group(backend, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=WAIT_S))
    found = []
    for size in (1, MESSAGE // 4):
        tensor = torch.ones(size, device=device)
        found.append(_seconds(partial(distributed.all_reduce, tensor), device))
    if rank == 0:
        results.put(tuple(found))
    distributed.barrier()
    os._exit(0)  # a group that is destroyed can hang
