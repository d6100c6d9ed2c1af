"""Jars that Maven fetched, classes that are compiled here, and Java's archives of loaded classes
(application class data sharing, JEP 310 and 350): they halve the cost of starting a JVM.

    options = shared_classes("kafka", str(jars("kafka")), lambda options:
    run_a_broker_once(options))

An archive is made once, by a JVM that ends in order, and lies in `.cache`. Java checks it against
its own version and the class path, and does without one that does not fit."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
DIRECTORY = CACHE / "classes"

FETCH_TIMEOUT_S = 600.0
"""Maven copies some 90 files in seconds; the bound is for a first download over a slow network."""

QUIET = "-Xlog:disable"
"""Java writes its warnings about classes to the standard output, which tests read."""


KAFKA_VERSION = os.environ.get("KAFKA_VERSION")
"""Another version of Kafka than the pinned one, to run tests on."""

COMPILE_TIMEOUT_S = 120.0
"""The compiler takes 2 s; the bound is for a loaded machine."""


class JarsMissing(Exception):
    """Jars could not be fetched; the message gives the reason."""


class NotCompiled(Exception):
    """A class could not be compiled; the message gives the reason."""


def pinned_version(name: str) -> str:
    """The version in `scripts/<name>/pom.xml`."""
    found = re.search(
        rf"<{name}\.version>(.+?)</{name}\.version>",
        (ROOT / "scripts" / name / "pom.xml").read_text(),
    )
    if found is None:
        raise JarsMissing(f"scripts/{name}/pom.xml names no {name}.version")
    return found[1]


@cache
def jars(name: str) -> Path:
    """The directory with the jars of `scripts/<name>/pom.xml`, which are fetched if they are
    missing. Raises JarsMissing."""
    other = [KAFKA_VERSION] if name == "kafka" and KAFKA_VERSION else []
    fetch = subprocess.run(
        [str(ROOT / "scripts" / name / "fetch"), *other],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    if fetch.returncode != 0:
        raise JarsMissing(f"no {name} to test with\n{fetch.stderr.strip()}")
    return CACHE / f"{name}-{other[0] if other else pinned_version(name)}"


@cache
def java() -> str:
    """The command that starts Java."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


@cache
def java_version() -> str:
    """Java's own description of its version."""
    return subprocess.run(
        [java(), "-version"], capture_output=True, text=True, timeout=60, check=True
    ).stderr


@cache
def compiled(source: Path, class_path: str) -> Path:
    """The directory with the classes of a source file, which is compiled if that is missing. Raises
    NotCompiled.

    Not with `javac`, which may be that of another Java; a Java without a compiler is a runtime
    only."""
    key = zlib.crc32(f"{class_path}\n{java_version()}\n{source.read_text()}".encode())
    directory = DIRECTORY / f"{source.stem}-{key:08x}"
    with _locked(source.stem):
        if not directory.exists():
            path = os.pathsep.join(map(str, Path(class_path).glob("*.jar")))
            with TemporaryDirectory(dir=DIRECTORY) as unfinished:
                made = Path(unfinished, "classes")
                command = [
                    java(),
                    "-m",
                    "jdk.compiler/com.sun.tools.javac.Main",
                    "-cp",
                    path,
                    "-d",
                    str(made),
                    str(source),
                ]
                ran = subprocess.run(
                    command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
                )
                if ran.returncode != 0:
                    raise NotCompiled(
                        f"{source.name} is not compiled; without a compiler install a JDK, e.g. "
                        "openjdk-17-jdk-headless\n"
                        f"{ran.stdout}{ran.stderr}".strip()
                    )
                made.rename(directory)
    return directory


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Let one process at a time make what has this name."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (DIRECTORY / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def shared_classes(
    name: str, class_path: str, make: Callable[[Sequence[str]], None]
) -> tuple[str, ...]:
    """Java's options to use the archive of this name and class path.

    `make` makes a missing one: it runs a JVM with the options that it is given, to an end in order.
    Processes that need the same archive wait for the one that makes it. Without options if that JVM
    made none."""
    key = zlib.crc32(f"{class_path}\n{java_version()}".encode())
    archive = DIRECTORY / f"{name}-{key:08x}.jsa"
    with _locked(name):
        if not archive.exists():
            unfinished = archive.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            make((f"-XX:ArchiveClassesAtExit={unfinished}", QUIET))
            if not unfinished.exists():
                return ()
            unfinished.rename(archive)
    return f"-XX:SharedArchiveFile={archive}", QUIET
