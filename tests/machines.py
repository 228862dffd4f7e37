"""Machines for tests of several nodes: network namespaces on one bridge, each with its own host name and hosts file.

with machines(2) as made:
    process = made[0].start("declarative_train", "run", "recipe.yaml")   # like `start` of tests.started

As on Debian, the name of a machine means 127.0.1.1 on this machine, and its address on the others.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import started

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x20000, 0x4000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


STARTED: list[started.Started] = []


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine for tests. `namespace`: its network namespace. `address`: the one at which other machines reach it.
    `hosts`: path of its hosts file."""

    namespace: str
    name: str
    address: str
    hosts: str
    end: str  # name of the other end of its cable, in the namespace of the bridge
    bridge: str

    def enter(self) -> None:
        """Move this process to the machine. The process must have a single thread."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/var/run/netns/{self.namespace}", "rb") as file:
            _check(libc.setns(file.fileno(), CLONE_NEWNET))
        _check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS))
        _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        _check(libc.mount(self.hosts.encode(), b"/etc/hosts", None, MS_BIND, None))
        _check(libc.sethostname(self.name.encode(), len(self.name)))
        real = time.time
        time.time = lambda: real() - self._clock_s()

    def _clock_s(self) -> float:
        """Return the number of seconds by which the clock of this machine is late."""
        with suppress(OSError, ValueError):  # the folder is gone, or the file is being written
            return float(Path(f"{self.hosts}.clock").read_text())
        return 0.0

    def command(self, *words: str) -> list[str]:
        """Return a command line that runs the command `words` on this machine."""
        setup = f"mount --bind {self.hosts} /etc/hosts && hostname {self.name}"
        entered = ["nsenter", f"--net=/var/run/netns/{self.namespace}", "unshare", "--uts", "--mount"]
        return [*entered, "sh", "-c", f'{setup} && exec "$@"', "sh", *words]

    def start(self, module: str, *words: str, cwd: Path | None = None) -> started.Started:
        process = started.start(module, *words, cwd=cwd, machine=self)
        STARTED.append(process)
        return process

    def cut_cable(self) -> None:
        """Drop every packet to and from this machine, as if its cable was pulled out. Neither side is notified."""
        ip(f"-n {self.bridge} link set {self.end} down")

    def plug_cable_in(self) -> None:
        ip(f"-n {self.bridge} link set {self.end} up")

    def set_clock_back(self, seconds: float) -> None:
        """Set the clock back that `time.time` reads in processes on this machine. It also changes for processes that
        run already."""
        Path(f"{self.hosts}.clock").write_text(str(seconds))


def _check(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def ip(line: str) -> str:
    return subprocess.run(["ip", *line.split()], capture_output=True, text=True, timeout=60, check=True).stdout


@contextmanager
def slow_cable(machine: Machine, made: list[Machine], delay_s: float, loss: float) -> Iterator[None]:
    """Delay every packet to and from `machine` by `delay_s`, and drop the share `loss` of them, during the `with`
    block. `made`: all machines."""
    inner, outer, bridge = f"{machine.end}i", f"{machine.end}o", machine.bridge
    ip(f"-n {bridge} link add {inner} type veth peer name {outer}")
    ip(f"-n {bridge} link set {inner} master br0 up")
    ip(f"-n {bridge} link set {outer} up")
    ip(f"-n {bridge} link set {machine.end} nomaster")
    python = (sys.executable, "-m", "tests.slow_cable")
    for each in made:
        ip(f"netns exec {each.namespace} {' '.join(python)} eth0")
    words = (machine.end, outer, str(delay_s), str(loss))
    carrier = subprocess.Popen(["ip", "netns", "exec", bridge, *python, *words])
    try:
        yield
    finally:
        carrier.kill()
        carrier.wait()


@contextmanager
def machines(count: int, *, version: int = 4) -> Iterator[list[Machine]]:
    """Make `count` machines that reach each other by IP of this version (4 or 6). Skip the test if network namespaces
    are not allowed."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces want root and iproute2")
    own = f"dt{os.getpid() % 10**6}"
    bridge = f"{own}x"
    addresses = [f"10.77.0.{number + 1}" if version == 4 else f"fd77::{number + 1}" for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        made = [
            Machine(f"{own}m{number}", f"box{number}", address, f"{folder}/{number}", f"{own}c{number}", bridge)
            for number, address in enumerate(addresses)
        ]
        names = [bridge, *(each.namespace for each in made)]
        try:
            try:
                ip(f"netns add {bridge}")
                ip(f"-n {bridge} link add br0 type bridge")
                ip(f"-n {bridge} link set br0 up")
                for each in made:
                    _add(each, made)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.cmd}: {error.stderr.strip()}")
            yield made
        finally:
            # processes that a failed test left behind
            for pid in (pid for process in STARTED for pid in started.session(process.pid)):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            STARTED.clear()
            for name in names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)


def _add(each: Machine, made: list[Machine]) -> None:
    own = f"{each.end}e"
    ip(f"netns add {each.namespace}")
    ip(f"link add {own} type veth peer name {each.end}")
    ip(f"link set {own} netns {each.namespace}")
    ip(f"link set {each.end} netns {each.bridge}")
    ip(f"-n {each.bridge} link set {each.end} master br0 up")
    ip(f"-n {each.namespace} link set lo up")
    ip(f"-n {each.namespace} link set {own} name eth0")
    own_address = f"{each.address}/64 dev eth0 nodad" if ":" in each.address else f"{each.address}/24 dev eth0"
    ip(f"-n {each.namespace} addr add {own_address}")
    ip(f"-n {each.namespace} link set eth0 up")
    each.set_clock_back(0)
    lines = [f"{'127.0.1.1' if other is each else other.address} {other.name}" for other in made]
    Path(each.hosts).write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
