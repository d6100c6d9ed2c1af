"""Where an archive lies: a folder, or object storage, as both Spark and pyarrow reach it."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyarrow import fs
from pyspark.sql import SparkSession

from chronos.errors import ArchiveFailed, ArchiveInUse, ArchiveUnusable

LOCK_WAIT_S = 30.0
"""How long a writer that was killed may take to be gone; its JVM notices within a second or two."""

LOCK_POLL_S = 0.1


SPECIAL = "#?%*[]{}\\"
"""Characters of a location that Spark takes for something else: a pattern, a fragment, an escape."""

P = ParamSpec("P")
R = TypeVar("R")


def _told(method: Callable[Concatenate["Place", P], R]) -> Callable[Concatenate["Place", P], R]:
    """The method; what the file system refuses is ArchiveFailed."""

    @wraps(method)
    def call(self: "Place", /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            raise ArchiveFailed(f"{self.uri} cannot be read or written: {error}") from error

    return call


class Place:
    """A folder by its URI or path; paths below it are relative and use `/`.

    ArchiveUnusable for one that can be none; ArchiveFailed, from every method, while it cannot be reached.
    """

    def __init__(self, location: str) -> None:
        scheme, _, rest = location.rpartition("://")
        self.is_local = scheme in ("", "file")
        special = sorted({*location} & {*SPECIAL})
        if special:
            raise ArchiveUnusable(
                f"{location} is no place for an archive: Spark cannot read below a {' or '.join(special)}"
            )
        self._files: fs.FileSystem
        if self.is_local:
            self._files, self._root = fs.LocalFileSystem(), os.path.abspath(rest)
            self.uri = "file://" + self._root
            return
        # Hadoop knows S3 by another name than Arrow.
        name = {"s3a": "s3"}.get(scheme, scheme)
        self.uri = f"{'s3a' if name == 's3' else scheme}://{rest}".rstrip("/")
        try:
            self._files, self._root = fs.FileSystem.from_uri(f"{name}://{rest}".rstrip("/"))
        except ValueError as error:
            raise ArchiveUnusable(f"{location} is no place for an archive: {error}") from error
        except OSError as error:
            raise ArchiveFailed(f"{location} cannot be reached: {error}") from error

    def path(self, *parts: str) -> str:
        """The URI of something below, for Spark."""
        return "/".join([self.uri, *parts])

    @_told
    def folders(self, below: str) -> list[str]:
        """Names of the folders right below, in order; none when there is no such folder."""
        selector = fs.FileSelector(f"{self._root}/{below}", allow_not_found=True)
        return sorted(
            found.base_name for found in self._files.get_file_info(selector) if found.type is fs.FileType.Directory
        )

    @_told
    def files(self, below: str, *, recursive: bool = False) -> list[tuple[str, int]]:
        """`(path relative to below, bytes)` of the files there, in order."""
        root = f"{self._root}/{below}"
        selector = fs.FileSelector(root, allow_not_found=True, recursive=recursive)
        found = (each for each in self._files.get_file_info(selector) if each.type is fs.FileType.File)
        return sorted((each.path[len(root) + 1 :], each.size) for each in found)

    @_told
    def rows(self, below: str) -> int:
        """Rows of the Parquet files there, by their footers."""
        found = self.files(below, recursive=True)
        return sum(
            pq.read_metadata(f"{self._root}/{below}/{path}", filesystem=self._files).num_rows
            for path, _ in found
            if path.endswith(".parquet")
        )

    def hold(self, below: str, rows: int) -> None:
        """ArchiveFailed unless the Parquet files there hold so many rows, as Spark's tasks say.

        A task on another host writes to a folder of the same name there, which nobody ever reads.
        """
        found = self.rows(below)
        if found != rows:
            raise ArchiveFailed(
                f"Spark's tasks wrote {rows} rows to {self.path(below)} and {found} are there: with a --master of several"
                " hosts it must be a folder that all of them share, or object storage"
            )

    @_told
    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        return self._files.get_file_info(f"{self._root}/{path}").type is not fs.FileType.NotFound

    @_told
    def read(self, path: str) -> bytes | None:
        """The contents of a file; None when it is not there."""
        try:
            with self._files.open_input_stream(f"{self._root}/{path}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    @_told
    def open(self, path: str) -> Any:
        """A file of Arrow's to read at any place of it; to be closed."""
        return self._files.open_input_file(f"{self._root}/{path}")

    def read_json(self, path: str) -> Any:
        """What a JSON file says; None when it is not there."""
        data = self.read(path)
        try:
            return None if data is None else json.loads(data)
        except ValueError as error:
            raise ArchiveFailed(f"{self.path(path)} cannot be read ({error}); restore it from a copy") from error

    @_told
    def write(self, path: str, data: bytes) -> None:
        """Put a file in its place whole, over an older one."""
        full = f"{self._root}/{path}"
        folder, _, name = full.rpartition("/")
        self._files.create_dir(folder, recursive=True)
        with self._files.open_output_stream(f"{folder}/_{name}.new") as stream:
            stream.write(data)
        self._files.move(f"{folder}/_{name}.new", full)

    def write_json(self, path: str, value: Any) -> None:
        """Put a JSON file in its place whole."""
        self.write(path, json.dumps(value, indent=1).encode())

    @_told
    def move(self, source: str, target: str) -> None:
        """Rename a folder. At once on a file system; file by file on object storage, where it may be done again."""
        if self.is_local:
            self._files.create_dir(f"{self._root}/{target}".rpartition("/")[0], recursive=True)
            self._files.move(f"{self._root}/{source}", f"{self._root}/{target}")
            return
        for path, _ in self.files(source, recursive=True):
            moved = f"{self._root}/{target}/{path}"
            self._files.create_dir(moved.rpartition("/")[0], recursive=True)
            self._files.move(f"{self._root}/{source}/{path}", moved)
        self.remove(source)

    def put_away(self, source: str, target: str) -> None:
        """Take a folder that is to be removed out of readers' sight, if it is there: by the quickest means there is."""
        if not self.exists(source):
            return
        if self.is_local:
            self.move(source, target)
        else:
            self.remove(source)

    @_told
    def remove(self, folder: str) -> None:
        """Remove a folder with all that is in it, if it is there."""
        if self.exists(folder):
            self._files.delete_dir(f"{self._root}/{folder}")

    @_told
    def remove_file(self, path: str) -> None:
        """Remove a file, if it is there."""
        if self.exists(path):
            self._files.delete_file(f"{self._root}/{path}")

    @_told
    def _make(self) -> None:
        self._files.create_dir(self._root, recursive=True)

    @contextmanager
    def alone(self, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Nobody else writes to this archive meanwhile; ArchiveInUse if somebody still does after `wait_s`.

        It is Spark's JVM that holds the lock: it writes the files, and outlives a driver that was killed by a moment.
        Only a local folder can be locked: elsewhere it is the operator who sees to it that there is one writer.
        """
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
                    raise ArchiveInUse(f"{self._root} is being written by another process; wait for it, or end it")
                time.sleep(LOCK_POLL_S)
            yield
        finally:
            file.close()


def _lock(file: Any) -> bool:
    try:
        return file.getChannel().tryLock() is not None
    except Py4JJavaError as error:
        if "OverlappingFileLock" in str(error.java_exception):
            return False  # this very JVM holds it
        raise ArchiveFailed(f"the archive cannot be locked: {error.java_exception}") from error
