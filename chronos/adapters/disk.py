"""Files and directories on this machine: replacing a file durably as a whole, syncing, the free
space, and removing the permissions of other users."""

import os
import stat
from pathlib import Path

from chronos.errors import NoSpace


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file durably, by the old or the new content: new file, fsync, rename, fsync of the
    directory. Raises OSError."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def keep(path: Path, data: bytes) -> None:
    """The same, for what a node keeps of its own. Raises NoSpace."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise NoSpace(
            f"{path} could not be written ({error.strerror}). Make room on that disk; nothing is "
            "lost"
        ) from error


def sync(path: Path) -> None:
    """Write what the system still holds of a file or directory. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_bytes(path: Path) -> int:
    """Return the bytes that an unprivileged process may still write to the disk of the path. Raises
    OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def keep_private(path: Path) -> bool:
    """Take all permissions of others from a file or directory of this process's user; return
    whether others have none now.

    Those of another user's are left as they are. Raises OSError if there is none.
    """
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and mode & 0o077:
        path.chmod(mode & 0o700)
        return True
    return not mode & 0o007
