"""On which device the suite runs, asked without touching CUDA: a process that has used it can fork no ranks."""

from __future__ import annotations

import os

NO_GPU = "no GPU here: nothing was tested (DTRAIN_TEST_DEVICE=cpu runs the same tests on the CPU)"


def kind() -> str:
    return os.environ.get("DTRAIN_TEST_DEVICE", "cuda")


def has_device() -> bool:
    if kind() == "cpu":
        return True
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    return torch.cuda.is_available()
