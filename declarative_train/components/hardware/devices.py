"""Table of known devices. Figures are from the data sheet named with each, for tensor cores without sparsity (half of
the figures in bold in the data sheets of Hopper, Ada and Blackwell). AMD's GPUs have the device type cuda in torch.

NVLink     GB/s one way: half of the figure in the data sheet
PCIe x16   GB/s one way: 16 in generation 3, 32 in 4, 64 in 5
network    GB/s of one GPU in NVIDIA's own servers (DGX). For cards that any server may have, it is assumed that eight
           share 100 Gb/s (A100 and H100 on PCIe: 200 Gb/s)
"""

from __future__ import annotations

from declarative_train.components.hardware.hardware import Hardware, gpu

_OWN_800 = 800 / 8
_OWN_400 = 400 / 8
_OWN_200 = 200 / 8
_DGX_1 = 4 * 100 / 8 / 8
_SHARED_200 = 200 / 8 / 8
_SHARED_100 = 100 / 8 / 8

# fmt: off
# name, GiB, TFLOPS in fp64, fp32 and half precision, GB/s of memory, link and network; torch's names, source
GPUS: tuple[Hardware, ...] = (
    gpu("b300-sxm",       288, 1.25,  75,    2250,   8000, 900, _OWN_800,
        ("NVIDIA B300 SXM6 AC",), "NVIDIA HGX B300 specifications, 2025, an eighth of the board", reached=0.68),
    gpu("gb200",          186, 40,    80,    2500,   8000, 900, _OWN_400,
        ("NVIDIA GB200",), "NVIDIA GB200 NVL72 data sheet, 2024, one GPU", reached=0.63),
    gpu("b200-sxm",       180, 40,    80,    2250,   8000, 900, _OWN_400,
        ("NVIDIA B200",),
        "NVIDIA Blackwell architecture technical brief, 2024, HGX B200; memory: DGX B200 data sheet, 2024",
        reached=0.68),
    gpu("h200-sxm",       141, 67,    67,    989.4,  4800, 450, _OWN_400,
        ("NVIDIA H200",), "NVIDIA H200 Tensor Core GPU data sheet, 2024", reached=0.70),
    gpu("h100-sxm",       80,  67,    67,    989.4,  3350, 450, _OWN_400,
        ("NVIDIA H100 80GB HBM3",), "NVIDIA H100 Tensor Core GPU data sheet, 2023", reached=0.70),
    gpu("gh200",          96,  67,    67,    989.4,  4000, 450, _OWN_400,
        ("NVIDIA GH200 480GB",), "NVIDIA GH200 Grace Hopper Superchip data sheet, 2023, 96 GB of HBM3", reached=0.73),
    gpu("h800-sxm",       80,  1,     67,    989.4,  3350, 200, _OWN_400,
        ("NVIDIA H800",), "NVIDIA H800 Tensor Core GPU data sheet, 2023"),
    gpu("h20-sxm",        96,  1,     44,    148,    4000, 450, _OWN_400,
        ("NVIDIA H20",), "NVIDIA H20 Tensor Core GPU data sheet, 2024"),
    gpu("h100-nvl",       94,  60,    60,    835.5,  3900, 64,  _SHARED_200,
        ("NVIDIA H100 NVL",), "NVIDIA H100 Tensor Core GPU data sheet, 2024, column H100 NVL"),
    gpu("h100-pcie",      80,  51,    51,    756,    2000, 64,  _SHARED_200,
        ("NVIDIA H100 PCIe",), "NVIDIA H100 Tensor Core GPU data sheet, 2022, column H100 PCIe"),
    gpu("a100-sxm-80gb",  80,  19.5,  19.5,  312,    2039, 300, _OWN_200,
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"), "NVIDIA A100 Tensor Core GPU data sheet, 2021", reached=0.869),
    gpu("a100-sxm-40gb",  40,  19.5,  19.5,  312,    1555, 300, _OWN_200,
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"), "NVIDIA A100 Tensor Core GPU data sheet, 2020", reached=0.869),
    gpu("a100-pcie-80gb", 80,  19.5,  19.5,  312,    1935, 32,  _SHARED_200,
        ("NVIDIA A100 80GB PCIe",), "NVIDIA A100 Tensor Core GPU data sheet, 2021, column PCIe", reached=0.811),
    gpu("a100-pcie-40gb", 40,  19.5,  19.5,  312,    1555, 32,  _SHARED_200,
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"), "NVIDIA A100 Tensor Core GPU data sheet, 2020, column PCIe",
        reached=0.811),
    gpu("a800-sxm",       80,  19.5,  19.5,  312,    2039, 200, _OWN_200,
        ("NVIDIA A800-SXM4-80GB",), "NVIDIA A800 Tensor Core GPU data sheet, 2022"),
    gpu("v100-sxm-32gb",  32,  7.8,   15.7,  125,    900,  150, _DGX_1,
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB"),
        "NVIDIA V100 Tensor Core GPU data sheet, 2020; it has no bf16", has_bf16=False),
    gpu("v100-sxm-16gb",  16,  7.8,   15.7,  125,    900,  150, _DGX_1,
        ("Tesla V100-SXM2-16GB",), "NVIDIA V100 Tensor Core GPU data sheet, 2020; it has no bf16", has_bf16=False),
    gpu("v100-pcie-32gb", 32,  7,     14,    112,    900,  16,  _SHARED_100,
        ("Tesla V100-PCIE-32GB",),
        "NVIDIA V100 Tensor Core GPU data sheet, 2020, column PCIe; it has no bf16", has_bf16=False),
    gpu("v100-pcie-16gb", 16,  7,     14,    112,    900,  16,  _SHARED_100,
        ("Tesla V100-PCIE-16GB",),
        "NVIDIA V100 Tensor Core GPU data sheet, 2020, column PCIe; it has no bf16", has_bf16=False),
    gpu("l40s",           48,  1.43,  91.6,  362.05, 864,  32,  _SHARED_100,
        ("NVIDIA L40S",),
        "NVIDIA L40S data sheet, 2023; fp64: a 64th of fp32, NVIDIA Ada architecture whitepaper, 2022"),
    gpu("l40",            48,  1.41,  90.5,  181.05, 864,  32,  _SHARED_100,
        ("NVIDIA L40",),
        "NVIDIA L40 data sheet, 2023; fp64: a 64th of fp32, NVIDIA Ada architecture whitepaper, 2022"),
    gpu("l4",             24,  0.47,  30.3,  121,    300,  32,  _SHARED_100,
        ("NVIDIA L4",), "NVIDIA L4 data sheet, 2023; fp64: a 64th of fp32, NVIDIA Ada architecture whitepaper, 2022"),
    gpu("a40",            48,  0.58,  37.4,  149.7,  696,  32,  _SHARED_100,
        ("NVIDIA A40",), "NVIDIA A40 data sheet, 2021; fp64: a 64th of fp32, NVIDIA GA102 whitepaper, 2020"),
    gpu("a10",            24,  0.49,  31.2,  125,    600,  32,  _SHARED_100,
        ("NVIDIA A10",), "NVIDIA A10 data sheet, 2021; fp64: a 64th of fp32, NVIDIA GA102 whitepaper, 2020"),
    gpu("a10g",           24,  0.55,  35,    70,     600,  32,  _SHARED_100,
        ("NVIDIA A10G",), "NVIDIA A10G data sheet, 2021; fp64: a 64th of fp32, NVIDIA GA102 whitepaper, 2020"),
    gpu("t4",             16,  0.25,  8.1,   65,     320,  16,  _SHARED_100,
        ("Tesla T4",),
        "NVIDIA T4 data sheet, 2019; fp64: a 32nd of fp32, NVIDIA Turing whitepaper, 2018; it has no bf16",
        has_bf16=False),
    gpu("rtx-5090",       32,  1.64,  104.8, 209.5,  1792, 64,  _SHARED_100,
        ("NVIDIA GeForce RTX 5090",), "NVIDIA RTX Blackwell GPU architecture whitepaper, 2025, appendix A"),
    gpu("rtx-4090",       24,  1.29,  82.6,  165.2,  1008, 32,  _SHARED_100,
        ("NVIDIA GeForce RTX 4090",), "NVIDIA Ada GPU architecture whitepaper, 2022, appendix A"),
    gpu("rtx-3090",       24,  0.56,  35.6,  71,     936,  32,  _SHARED_100,
        ("NVIDIA GeForce RTX 3090",), "NVIDIA Ampere GA102 GPU architecture whitepaper, 2020, appendix A"),
    gpu("rtx-6000-ada",   48,  1.42,  91.1,  364.2,  960,  32,  _SHARED_100,
        ("NVIDIA RTX 6000 Ada Generation",),
        "NVIDIA RTX 6000 Ada data sheet, 2022; fp64: a 64th of fp32, NVIDIA Ada architecture whitepaper, 2022"),
    gpu("rtx-a6000",      48,  0.6,   38.7,  154.8,  768,  32,  _SHARED_100,
        ("NVIDIA RTX A6000",),
        "NVIDIA RTX A6000 data sheet, 2020; fp64: a 64th of fp32, NVIDIA GA102 whitepaper, 2020"),
    # seven links of 64 GB/s one way
    gpu("mi300x",         192, 163.4, 163.4, 1307.4, 5300, 448, _OWN_400,
        ("AMD Instinct MI300X",),
        "AMD Instinct MI300X data sheet, 2023; network: AMD's MI300X platform, a 400 Gb/s adapter per GPU",
        has_tf32=False, reached=0.514),  # there, torch needs another setting for it
)
# fmt: on

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
