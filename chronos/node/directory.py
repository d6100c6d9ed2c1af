"""The data directory: it belongs to one process at a time, and to one node for ever."""

import fcntl
import os
import uuid
from pathlib import Path

from chronos.errors import Stop, StoreInUse

INSTANCE = "instance"
"""The file that holds the directory's id."""


class DataDirectory:
    """The folder in which a node keeps its stores, its copies, its lock and its id."""

    def __init__(self, path: Path, *, node: str) -> None:
        self.path = path
        self.instance = ""
        """The id of the directory, which identifies the node in the log; empty before `claim`."""
        self._node = node
        self._lock_file: int | None = None

    def claim(self) -> None:
        """Lock the directory for this process and read its id. Raises StoreInUse; Stop if it cannot be used at all."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Stop(f"node.data_dir {self.path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(handle, 200).decode("utf-8", "replace").strip()
            os.close(handle)
            raise StoreInUse(
                f"{self.path} is in use by another Chronos ({owner or 'unknown'}). Stop it, or give this node"
                " another node.data_dir."
            ) from None
        self._lock_file = handle
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}, node {self._node}\n".encode(), 0)
        id_file = self.path / INSTANCE
        if not id_file.exists():
            new_file = self.path / "instance.new"
            new_file.write_text(uuid.uuid4().hex + "\n")
            new_file.replace(id_file)
        self.instance = id_file.read_text().strip()

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

    def store(self, shard: int) -> Path:
        """Return the folder of a shard's store."""
        return self.path / "shards" / str(shard)

    def free_bytes(self) -> int:
        """Return the bytes that an unprivileged process may still write to its disk."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize
