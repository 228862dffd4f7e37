"""Measurement of this machine for the prediction of step times: matrix products, memory, overhead of a call on the
host, links between ranks, and whole steps (`probes.py`).

On a CPU all ranks measure at the same time, because they share its cores and memory."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import distributed, multiprocessing, nn

from declarative_train.components.hardware import HARDWARE, hardware_of_device
from declarative_train.components.hardware.hardware import Hardware, Precision
from declarative_train.engine.devices import keep_freed_memory, threads_per_rank
from declarative_train.planner.estimate.constants import DEFAULT, Machine
from declarative_train.tools.calibrate.probes import Probe, Step, compile_probes, fit_to_steps

SIZES = (256, 512, 1024)  # sizes of matrix products on a CPU; 8 times as large on a GPU
TRIES, MOST_S = 20, 1.0  # calls and seconds of a measurement, at most
LAYERS, OPERATIONS = 20, 6  # a linear layer and a relu have 2 operations forward and 4 backward
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
MESSAGE = 1 << 24  # bytes of an all-reduce
BETWEEN = 256  # size of the matrix product that ranks compute between two all-reduces
WIDE = (1024, 256)  # rows and width of the activations of a small model
WIDE_PASSES = 22  # reads and writes of layer norm, GELU and softmax (2 forward, 3 backward each) and a product (7)
HEADS = (8, 4, 64, 16)  # samples, heads, positions and width of attention
DRAWN = 1 << 18
WAIT_S = 120


def measure_machine(num_ranks: int) -> Machine:
    """Return the speeds that one rank measures on this machine while `num_ranks` ranks run at the same time."""
    if torch.cuda.is_available():
        return _measure_gpu(num_ranks)
    probes = compile_probes(num_ranks)
    if num_ranks > 1:
        machine: Machine = _in_ranks(num_ranks, "cpu", partial(_measure_cpu, num_ranks, probes))
        return machine
    num_threads = torch.get_num_threads()
    try:
        return _measure_cpu(1, probes)
    finally:
        torch.set_num_threads(num_threads)


def _measure_gpu(num_ranks: int) -> Machine:
    device = torch.device("cuda")
    base = hardware_of_device(torch.cuda.get_device_name(device))
    if base is None:
        raise LookupError(torch.cuda.get_device_name(device))
    rate = max(_product_rate(8 * size, torch.bfloat16, device) for size in SIZES)
    memory_per_s, call_s = _memory_rate(device), _call_s(device)
    latency_s, link_per_s = _in_ranks(num_ranks, "cuda", _link) if num_ranks > 1 else (0.0, 1e12)
    peak = base.peak_of("bf16") or 0.0  # it stays that of the data sheet, by which utilisation is counted
    reached = rate / peak if peak else base.reached
    hardware: Hardware = replace(
        base, memory_per_s=memory_per_s, link_per_s=link_per_s, reached=reached, source="dtrain calibrate"
    )
    constants = replace(DEFAULT, call_s=call_s, memory_efficiency=1.0, link_efficiency=1.0, link_latency_s=latency_s)
    return Machine(hardware, constants)


def _measure_cpu(num_ranks: int, probes: dict[Step, Probe]) -> Machine:
    """Return the speeds of this machine's CPU, measured while `num_ranks` processes use it. Each of these processes
    calls this function at the same time. `probes`: training steps that are timed to compute the other constants."""
    device = torch.device("cpu")
    torch.set_num_threads(threads_per_rank(num_ranks))
    keep_freed_memory()
    peaks: dict[Precision, float] = {
        name: max(_product_rate(size, dtype, device) for size in SIZES) for name, dtype in DTYPES.items()
    }
    latency_s, link_per_s = _link(device, num_ranks) if num_ranks > 1 else (0.0, 1e12)
    hardware: Hardware = replace(
        HARDWARE["cpu"],
        peak_flops={**peaks, "fp16": peaks["bf16"]},
        memory_per_s=_elementwise_rate(),
        link_per_s=link_per_s,
        network_per_s=link_per_s,
        reached=1.0,
        source="dtrain calibrate",
    )
    constants = replace(
        DEFAULT,
        product_ramp_s=0.0,
        attention_efficiency=_attention_rate() / peaks["fp32"],
        convolution_efficiency=1.0,
        memory_efficiency=1.0,
        link_efficiency=1.0,
        link_latency_s=latency_s,
        network_efficiency=1.0,
        network_latency_s=latency_s,
        draw_s=_seconds(lambda: torch.empty(DRAWN).bernoulli_(0.9), device) / DRAWN,
        runs_ahead=False,
        error=0.4,
    )
    return fit_to_steps(Machine(hardware, constants), probes)


def _seconds(run: Callable[[], Any], device: torch.device, most_s: float = MOST_S) -> float:
    """Return the seconds of one call of `run`: the fastest of several calls, because other processes can only slow it
    down. The first call does not count. `most_s`: no new call begins after about this many seconds. If it is infinite,
    the number of calls is fixed; ranks that call `run` together need this."""
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
        if len(found) > 2 and time.monotonic() - begun_s > most_s:
            break
    return min(found[1:])


def _product_rate(size: int, dtype: torch.dtype, device: torch.device) -> float:
    one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _seconds(lambda: one @ other, device)


def _memory_rate(device: torch.device) -> float:
    one, other = (torch.randn(1 << 27, device=device) for _ in range(2))
    into = torch.empty_like(one)
    return 3 * one.nbytes / _seconds(lambda: torch.add(one, other, out=into), device)


def _elementwise_rate() -> float:
    """Return the speed of elementwise operations, forward and backward, in bytes per second. On a CPU most of them are
    slower than reading memory."""
    rows, gradient = torch.randn(WIDE, requires_grad=True), torch.randn(WIDE)

    def step() -> None:
        normal = nn.functional.gelu(nn.functional.layer_norm(rows, WIDE[1:]))
        (normal.softmax(-1) * rows).backward(gradient)  # type: ignore[no-untyped-call]

    return WIDE_PASSES * rows.nbytes / _seconds(step, torch.device("cpu"))


def _attention_rate() -> float:
    """Return the speed of fused causal attention, forward and backward, in floating-point operations per second."""
    query, key, value = (torch.randn(HEADS, requires_grad=True) for _ in range(3))

    def step() -> None:
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        found.sum().backward()  # type: ignore[no-untyped-call]

    samples, heads, positions, width = HEADS
    products = 7  # 2 forward and 5 backward; causal attention computes half of each
    return products * samples * heads * positions**2 * width / _seconds(step, torch.device("cpu"))


def _call_s(device: torch.device) -> float:
    """Return the time in seconds of one operation, forward and backward, on tensors so small that the time is only
    overhead."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(LAYERS))).to(device)
    rows = torch.randn(4, 8, device=device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(rows).sum().backward()

    return _seconds(step, device) / (LAYERS * OPERATIONS)


def _link(device: torch.device, num_ranks: int) -> tuple[float, float]:
    """Measure the link between ranks by all-reduces. Return its latency in seconds and its bandwidth in bytes per
    second.

    The latency is the time of a small all-reduce, divided by `num_ranks - 1`. As in a training step, the ranks compute
    between the all-reduces. So the latency includes the time in which ranks wait for others."""
    one = torch.randn(BETWEEN, BETWEEN, device=device)
    small, large = (torch.ones(size, device=device) for size in (1, MESSAGE // 4))

    def compute() -> None:
        for _ in range(10):
            torch.mm(one, one)

    def step() -> None:
        for _ in range(10):
            torch.mm(one, one)
            distributed.all_reduce(small)

    latency_s = max(0.0, _seconds(step, device, inf) - _seconds(compute, device, inf)) / 10
    large_s = _seconds(lambda: distributed.all_reduce(large), device, inf)
    sent = 2 * (num_ranks - 1) / num_ranks * MESSAGE
    return latency_s / (num_ranks - 1), sent / max(large_s - latency_s, 1e-9)


def _in_ranks(num_ranks: int, kind: str, work: Callable[..., Any]) -> Any:
    """Call `work(device, num_ranks)` in each of `num_ranks` new processes, which form a process group. Return the
    result of the first process. `kind`: the type of the device, such as "cpu"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(_run_rank, (num_ranks, port, kind, work, results), num_ranks)  # type: ignore[attr-defined, no-untyped-call]
    return results.get()


def _run_rank(rank: int, num_ranks: int, port: int, kind: str, work: Callable[..., Any], results: Any) -> None:
    from datetime import timedelta

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    backend = "nccl" if kind == "cuda" else "gloo"
    distributed.init_process_group(backend, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=WAIT_S))
    found = work(device, num_ranks) if kind == "cuda" else work()
    if rank == 0:
        results.put(found)
    distributed.barrier()
    os._exit(0)  # a group that is destroyed can hang
