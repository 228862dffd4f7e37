"""Power of devices: the maximum that a board draws, by the data sheet that `devices.py` names for the device."""

from __future__ import annotations

WATTS: dict[str, int] = {
    "a10": 150,
    "a100-pcie-40gb": 250,
    "a100-pcie-80gb": 300,
    "a100-sxm-40gb": 400,
    "a100-sxm-80gb": 400,
    "a10g": 150,
    "a40": 300,
    "a800-sxm": 400,
    "b200-sxm": 1000,
    "b300-sxm": 1000,
    "gb200": 1200,
    "gh200": 700,
    "h100-nvl": 400,
    "h100-pcie": 350,
    "h100-sxm": 700,
    "h20-sxm": 400,
    "h200-sxm": 700,
    "h800-sxm": 700,
    "l4": 72,
    "l40": 300,
    "l40s": 350,
    "mi300x": 750,
    "rtx-3090": 350,
    "rtx-4090": 450,
    "rtx-5090": 575,
    "rtx-6000-ada": 300,
    "rtx-a6000": 300,
    "t4": 70,
    "v100-pcie-16gb": 250,
    "v100-pcie-32gb": 250,
    "v100-sxm-16gb": 300,
    "v100-sxm-32gb": 300,
}
"""Watts: thermal design power (TDP) or total board power. For a device with several settings, the largest that its air
or liquid cooled standard board has (B200 and B300: 1,000, the maximum of NVIDIA's user guides of DGX B200 and B300 on
power capping; GB200: 1,200 per GPU, NVIDIA Mission Control; GH200: 700 for the GPU's part of 1,000). Compared with the
vendors' pages as S. Bekman lists them (ML engineering, compute/accelerator, Power consumption, 2026-07): A100, B200,
B300, GB200, H100, H100 NVL, H200, L40S and MI300X."""
