"""The devices that a recipe can be planned for, as text."""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.cli.views.table import table
from declarative_train.components.hardware.hardware import GIB, GIGA, TERA, Hardware

PRECISIONS = ("bf16", "fp16", "fp32", "fp64")
HEAD = ("name", "GiB", *PRECISIONS, "memory", "link", "network")
UNITS = "dense peaks in TFLOP/s; memory, link inside a node and network per device, one way, in GB/s"


def hardware_table(devices: Sequence[Hardware]) -> str:
    return f"{table(HEAD, [_row(each) for each in devices], right=range(1, len(HEAD)))}\n\n{UNITS}"


def hardware_page(device: Hardware) -> str:
    called = f", which torch calls {' or '.join(device.device_names)}" if device.device_names else ""
    return f"{device.name} (hardware{called})\n\n{hardware_table([device])}\nsource: {device.source}"


def _row(device: Hardware) -> list[str]:
    memory = None if device.memory_bytes is None else device.memory_bytes / GIB
    peaks = [device.peak_of(precision) for precision in PRECISIONS]
    rates = [device.memory_per_s, device.link_per_s, device.network_per_s]
    return [
        device.name,
        _number(memory, 1),
        *(_number(peak, TERA) for peak in peaks),
        *(_number(rate, GIGA) for rate in rates),
    ]


def _number(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:,.4g}"
