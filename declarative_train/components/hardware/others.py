"""What is not NVIDIA's: AMD's GPUs, which torch runs under the name of cuda, and the CPU."""

from __future__ import annotations

from declarative_train.components.hardware.hardware import Hardware, gpu

AMD: tuple[Hardware, ...] = (
    gpu(
        "mi300x",
        gib=192,
        tflops={"fp64": 163.4, "fp32": 163.4, "bf16": 1307.4, "fp16": 1307.4},
        memory_gb_s=5300,
        link_gb_s=448,  # seven links of 64 GB/s one way
        network_gb_s=400 / 8,
        device_names=("AMD Instinct MI300X",),
        source="AMD Instinct MI300X data sheet, 2023; network: AMD's MI300X platform, a 400 Gb/s adapter per GPU",
    ),
)

CPU = Hardware(
    name="cpu",
    memory_bytes=None,
    peak_flops={},
    memory_per_s=None,
    link_per_s=None,
    network_per_s=None,
    device_names=(),
    source="none: what a CPU does depends on the machine, and its memory is shared by the ranks",
)
