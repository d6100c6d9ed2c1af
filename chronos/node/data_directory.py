"""The data directory of a node: its lock, its id, and notes of what the process reads.

The notes tell a process that the one before it did not stop in order, and where that one began to
read: so a record that may have ended a process, for example for want of memory, is read in another
way by the next, or by the one after it."""

import fcntl
import os
import resource
import shutil
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from chronos.adapters.disk import free_bytes, keep_private, replace_file
from chronos.errors import Stop, StoreInUse

if TYPE_CHECKING:
    from chronos.adapters.kafka.log import KafkaLog as KafkaLog


log = structlog.get_logger("chronos.node")

INSTANCE = "instance"
"""The file that holds the directory's id."""

READING = "reading"
"""The folder of notes about reading, one file a shard: the offset at which the process began to
read, whether the process before it was killed too, and how many processes the kernel had killed for
want of memory by then. It is removed by a stop in order, and so is there after a kill only."""

AFTER_AN_END = "again"
"""Stands in a note if the process began after one that did not stop in order."""

UNKNOWN = "unknown"
"""Stands for the number of processes killed for want of memory where that number does not show
whether this process was one of them."""


def killed_for_memory(vmstat: Path = Path("/proc/vmstat")) -> str:
    """Return how many processes the kernel has killed for want of memory since it started, those of
    any container included; UNKNOWN if it does not count them, or if this process may also end
    because the memory that it asks for is refused."""
    if any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY
        for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)
    ):
        return UNKNOWN
    try:
        counts = dict(line.split() for line in vmstat.read_text().splitlines())
    except (OSError, ValueError):
        return UNKNOWN
    return counts.get("oom_kill", UNKNOWN)


class DataDirectory:
    """The folder in which a node keeps its stores, its copies, its lock and its id."""

    def __init__(self, path: Path, *, node: str) -> None:
        self.path = path
        self.instance = ""
        """The id of the directory, which identifies the node in the log; empty before `claim`."""
        self.place = ""
        """Host, path and inode of the directory, which differ for a copy; empty before `claim`."""
        self._node = node
        self._lock_file: int | None = None

    def claim(self) -> None:
        """Lock the directory for this process and read its id. Raises StoreInUse; Stop if it cannot
        be used at all."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not keep_private(self.path):
                log.warning(
                    "others may read node.data_dir, which is another user's",
                    path=str(self.path),
                    remedy="chown or chmod it",
                )
            handle = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Stop(f"node.data_dir {self.path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(handle, 200).decode("utf-8", "replace").strip()
            os.close(handle)
            raise StoreInUse(
                f"{self.path} is in use by another Chronos ({owner or 'unknown'}). Stop it, or "
                "give this node another node.data_dir."
            ) from None
        self._lock_file = handle
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}, node {self._node}\n".encode(), 0)
        id_file = self.path / INSTANCE
        try:
            self.instance = id_file.read_text().strip() if id_file.exists() else ""
            if not self.instance:
                self.instance = uuid.uuid4().hex
                replace_file(id_file, self.instance.encode() + b"\n")
        except OSError as error:
            raise Stop(f"node.data_dir {self.path} cannot be used: {error.strerror}") from error
        self.place = f"{socket.gethostname()}:{self.path.resolve()}:{os.fstat(handle).st_ino}"

    def known_instance(self) -> str:
        """Return the id of the directory without locking it; empty if it has none yet."""
        try:
            return (self.path / INSTANCE).read_text().strip()
        except OSError:
            return ""

    def release(self) -> None:
        """Unlock the directory."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def ended_reading(self, shard: int, offset: int) -> bool:
        """Return whether a record of the topic may have ended the last process that read a shard,
        so that this one must read in another way.

        That process ended without an orderly stop. Its end counts if it had begun at the same
        offset, or followed such an end itself, and the machine may have been short of memory; and
        if it had done both, whatever the memory was."""
        before = self._read_before(shard)
        if not before:
            return False
        # A flush between the two ends moves the offset: the second one counts all the same.
        is_same, is_second = before[0] == str(offset), AFTER_AN_END in before[1:]
        lacked_memory = (
            UNKNOWN in (known := killed_for_memory(), *before[2:]) or known not in before[2:]
        )
        return (is_same or is_second) and (lacked_memory or (is_same and is_second))

    def begin_reading(self, shard: int, offset: int) -> None:
        """Note that this process reads a shard's delay partition from the offset on, from now.

        On a full disk the process does without the note: it must start to deliver, and so to make
        room."""
        before = self._read_before(shard)
        path = self.path / READING / str(shard)
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{offset} {AFTER_AN_END if before else '-'} {killed_for_memory()}\n")

    def _read_before(self, shard: int) -> list[str]:
        try:
            return (self.path / READING / str(shard)).read_text().split()
        except OSError:
            return []

    def end_reading(self) -> None:
        """Note that the process stopped in order."""
        shutil.rmtree(self.path / READING, ignore_errors=True)

    @property
    def stores(self) -> Path:
        """The folder of the stores."""
        return self.path / "shards"

    def store(self, shard: int) -> Path:
        """Return the folder of a shard's store."""
        return self.stores / str(shard)

    def free_bytes(self) -> int:
        """Return the bytes that an unprivileged process may still write to its disk."""
        return free_bytes(self.path)
