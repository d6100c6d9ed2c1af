"""Java's archives of loaded classes (application class data sharing, JEP 310 and 350): they halve the cost of starting a JVM.

    options = shared_classes("kafka", str(kafka_files()), lambda options: run_a_broker_once(options))

An archive is made once, by a JVM that ends in order, and lies in `.cache`. Java checks it against its own version and the
class path, and does without one that does not fit.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parents[2] / ".cache" / "classes"

QUIET = "-Xlog:disable"
"""Java writes its warnings about classes to the standard output, which tests read."""


@cache
def java() -> str:
    """The command that starts Java."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


@cache
def java_version() -> str:
    """Java's own description of its version."""
    return subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=60, check=True).stderr


def shared_classes(name: str, class_path: str, make: Callable[[Sequence[str]], None]) -> tuple[str, ...]:
    """Java's options to use the archive of this name and class path.

    `make` makes a missing one: it runs a JVM with the options that it is given, to an end in order. Processes that need the
    same archive wait for the one that makes it. Without options if that JVM made none.
    """
    key = zlib.crc32(f"{class_path}\n{java_version()}".encode())
    archive = DIRECTORY / f"{name}-{key:08x}.jsa"
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (DIRECTORY / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            unfinished = archive.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            make((f"-XX:ArchiveClassesAtExit={unfinished}", QUIET))
            if not unfinished.exists():
                return ()
            unfinished.rename(archive)
    return f"-XX:SharedArchiveFile={archive}", QUIET
