"""Small disks that tests fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_MB = 192


def fill(disk: Path, left_mb: float) -> Path:
    """Fill the disk except for `left_mb`; the file that takes the space."""
    ballast = disk / "ballast"
    # Unbuffered, so that what does not fit is not tried again at the end of the block.
    with ballast.open("wb", buffering=0) as file:
        while (room := free_bytes(disk) - int(left_mb * 2**20)) > 0:
            try:
                file.write(bytes(min(room, 2**20)))
            except OSError:
                break
    return ballast


def free_bytes(disk: Path) -> int:
    """Free bytes on the disk."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """Mount a file system small enough to be filled at this directory."""
    place.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "chronos-test", str(place)]
    mounted = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert mounted.returncode == 0, (
        f"these tests must be allowed to mount a tmpfs: {mounted.stderr.strip()}"
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
