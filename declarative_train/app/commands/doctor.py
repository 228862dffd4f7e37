"""Command `dtrain doctor`: show what this machine can run."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from declarative_train.components.hardware import hardware_of_device
from declarative_train.core.amounts import format_count
from declarative_train.core.machine import install, num_cores, own_version

PACKAGES = ("torch", "pydantic", "pyarrow", "fsspec", "tensorboard", "rich")
EXTRAS = {"safetensors": "safetensors", "s3fs": "s3", "gcsfs": "gcs"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(args: argparse.Namespace) -> int:
    del args
    # The question is asked through NVML, so that a later fork from this process could still use the GPUs.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    from torch import distributed

    row("dtrain", own_version())
    row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        row(package, version_of(package))
    for module, extra in EXTRAS.items():
        row(
            module,
            version_of(module) if find_spec(module) else f"not installed ({install(extra)})",
        )
    row("cpu", f"{format_count(num_cores(), 'core')} usable, {os.cpu_count()} present")
    row("memory", memory())
    row("disk here", f"{shutil.disk_usage('.').free / 2**30:.0f} GiB free")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    row("gpus", str(num_gpus) if num_gpus else "none: recipes run with the same ranks on CPU")
    if torch.backends.mps.is_available():
        row("  mps", "Apple's GPU, for `single` in fp32: layout.device=mps")
    for index in range(num_gpus):
        properties = torch.cuda.get_device_properties(index)
        known = hardware_of_device(properties.name)
        figures = "no figures known" if known is None else known.name
        row(f"  gpu {index}", f"{properties.name} ({figures}), {properties.total_memory / 2**30:.0f} GiB")
    backends = [name for name in ("gloo", "nccl", "mpi") if distributed.is_backend_available(name)]
    row("backends", ", ".join(backends))
    row("modes", "single, dp, ddp, fsdp, pipeline" if "gloo" in backends else "single, dp")
    return 0


def memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):  # a name that this system does not have
        return "unknown"


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def row(name: str, value: str) -> None:
    print(f"{name:<14}{value}")
