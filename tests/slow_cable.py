"""`python -m tests.slow_cable END OTHER DELAY_S LOSS`: a cable between two network interfaces that delays each frame
and loses a share of them. It replaces netem, which some kernels do not have.

The program runs as root, in the network namespace of both interfaces. Before, `python -m tests.slow_cable INTERFACE`
must be run for each interface whose frames the cable forwards.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time

ALL_FRAMES, OUTGOING, LARGEST = 0x0003, 4, 1 << 16
ETHTOOL, SET_CHECKSUMS = 0x8946, 0x17


def send_whole_frames(name: str) -> None:
    """Make the kernel compute checksums and cut segments before a frame leaves this interface. Usually a network card
    does this, but it is not involved if a program forwards the frames."""
    value = ctypes.create_string_buffer(struct.pack("II", SET_CHECKSUMS, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, ETHTOOL, struct.pack("16sP", name.encode(), ctypes.addressof(value)))


def carry(ends: list[str], delay_s: float, loss: float) -> None:
    """Forward frames between two interfaces until this process is killed."""
    sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES)) for _ in ends]
    for each, name in zip(sockets, ends, strict=True):
        each.bind((name, 0))
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    choice, waiting, number = random.Random(27), [], 0  # type: ignore[var-annotated]
    while True:
        pause_s = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        for ready in select.select(sockets, [], [], pause_s)[0]:
            frame, address = ready.recvfrom(LARGEST)
            if address[2] != OUTGOING and choice.random() >= loss:
                number += 1
                other = sockets[1 - sockets.index(ready)]
                heapq.heappush(waiting, (time.monotonic() + delay_s, number, other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, other, frame = heapq.heappop(waiting)
            other.send(frame)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        send_whole_frames(sys.argv[1])
    else:
        carry(sys.argv[1:3], float(sys.argv[3]), float(sys.argv[4]))
