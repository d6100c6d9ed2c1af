"""Ports of the loopback interface that no two processes of this machine are given.

A port is chosen long before a server listens on it, and stays chosen while the server is down. So a
process first takes a whole block of ports by locking the block's file, and holds the lock until it
ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
import threading
from pathlib import Path

PORTS = range(20_000, 32_000)
"""Below the ports that systems use for outgoing connections (from 32768 on Linux, 49152 elsewhere).
One of those could be taken between `kill()` and the next `start()`, even by a client that connects
to itself."""

BLOCK_PORTS = 100
"""Ports in a block: each block that is held costs one open file."""


class NoPort(Exception):
    """Every port between `PORTS.start` and `PORTS.stop` is taken."""


_lock = threading.Lock()
_held: list[int] = []
"""Descriptors of the locked block files, open until the process ends."""
_free: list[int] = []
"""Ports of the blocks held that were not given out."""


def free_port() -> int:
    """Return a port without a listener that no other call, in this process or another one,
    returns."""
    with _lock:
        while True:
            if not _free:
                _free.extend(_take_block())
            port = _free.pop()
            if _is_free(port):
                return port


def _take_block() -> list[int]:
    """Lock a block that no process holds; its ports in random order."""
    folder = Path(tempfile.gettempdir(), f"chronos-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    starts = PORTS[::BLOCK_PORTS]
    for start in random.sample(starts, len(starts)):
        file = os.open(folder / str(start), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            # The file stays when the process has ended: deleting a lock file while others open it
            # is a race.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        _held.append(file)
        return random.sample(range(start, start + BLOCK_PORTS), BLOCK_PORTS)
    raise NoPort(f"all ports between {PORTS.start} and {PORTS.stop} are taken")


def _is_free(port: int) -> bool:
    """Return whether the port can be bound: a program that takes no part in the locks may listen on
    it."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
