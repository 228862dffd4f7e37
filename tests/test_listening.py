"""No command listens where another machine can connect: not torch's store, gloo, TensorBoard or the language server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest

from tests import started
from tests.editor.lsp_client import LspClient
from tests.engine.made_recipes import DIGITS, merged, write_data, write_recipe

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc/net")
LISTENS = "0A"
TWO_RANKS = merged(
    DIGITS,
    {
        "training": {"epochs": None, "steps": 1_000_000},
        "evaluation": None,
        "checkpoint": None,
        "parallelism": "ddp",
        "layout": {"gpus": 2},
    },
)
SWEEP = merged(TWO_RANKS, {"sweep": {"type": "grid", "over": {"training.optimizer.lr": [0.1, 0.01]}}})


def listening(pid: int) -> list[IPv4Address | IPv6Address]:
    """Return the addresses at which the process and its descendants accept connections or datagrams."""
    inodes = set()
    for handle in (handle for each in started.family(pid) for handle in Path(f"/proc/{each}/fd").glob("*")):
        try:
            inodes |= set(re.findall(r"^socket:\[(\d+)\]$", os.readlink(handle)))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if rest[5] in inodes and (state == LISTENS or table.startswith("udp")):
                words = bytes.fromhex(local.partition(":")[0])
                address = ip_address(b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4)))
                found.append(getattr(address, "ipv4_mapped", None) or address)
    return found


def open_to_others(pid: int) -> list[str]:
    return [str(address) for address in listening(pid) if not address.is_loopback]


def wait_until(is_ready: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + started.LIMIT_S
    while not is_ready():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.parametrize("command", ["run", pytest.param("sweep", marks=pytest.mark.long)])
def test_ranks_of_one_machine_meet_on_the_loopback_alone(tmp_path: Path, command: str) -> None:
    write_data(tmp_path)
    recipe = write_recipe(tmp_path, TWO_RANKS if command == "run" else SWEEP)
    process = started.start("declarative_train", command, str(recipe))
    try:
        wait_until(lambda: any("StepDone" in path.read_text() for path in tmp_path.rglob("events.jsonl")))
        assert len(listening(process.pid)) > 1, "a store and the ranks' own addresses"
        assert open_to_others(process.pid) == []
    finally:
        process.send_signal(signal.SIGTERM)
        started.finish(process)


def test_tensorboard_listens_on_the_loopback_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "declarative_train", "tensorboard", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: bool(listening(process.pid)))
            assert open_to_others(process.pid) == []
        finally:
            process.kill()


def test_the_language_server_listens_nowhere(tmp_path: Path) -> None:
    with LspClient([sys.executable, "-m", "declarative_train", "lsp"], tmp_path) as client:
        assert listening(client.pid) == []
