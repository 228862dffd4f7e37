"""Command `dtrain doctor`: show what this machine can run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from declarative_train.components.hardware import hardware_of_device
from declarative_train.core.amounts import format_count
from declarative_train.core.machine import install, num_cores, own_version

PACKAGES = ("torch", "pydantic", "pyarrow", "fsspec", "tensorboard", "rich")
EXTRAS = {"safetensors": "safetensors", "s3fs": "s3", "gcsfs": "gcs"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one object")


def run(args: argparse.Namespace) -> int:
    found = dict(list_facts())
    if args.json:
        print(json.dumps(found, indent=1))
    for name, value in {} if args.json else found.items():
        print(f"{name:<14}{value}")
    return 0


def list_facts() -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each fact about this machine."""
    # NVML counts the GPUs without starting CUDA, so that processes forked later can use them.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    from torch import distributed

    yield ("dtrain", own_version())
    yield ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        yield (package, version_of(package))
    for module, extra in EXTRAS.items():
        yield (
            module,
            version_of(module) if find_spec(module) else f"not installed ({install(extra)})",
        )
    yield ("cpu", f"{format_count(num_cores(), 'core')} usable, {os.cpu_count()} present")
    yield ("memory", memory())
    yield ("disk here", f"{shutil.disk_usage('.').free / 2**30:.0f} GiB free")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield ("gpus", str(num_gpus) if num_gpus else "none: recipes run with the same ranks on CPU")
    if torch.backends.mps.is_available():
        yield ("mps", "Apple's GPU, for `single` in fp32: layout.device=mps")
    for index in range(num_gpus):
        properties = torch.cuda.get_device_properties(index)
        known = hardware_of_device(properties.name)
        figures = "no figures known" if known is None else known.name
        yield (f"gpu {index}", f"{properties.name} ({figures}), {properties.total_memory / 2**30:.0f} GiB")
    backends = [name for name in ("gloo", "nccl", "mpi") if distributed.is_backend_available(name)]
    yield ("backends", ", ".join(backends))
    yield ("modes", "single, dp, ddp, fsdp, pipeline" if "gloo" in backends else "single, dp")


def memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):  # this system does not have the name
        return "unknown"


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
