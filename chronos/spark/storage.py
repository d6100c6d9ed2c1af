"""The storage of an archive: a folder or object storage that both Spark and pyarrow reach.

This module knows no table. Law: a file appears whole under its name or not at all. In a local
folder `locked` admits one writer of the archive, and one backfill, which locks `sent/` alone; on
object storage the operator must run no more than these."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyarrow import fs
from pyspark.sql import SparkSession

from chronos.errors import ArchiveFailed, ArchiveInUse, ArchiveUnusable

LOCK_WAIT_S = 30.0
"""Seconds to wait for the lock: the JVM of a writer that was killed ends a second or two later."""

LOCK_POLL_S = 0.1
"""Seconds between two tries to take the lock."""


SPECIAL = "#?%*[]{}\\"
"""Characters of a location that Spark reads as a pattern, a fragment or an escape."""

P = ParamSpec("P")
R = TypeVar("R")


def _translated(
    method: Callable[Concatenate["ArchiveStorage", P], R],
) -> Callable[Concatenate["ArchiveStorage", P], R]:
    """The method, with an OSError of the file system raised as ArchiveFailed."""

    @wraps(method)
    def call(self: "ArchiveStorage", /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            raise ArchiveFailed(f"{self.uri} cannot be read or written: {error}") from error

    return call


class ArchiveStorage:
    """A folder given by URI or path; paths below it are relative and use `/`.

    ArchiveUnusable if the location can never hold an archive; ArchiveFailed, from every method,
    while it is unreachable."""

    def __init__(self, location: str) -> None:
        scheme, _, rest = location.rpartition("://")
        self.is_local = scheme in ("", "file")
        special = sorted({*location} & {*SPECIAL})
        if special:
            raise ArchiveUnusable(
                f"{location} cannot hold an archive: Spark cannot read below a "
                f"{' or '.join(special)}"
            )
        self._files: fs.FileSystem
        if self.is_local:
            self._files, self._root = fs.LocalFileSystem(), os.path.abspath(rest)
            self.uri = "file://" + self._root
            return
        # Hadoop calls S3 `s3a`, Arrow calls it `s3`.
        name = {"s3a": "s3"}.get(scheme, scheme)
        self.uri = f"{'s3a' if name == 's3' else scheme}://{rest}".rstrip("/")
        try:
            self._files, self._root = fs.FileSystem.from_uri(f"{name}://{rest}".rstrip("/"))
        except ValueError as error:
            raise ArchiveUnusable(f"{location} cannot hold an archive: {error}") from error
        except OSError as error:
            raise ArchiveFailed(f"{location} cannot be reached: {error}") from error

    def path(self, *parts: str) -> str:
        """The URI of a path below, for Spark."""
        return "/".join([self.uri, *parts])

    @_translated
    def folders(self, below: str) -> list[str]:
        """Names of the folders directly below, in order; empty if there is no such folder."""
        selector = fs.FileSelector(f"{self._root}/{below}", allow_not_found=True)
        return sorted(
            found.base_name
            for found in self._files.get_file_info(selector)
            if found.type is fs.FileType.Directory
        )

    @_translated
    def files(self, below: str, *, recursive: bool = False) -> list[tuple[str, int]]:
        """`(path relative to below, size in bytes)` of the files there, in order."""
        root = f"{self._root}/{below}"
        selector = fs.FileSelector(root, allow_not_found=True, recursive=recursive)
        found = (
            each for each in self._files.get_file_info(selector) if each.type is fs.FileType.File
        )
        return sorted((each.path[len(root) + 1 :], each.size) for each in found)

    @_translated
    def sizes(self, below: str, paths: Sequence[str]) -> dict[str, int | None]:
        """The size in bytes of each of these files there; None for one that does not exist."""
        found = self._files.get_file_info([f"{self._root}/{below}/{path}" for path in paths])
        return {
            path: each.size if each.type is fs.FileType.File else None
            for path, each in zip(paths, found, strict=True)
        }

    @_translated
    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return self._files.get_file_info(f"{self._root}/{path}").type is not fs.FileType.NotFound

    @_translated
    def read(self, path: str) -> bytes | None:
        """The contents of a file; None if it does not exist."""
        try:
            with self._files.open_input_stream(f"{self._root}/{path}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    @_translated
    def open(self, path: str) -> Any:
        """A file opened for random access by Arrow; the caller closes it."""
        return self._files.open_input_file(f"{self._root}/{path}")

    def read_json(self, path: str) -> Any:
        """The value in a JSON file; None if the file does not exist."""
        data = self.read(path)
        try:
            return None if data is None else json.loads(data)
        except ValueError as error:
            raise ArchiveFailed(
                f"{self.path(path)} cannot be read ({error}); restore it from a copy"
            ) from error

    @_translated
    def write(self, path: str, data: bytes) -> None:
        """Write a file under another name and rename it, over an older one."""
        full = f"{self._root}/{path}"
        folder, _, name = full.rpartition("/")
        self._files.create_dir(folder, recursive=True)
        with self._files.open_output_stream(f"{folder}/_{name}.new") as stream:
            stream.write(data)
        self._files.move(f"{folder}/_{name}.new", full)

    def write_json(self, path: str, value: Any) -> None:
        """Write a JSON file as `write` does."""
        self.write(path, json.dumps(value, indent=1).encode())

    @_translated
    def remove(self, folder: str) -> None:
        """Remove a folder and its contents, if it exists."""
        if self.exists(folder):
            self._files.delete_dir(f"{self._root}/{folder}")

    @_translated
    def _make(self) -> None:
        self._files.create_dir(self._root, recursive=True)

    @contextmanager
    def locked(self, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Hold the archive's writer lock; ArchiveInUse if another process still holds it after
        `wait_s`.

        Spark's JVM takes the lock: it writes the files, and it outlives a driver that was killed by
        a moment. Only a local folder can be locked; on object storage the operator must run one
        writer at a time."""
        if not self.is_local:
            yield
            return
        self._make()
        session = SparkSession.getActiveSession()
        assert session is not None
        file = session._jvm.java.io.RandomAccessFile(f"{self._root}/_lock", "rw")
        try:
            deadline = time.monotonic() + wait_s
            while not _lock(file):
                if time.monotonic() > deadline:
                    raise ArchiveInUse(
                        f"another process is writing to {self._root}; wait for it, or end it"
                    )
                time.sleep(LOCK_POLL_S)
            yield
        finally:
            with suppress(Py4JError, ConnectionError):  # a JVM that ended holds no lock
                file.close()


def _lock(file: Any) -> bool:
    try:
        return file.getChannel().tryLock() is not None
    except Py4JJavaError as error:
        if "OverlappingFileLock" in str(error.java_exception):
            return False  # this JVM holds it itself
        raise ArchiveFailed(f"the archive cannot be locked: {error.java_exception}") from error
