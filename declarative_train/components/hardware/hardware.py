"""Performance figures of a device from the vendor's data sheet. They are used for estimates before a run and for the
utilisation of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]

GIB = 2**30
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Hardware:
    """Performance figures of one device. A figure is None if there is none for the device (`cpu`). A precision that the
    device lacks, such as bf16 on a V100, is not in `peak_flops`.

    memory_bytes   GB in data sheets are read as 2**30 bytes
    peak_flops     operations per second of dense matrix products, by the precision of a run. fp32: without TF32,
                   torch's default (a convolution in fp32 may use TF32, and exceed this peak). tf32: with TF32
                   (`matmul: tf32`). tf32, fp64, bf16 and fp16: on tensor (matrix) cores if the device has any,
                   accumulated in fp32
    memory_per_s   bytes per second between the device and its memory
    link_per_s     bytes per second from one device to the others of its node, one way: NVLink or Infinity Fabric if
                   every device has it, else PCIe
    network_per_s  bytes per second from one device to those of other nodes, one way: the node's network divided by its
                   devices, as in the vendor's own servers
    device_names   torch's names of the device
    reached        fraction of the peak that large matrix products reach in a long run; 0.8 if it was not measured

    Source of `reached`: the best product in short tests of S. Bekman, ML engineering, "Maximum achievable matmul FLOPS"
    (github.com/stas00/ml-engineering, compute/accelerator, 2026-08). For Hopper and Blackwell it is multiplied by 0.87,
    because their power limits slow down a long run. The factor follows from MaxText's published step of Llama 3 70B on
    128 H100s (docs/planner-times.md).
    """

    name: str
    memory_bytes: int | None
    peak_flops: Mapping[Precision, float]
    memory_per_s: float | None
    link_per_s: float | None
    network_per_s: float | None
    device_names: tuple[str, ...]
    source: str
    reached: float = 0.8

    def peak_of(self, precision: str) -> float | None:
        """Return the peak FLOP/s for a precision, or None if there is no figure. On a device without TF32, the peak for
        tf32 is that of fp32."""
        found = {str(name): peak for name, peak in self.peak_flops.items()}
        return found.get(precision, found.get("fp32") if precision == "tf32" else None)


def gpu(
    name: str,
    gib: float,
    tflops_64: float,
    tflops_32: float,
    tflops_16: float,
    memory_gb_s: float,
    link_gb_s: float,
    network_gb_s: float,
    device_names: tuple[str, ...],
    source: str,
    has_bf16: bool = True,
    has_tf32: bool | None = None,
    reached: float = 0.8,
) -> Hardware:
    """Return the Hardware of a GPU from figures in the units of data sheets.

    tflops_16  peak of fp16, and of bf16 if `has_bf16`
    has_tf32   True: TF32 has half the peak of fp16; False: there is no TF32; None: the value of `has_bf16`
    source     the data sheet
    reached    fraction of the peak that large matrix products reach
    """
    tflops: dict[Precision, float] = {"fp64": tflops_64, "fp32": tflops_32, "bf16": tflops_16, "fp16": tflops_16}
    if has_bf16 if has_tf32 is None else has_tf32:
        tflops["tf32"] = tflops_16 / 2
    return Hardware(
        name=name,
        memory_bytes=int(gib * GIB),
        peak_flops={each: number * TERA for each, number in tflops.items() if each != "bf16" or has_bf16},
        memory_per_s=memory_gb_s * GIGA,
        link_per_s=link_gb_s * GIGA,
        network_per_s=network_gb_s * GIGA,
        device_names=device_names,
        source=source,
        reached=reached,
    )
