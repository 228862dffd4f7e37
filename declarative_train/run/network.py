"""Network of this machine: the interface that gloo uses, and the number of connections that a process may have."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from declarative_train.engine.failures import RunFailure

MOST_FILES = 1 << 20
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def choose_interface(head: str | None) -> None:
    """Set gloo's network interface for this process and its children, if the user has not set one. `head`: address of
    the machine of rank 0, which is reached through this interface; None if all ranks are on this machine."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = LOOPBACK if head is None else interface_to(head)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def allow_connections() -> None:
    """Raise the limit on open files of this process and its children, as far as the system allows. A rank needs one or
    two file descriptors for each rank with which it communicates."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    with suppress(ValueError, OSError):  # macOS has a lower limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def interface_to(address: str) -> str | None:
    """Return the network interface through which this machine reaches `address`, the machine of rank 0; None if
    unknown. If NCCL_SOCKET_IFNAME names one interface, return this one.

    If the connection to `address` uses loopback, return the only other interface, or loopback if there is no other.
    Raises RunFailure if there are several others.

    Without this choice, gloo uses the address of the host name, which is 127.0.1.1 on Debian."""
    wanted = os.environ.get("NCCL_SOCKET_IFNAME", "")
    if wanted and wanted[0].isalnum() and "," not in wanted:
        return wanted
    own, found = _own_address_to(address), _addresses_by_interface()
    if own is None or not found:
        return None
    if not own.is_loopback:
        return next((name for name, addresses in found.items() if own in addresses), None)
    others = [
        name
        for name, addresses in found.items()
        if any(not (each.is_loopback or each.is_link_local) for each in addresses)
    ]
    if len(others) > 1:
        raise RunFailure(
            f"{address} is {own} here, an address that no other machine can reach; help: use the address of a "
            f"network, or set GLOO_SOCKET_IFNAME on each machine, here one of {', '.join(others)}"
        )
    return others[0] if others else LOOPBACK


def is_own_address(address: str) -> bool:
    """Return whether an address or host name belongs to this machine. Return True also for a name that cannot be
    resolved."""
    own = _own_address_to(address)
    return (
        own is None
        or own.is_loopback
        or own in {ip_address(found[4][0]) for found in socket.getaddrinfo(address, None)}
    )


def _own_address_to(address: str) -> IPv4Address | IPv6Address | None:
    """Return the address of this machine from which `address` can be reached, or None if it cannot."""
    try:
        targets = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, target in targets:
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(target)  # nothing is sent
            return ip_address(probe.getsockname()[0].partition("%")[0])
    return None


def _addresses_by_interface() -> dict[str, list[IPv4Address | IPv6Address]]:
    """Return a dict from each network interface to its addresses; {} on systems other than Linux."""
    if sys.platform != "linux":
        return {}
    import fcntl

    found: dict[str, list[IPv4Address | IPv6Address]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, addresses in found.items():
            with suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(probe.fileno(), 0x8915, name.encode().ljust(40, b"\0"))  # SIOCGIFADDR
                addresses.append(IPv4Address(answer[20:24]))
    with suppress(OSError):  # the system has no IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            found[name].append(IPv6Address(bytes.fromhex(digits)))
    return found
